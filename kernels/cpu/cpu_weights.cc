#include "kernels/cpu/cpu_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr size_t kFormAlignment = 64;  // what oneDNN and the kernels want

bool IsWithin(const BufferRef& part, const BufferRef& whole) {
  return part.data() >= whole.data() && part.data() < whole.data() + whole.size;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CpuWeights>> CpuWeights::Load(const WeightSource& source, unsigned uses,
                                                                   const Loader& loader) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  if ((uses & (kUsePrefill | kUseDecode)) == 0) return absl::InvalidArgumentError("weights that no op may use");
  Arena passing(HostChunks(nullptr));
  if ((uses & kUseStreamed) != 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(
        const std::shared_ptr<const CpuWeights> apart,
        Load(source, uses & ~unsigned{kUseStreamed}, {loader.kernels, loader.pool, loader.gemm, passing, loader.int8}));
    return apart->WithHome();
  }
  std::shared_ptr<CpuWeights> weights(new CpuWeights(source.rows(), source.cols));
  if (loader.int8 != nullptr && Int8Weights::Takes(source)) {
    RUNAHEAD_ASSIGN_OR_RETURN(
        weights->int8_,
        Int8Weights::Make(source, {loader.arena, loader.shared, loader.budget, source.name}, loader.pool));
    weights->CountBytes();
    return weights;
  }
  // The prefill form is made from the stored one, which is dropped again where decode does not want it.
  const bool keep = (uses & kUseDecode) != 0;
  RUNAHEAD_ASSIGN_OR_RETURN(StoredWeights stored,
                            StoredWeights::Make(source, keep ? loader.arena : passing, loader.pool));
  if ((uses & kUsePrefill) != 0) RUNAHEAD_RETURN_IF_ERROR(weights->Pack(stored, source.cuts, loader));
  if (keep) weights->stored_ = std::move(stored);
  weights->CountBytes();
  return weights;
}

void CpuWeights::CountBytes() {
  if (int8_.has_value()) bytes_.int8 = int8_->memory().size;
  if (stored_.has_value()) bytes_.stored = stored_->memory().size;
  if (packed_ != nullptr) bytes_.packed = packed_->memory().size;
  for (const Part& part : parts_) {
    if (!IsWithin(part.packed->memory(), packed_->memory())) bytes_.packed += part.packed->memory().size;
  }
}

// Copies of all forms, one after the other in one block.
absl::StatusOr<std::shared_ptr<const CpuWeights>> CpuWeights::WithHome() const {
  struct Block {
    BufferRef from;
    size_t at;
  };
  std::vector<Block> blocks;
  size_t bytes = 0;
  const auto add = [&](const BufferRef& from) {
    blocks.push_back({from, bytes});
    bytes += (from.size + kFormAlignment - 1) / kFormAlignment * kFormAlignment;
  };
  if (int8_.has_value()) add(int8_->memory());
  if (stored_.has_value()) add(stored_->memory());
  if (packed_ != nullptr) add(packed_->memory());
  for (const Part& part : parts_) {
    if (!IsWithin(part.packed->memory(), packed_->memory())) add(part.packed->memory());
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, AllocateHostMemory(bytes, nullptr));
  const BufferRef home = BufferRef::Whole(std::move(memory));
  for (const Block& block : blocks) std::memcpy(home.data() + block.at, block.from.data(), block.from.size);
  std::shared_ptr<CpuWeights> weights = Moved([&](const BufferRef& form) {
    const auto in = std::find_if(blocks.begin(), blocks.end(), [&](const Block& b) { return IsWithin(form, b.from); });
    return home.Slice(in->at + (form.data() - in->from.data()), form.size);
  });
  weights->home_ = home;
  weights->bytes_ = bytes_;
  return weights;
}

std::shared_ptr<const CpuWeights> CpuWeights::At(const BufferRef& slot) const {
  return Moved([&](const BufferRef& form) { return slot.Slice(form.data() - home_.data(), form.size); });
}

