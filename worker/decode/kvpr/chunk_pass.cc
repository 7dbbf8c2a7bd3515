#include "worker/decode/kvpr/chunk_pass.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/kv/block_pool.h"
#include "worker/model/row_blocks.h"

namespace runahead {
namespace {

// Calls copy(begin, end) for positions [begin, end), cut at borders of blocks.
void ForBlocks(int64_t begin, int64_t end, const std::function<void(int64_t, int64_t)>& copy) {
  while (begin < end) {
    const int64_t until = std::min(end, (begin / kKvBlockTokens + 1) * kKvBlockTokens);
    copy(begin, until);
    begin = until;
  }
}

BufferRef RowsOf(const BufferRef& memory, int64_t first, int64_t count, int64_t row_bytes) {
  return memory.Slice(static_cast<size_t>(first * row_bytes), static_cast<size_t>(count * row_bytes));
}

}  // namespace

ChunkPass::ChunkPass(const Model& model, Device& device, Stream& stream, ForwardScratch& scratch, StagingRing& ring,
                     const ResidentMemory& memory, const KvStoreOptions& stored)
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
  if (at.chunk.x_pages == 0) return absl::OkStatus();
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
  std::vector<CopyPart> parts;
  for (const ChunkPart& part : at.chunk.parts) {
    const ResidentPart& resident = at.step.residents[part.sequence];
    const auto copy = [&](int64_t begin, int64_t end) {
      const BufferRef block = memory_.XRows(at.layer, resident.x_blocks[begin / kKvBlockTokens]);
      parts.push_back({RowsOf(block, begin % kKvBlockTokens, end - begin, x_row_bytes_),
                       RowsOf(ring_.X(at.loaded), part.Row(begin), end - begin, x_row_bytes_)});
    };
    ForBlocks(RecomputedFrom(at, part), std::min(resident.x_resident, part.recompute_end), copy);
  }
  return device_.CopyAll(stream_, std::move(parts));
}

int64_t ChunkPass::Blocks::count() const {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// Blocks begin at the same positions of a sequence and are as long whatever is beside it, and wherever chunks are cut:
// so a row is bitwise the same wherever its sequence has the same l. A last block is padded to whole tiles; what is
// made of the padding is read by nobody.
std::vector<ChunkPass::Blocks> ChunkPass::RecomputedBlocks(const At& at) const {
  std::vector<Blocks> runs;
  for (const ChunkPart& part : at.chunk.parts) {
    for (int64_t begin = part.begin; begin < part.recompute_end; begin += kRecomputeBlock) {
      const int64_t end = std::min(begin + kRecomputeBlock, part.tiles_end()), row = part.Row(begin);
      if (std::min(end, part.recompute_end) <= RecomputedFrom(at, part)) continue;
      if (runs.empty() || runs.back().first_row + runs.back().count() != row) runs.push_back({row});
      runs.back().rows.push_back(static_cast<int32_t>(end - begin));
    }
  }
  return runs;
}

// Where the store quantises, what is attended to is what it will give.
absl::Status ChunkPass::RecomputeRows(const At& at) {
  for (const Blocks& blocks : RecomputedBlocks(at)) {
    RUNAHEAD_RETURN_IF_ERROR(Multiply(at, blocks));
    RUNAHEAD_RETURN_IF_ERROR(Quantise(at, blocks.first_row, blocks.count()));
    RUNAHEAD_RETURN_IF_ERROR(Dequantise(at, blocks.first_row, blocks.count()));
  }
  return ring_.LoadBehindProduct(stream_, at.layer, model_.attention(at.layer).window, at.chunk, at.step.stored,
                                 at.loaded);
}

absl::Status ChunkPass::Multiply(const At& at, const Blocks& blocks) {
  const int64_t hidden = model_.config().hidden;
  const auto multiply = [&](int64_t row, absl::Span<const int32_t> rows, int64_t count, const Tensor& normed) {
    return model_.Recompute({.stream = stream_,
                             .scratch = scratch_,
                             .table = *at.tables.recompute,
                             .first = row,
                             .count = count,
                             .matrices = at.matrices,
                             .blocks = rows},
                            at.layer, normed, ring_.Kv(at.loaded));
  };
  if (!IsQuantised(x_form_)) {
    const XRows x{RowsOf(ring_.X(at.loaded), blocks.first_row, blocks.count(), x_row_bytes_), x_form_, hidden};
    return multiply(blocks.first_row, blocks.rows, blocks.count(), x.tensor(blocks.count()));
  }
  return ForRowBlocks(
      blocks.rows, device_.gemm_rows(), [&](int64_t first, absl::Span<const int32_t> rows, int64_t count) {
        const BufferRef x = RowsOf(ring_.X(at.loaded), blocks.first_row + first, count, x_row_bytes_);
        RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed, normed_.Get(0, device_.compute_dtype(), count, hidden));
        RUNAHEAD_RETURN_IF_ERROR(device_.DequantizeKv(stream_, x, QuantOf(x_form_), normed));
        return multiply(blocks.first_row + first, rows, count, normed);
      });
}

