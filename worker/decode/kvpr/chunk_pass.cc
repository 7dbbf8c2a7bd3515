#include "worker/decode/kvpr/chunk_pass.h"

#include <algorithm>
#include <functional>

#include "kernels/base/status_macros.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

// Calls copy(begin, end) for positions [begin, end), cut at borders of blocks.
absl::Status ForBlocks(int64_t begin, int64_t end, const std::function<absl::Status(int64_t, int64_t)>& copy) {
  while (begin < end) {
    const int64_t until = std::min(end, (begin / kKvBlockTokens + 1) * kKvBlockTokens);
    RUNAHEAD_RETURN_IF_ERROR(copy(begin, until));
    begin = until;
  }
  return absl::OkStatus();
}

BufferRef RowsOf(const BufferRef& memory, int64_t first, int64_t count, int64_t row_bytes) {
  return memory.Slice(static_cast<size_t>(first * row_bytes), static_cast<size_t>(count * row_bytes));
}

}  // namespace

ChunkPass::ChunkPass(const Model& model, Device& device, Stream& stream, ForwardScratch& scratch,
                     const StagingRing& ring, const ResidentMemory& memory, const KvStoreOptions& stored)
    : model_(model),
      device_(device),
      stream_(stream),
      scratch_(scratch),
      ring_(ring),
      memory_(memory),
      quantisation_(stored.quantisation),
      kv_row_bytes_(stored.row_bytes),
      x_row_bytes_(stored.x_row_bytes),
      x_form_(stored.x_form),
      normed_(device) {}

absl::Status ChunkPass::Recompute(const At& at) {
  if (at.chunk.x_rows == 0) return absl::OkStatus();
  device_.WaitFor(stream_, at.loaded.x_there);
  const LaneSpan span(device_, stream_, at.step.times, StepLane::kRecompute, at.layer);
  RUNAHEAD_RETURN_IF_ERROR(FillX(at));
  return RecomputeRows(at);
}

absl::Status ChunkPass::Attend(LayerPass& pass, const At& at, const Tensor& qkv) {
  device_.WaitFor(stream_, at.loaded.kv_there);
  const LaneSpan span(device_, stream_, at.step.times, StepLane::kAttend, at.layer);
  const BufferRef kv = ring_.Kv(at.loaded);
  RUNAHEAD_RETURN_IF_ERROR(DequantiseStreamed(at));
  RUNAHEAD_RETURN_IF_ERROR(
      StoreOwnRows(device_, stream_, model_.attention(at.layer), qkv, at.tables.own, *at.tables.attend, kv));
  RUNAHEAD_RETURN_IF_ERROR(pass.AttendPieces(at.layer, *at.tables.attend, kv));
  return KeepWhatStays(at);
}

int64_t ChunkPass::RecomputedFrom(const At& at, const ChunkPart& part) const {
  const int64_t seen = at.step.FirstSeenBy(part.sequence, model_.attention(at.layer).window);
  return std::clamp(seen, part.begin, part.recompute_end);
}

int64_t ChunkPass::StreamedFrom(const At& at, const ChunkPart& part) const {
  return std::max(part.recompute_end, at.step.FirstSeenBy(part.sequence, model_.attention(at.layer).window));
}

// X that is on the device comes to where the chunk's other X is.
absl::Status ChunkPass::FillX(const At& at) {
  for (const ChunkPart& part : at.chunk.parts) {
    const ResidentPart& resident = at.step.residents[part.sequence];
    const auto copy = [&](int64_t begin, int64_t end) {
      const BufferRef block = memory_.XRows(at.layer, resident.x_blocks[begin / kKvBlockTokens]);
      return device_.Copy(stream_, RowsOf(block, begin % kKvBlockTokens, end - begin, x_row_bytes_),
                          RowsOf(ring_.X(at.loaded), part.Row(begin), end - begin, x_row_bytes_));
    };
    RUNAHEAD_RETURN_IF_ERROR(
        ForBlocks(RecomputedFrom(at, part), std::min(resident.x_resident, part.recompute_end), copy));
  }
  return absl::OkStatus();
}