std::shared_ptr<CpuWeights> CpuWeights::Moved(const std::function<BufferRef(const BufferRef&)>& to) const {
  std::shared_ptr<CpuWeights> weights(new CpuWeights(rows(), cols()));
  if (int8_.has_value()) weights->int8_ = int8_->At(to(int8_->memory()));
  if (stored_.has_value()) weights->stored_ = stored_->At(to(stored_->memory()));
  if (packed_ != nullptr) weights->packed_ = packed_->At(to(packed_->memory()));
  for (const Part& part : parts_) {
    weights->parts_.push_back({part.begin, part.end, part.packed->At(to(part.packed->memory()))});
  }
  return weights;
}

absl::Status CpuWeights::Pack(const StoredWeights& stored, const std::vector<int64_t>& cuts, const Loader& loader) {
  const auto read_row = [&](int64_t row, float* out) { stored.DequantizeRow(loader.kernels, row, out); };
  RUNAHEAD_ASSIGN_OR_RETURN(packed_, loader.gemm.Pack(rows(), cols(), read_row, loader.arena));
  int64_t begin = 0;
  for (size_t i = 0; i <= cuts.size() && !cuts.empty(); ++i) {
    const int64_t end = i < cuts.size() ? cuts[i] : rows();
    Part part{begin, end, loader.gemm.Slice(*packed_, begin, end)};
    if (part.packed == nullptr) {  // small models: real ones have borders at whole slices
      const auto read_part = [&](int64_t row, float* out) { read_row(begin + row, out); };
      RUNAHEAD_ASSIGN_OR_RETURN(part.packed, loader.gemm.Pack(end - begin, cols(), read_part, loader.arena));
    }
    parts_.push_back(std::move(part));
    begin = end;
  }
  return absl::OkStatus();
}

void CpuWeights::ReadRow(const CpuKernels& kernels, int64_t row, float* out) const {
  if (int8_.has_value()) return int8_->DequantizeRow(row, out);
  stored_->DequantizeRow(kernels, row, out);
}

ConstBufferRef CpuWeights::HomeFrom(int64_t first_row) const {
  if (int8_.has_value()) return int8_->MemoryFrom(first_row);
  for (const Part& part : parts_) {
    if (part.begin == first_row && part.end == rows()) return part.packed->memory();
  }
  return packed_ != nullptr ? packed_->memory() : home_;
}

bool CpuWeights::IsBorder(int64_t row) const {
  return row == 0 || row == rows() ||
         std::any_of(parts_.begin(), parts_.end(), [row](const Part& part) { return part.begin == row; });
}

absl::Status CpuWeights::CheckLoadedFor(const LinearOptions& options, int64_t cols) const {
  if (int8_.has_value()) return absl::OkStatus();
  const bool invariant = options.batch_invariant;
  if (invariant ? !stored_.has_value() : packed_ == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the weights were not loaded for ", invariant ? "kUseDecode" : "kUsePrefill"));
  }
  const int64_t end_row = options.first_row + cols;
  if (invariant || (IsBorder(options.first_row) && IsBorder(end_row))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows ", options.first_row, " to ", end_row, " of ", rows(),
                                                 ": the weights were not loaded with cuts there"));
}

void CpuWeights::MultiplyPacked(Gemm& gemm, const ConstTensor& x, const LinearOptions& options,
                                const MutTensor& out) const {
  const float* const bias = options.bias.ref.buffer == nullptr ? nullptr : options.bias.row<float>(0);
  const auto run = [&](const PackedMatrix& packed, int64_t column) {
    gemm.Run(packed, {.x = x.ref.data(),
                      .x_stride = x.stride,
                      .m = x.rows,
                      .out = out.ref.data() + column * DTypeSize(out.dtype),
                      .out_dtype = out.dtype,
                      .out_stride = out.stride,
                      .accumulate = options.accumulate,
                      .bias = bias == nullptr ? nullptr : bias + column,
                      .activation = options.activation});
  };
  if (out.cols == rows()) return run(*packed_, 0);
  for (const Part& part : parts_) {
    const int64_t column = part.begin - options.first_row;
    if (column >= 0 && column < out.cols) run(*part.packed, column);
  }
}

}  // namespace runahead