absl::Status ChunkPass::DequantiseStreamed(const At& at) {
  if (!quantisation_.has_value()) return absl::OkStatus();
  // Runs of rows; whole pages, for what lies behind a part in its last page is nobody's.
  std::vector<std::pair<int64_t, int64_t>> runs;
  const auto add = [&](int64_t first, int64_t end) {
    if (first >= end) return;
    const bool joins = !runs.empty() && RoundUpTo(kChunkPageTokens, runs.back().second) == first;
    joins ? void(runs.back().second = end) : runs.push_back({first, end});
  };
  for (const ChunkPart& part : at.chunk.parts) {
    const int64_t end = std::min(part.end, at.step.stored[part.sequence].stored), from = StreamedFrom(at, part);
    const int64_t in_tile = std::min(end, part.tiles_end());
    if (from < in_tile) add(part.Row(from), part.Row(from) + in_tile - from);
    const int64_t rest = std::max(from, part.tiles_end());
    if (rest < end) add(part.Row(rest), part.Row(rest) + end - rest);
  }
  for (const auto& [first, end] : runs) RUNAHEAD_RETURN_IF_ERROR(Dequantise(at, first, end - first));
  return absl::OkStatus();
}

absl::Status ChunkPass::KeepWhatStays(const At& at) {
  std::vector<CopyPart> parts;
  for (const ChunkPart& part : at.chunk.parts) {
    const ResidentPart& resident = at.step.residents[part.sequence];
    const int64_t length = at.step.sequences[part.sequence].length;
    const auto keep = [&](int64_t begin, int64_t end) {
      const BufferRef block = memory_.KvRows(at.layer, resident.kv_blocks[begin / kKvBlockTokens - resident.first_kv]);
      parts.push_back({RowsOf(ring_.Kv(at.loaded), part.Row(begin), end - begin, kv_row_bytes_),
                       RowsOf(block, begin % kKvBlockTokens, end - begin, kv_row_bytes_)});
    };
    const auto keep_x = [&](int64_t begin, int64_t end) {
      const BufferRef block = memory_.XRows(at.layer, resident.x_blocks[begin / kKvBlockTokens]);
      parts.push_back({RowsOf(ring_.X(at.loaded), part.Row(begin), end - begin, x_row_bytes_),
                       RowsOf(block, begin % kKvBlockTokens, end - begin, x_row_bytes_)});
    };
    if (!resident.kv_blocks.empty()) {
      const bool has_window = at.step.plan.cuts[part.sequence].host_end < length;
      const int64_t from = std::max(part.begin, resident.first_kv * kKvBlockTokens);
      const int64_t end = std::min(part.end, has_window ? resident.resident_from : length);
      ForBlocks(from, std::min(end, part.tiles_end()), keep);
      ForBlocks(std::max(from, part.tiles_end()), end, keep);
    }
    const auto x_end = static_cast<int64_t>(resident.x_blocks.size()) * kKvBlockTokens;
    ForBlocks(std::max(part.begin, resident.x_resident), std::min(part.recompute_end, x_end), keep_x);
  }
  return device_.CopyAll(stream_, std::move(parts));
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
                          const std::vector<RowRun>& runs, const KvTable& table, const BufferRef& kv) {
  const Tensor k_and_v = qkv.Cols(shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
  for (const RowRun& run : runs) {
    RUNAHEAD_RETURN_IF_ERROR(
        device.StoreQkv(stream, k_and_v.Rows(run.first, run.count), shape, {}, table, run.first, kv));
  }
  return absl::OkStatus();
}

}  // namespace runahead