// In blocks that begin at the same positions of a sequence and are as long whatever is beside it, and wherever chunks
// are cut: so a row is bitwise the same wherever its sequence has the same l. A last block is padded to whole tiles;
// what is made of the padding goes nowhere.
absl::Status ChunkPass::RecomputeRows(const At& at) {
  int64_t query = 0;
  for (const ChunkPart& part : at.chunk.parts) {
    for (int64_t begin = part.begin; begin < part.recompute_end; begin += kChunkPageTokens) {
      const int64_t count = std::min(kChunkPageTokens, part.recompute_end - begin), first_query = query;
      query += count;
      if (begin + count <= RecomputedFrom(at, part)) continue;
      RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, Normed(at, part.Row(begin), RoundUpTo(kSplitTile, count)));
      const SectionRows rows{stream_, scratch_, *at.tables.recompute, first_query, count, false, at.matrices};
      RUNAHEAD_RETURN_IF_ERROR(model_.Recompute(rows, at.layer, normed, ring_.Kv(at.loaded)));
    }
  }
  for (const ChunkPart& part : at.chunk.parts) {
    const int64_t from = RecomputedFrom(at, part), first = part.Row(from), count = part.recompute_end - from;
    RUNAHEAD_RETURN_IF_ERROR(Quantise(at, first, count));
    RUNAHEAD_RETURN_IF_ERROR(Dequantise(at, first, count));
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> ChunkPass::Normed(const At& at, int64_t first, int64_t count) {
  const XRows x{RowsOf(ring_.X(at.loaded), first, count, x_row_bytes_), x_form_, model_.config().hidden};
  if (!IsQuantised(x_form_)) return x.tensor(count);
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, normed_.Get(0, device_.compute_dtype(), count, x.hidden));
  RUNAHEAD_RETURN_IF_ERROR(device_.DequantizeKv(stream_, x.ref, QuantOf(x_form_), normed));
  return normed;
}

absl::Status ChunkPass::DequantiseStreamed(const At& at) {
  for (const ChunkPart& part : at.chunk.parts) {
    const int64_t end = std::min(part.end, at.step.stored[part.sequence].stored);
    const int64_t from = StreamedFrom(at, part);
    RUNAHEAD_RETURN_IF_ERROR(Dequantise(at, part.Row(from), end - from));
  }
  return absl::OkStatus();
}

absl::Status ChunkPass::KeepWhatStays(const At& at) {
  for (const ChunkPart& part : at.chunk.parts) {
    const ResidentPart& resident = at.step.residents[part.sequence];
    const int64_t length = at.step.lengths[part.sequence];
    if (!resident.kv_blocks.empty()) {
      const bool has_window = at.step.plan.cuts[part.sequence].host_end < length;
      const auto keep = [&](int64_t begin, int64_t end) {
        const BufferRef block =
            memory_.KvRows(at.layer, resident.kv_blocks[begin / kKvBlockTokens - resident.first_kv]);
        const int64_t row = part.Row(begin);
        return device_.Copy(stream_, RowsOf(ring_.Kv(at.loaded), row, end - begin, kv_row_bytes_),
                            RowsOf(block, begin % kKvBlockTokens, end - begin, kv_row_bytes_));
      };
      RUNAHEAD_RETURN_IF_ERROR(ForBlocks(std::max(part.begin, resident.first_kv * kKvBlockTokens),
                                         std::min(part.end, has_window ? resident.resident_from : length), keep));
    }
    const auto keep_x = [&](int64_t begin, int64_t end) {
      const BufferRef block = memory_.XRows(at.layer, resident.x_blocks[begin / kKvBlockTokens]);
      return device_.Copy(stream_, RowsOf(ring_.X(at.loaded), part.Row(begin), end - begin, x_row_bytes_),
                          RowsOf(block, begin % kKvBlockTokens, end - begin, x_row_bytes_));
    };
    const auto x_end = static_cast<int64_t>(resident.x_blocks.size()) * kKvBlockTokens;
    RUNAHEAD_RETURN_IF_ERROR(
        ForBlocks(std::max(part.begin, resident.x_resident), std::min(part.recompute_end, x_end), keep_x));
  }
  return absl::OkStatus();
}

absl::Status ChunkPass::Dequantise(const At& at, int64_t first, int64_t count) {
  if (!quantisation_.has_value() || count <= 0) return absl::OkStatus();
  return device_.DequantizeKv(stream_, ring_.StoredRows(at.loaded, first, count), quantisation_->quant,
                              KvRows(at, first, count));
}

absl::Status ChunkPass::Quantise(const At& at, int64_t first, int64_t count) {
  if (!quantisation_.has_value() || count <= 0) return absl::OkStatus();
  return device_.QuantizeKv(stream_, KvRows(at, first, count), quantisation_->quant,
                            ring_.StoredRows(at.loaded, first, count));
}

Tensor ChunkPass::KvRows(const At& at, int64_t first, int64_t count) const {
  return MakeTensor(RowsOf(ring_.Kv(at.loaded), first, count, kv_row_bytes_), model_.kv_dtype(), count,
                    2 * model_.config().kv_dim());
}

absl::Status StoreOwnRows(Device& device, Stream& stream, const AttentionShape& shape, const Tensor& qkv,
                          const std::vector<SequenceRun>& runs, const KvTable& table, const BufferRef& kv) {
  const Tensor k_and_v = qkv.Cols(shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
  for (const SequenceRun& run : runs) {
    RUNAHEAD_RETURN_IF_ERROR(
        device.StoreQkv(stream, k_and_v.Rows(run.first, run.count), shape, {}, table, run.first, kv));
  }
  return absl::OkStatus();
}

}  // namespace runahead
