#include "worker/decode/step_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {

bool IsPlainGreedy(const SamplingOptions& options) {
  return options.temperature == 0 && options.logprobs < 0 && !HasPenalties(options);
}

absl::StatusOr<std::unique_ptr<StepSampler>> StepSampler::Create(Device& device, int64_t max_rows, int64_t vocab) {
  std::unique_ptr<StepSampler> sampler(new StepSampler(device, vocab));
  const size_t top_bytes = 3 * max_rows * sizeof(float);
  const size_t logit_bytes = max_rows * vocab * sizeof(float);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> top, device.Allocate(top_bytes, MemoryKind::kDevice));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host_top, device.Allocate(top_bytes, MemoryKind::kHost));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host_logits, device.Allocate(logit_bytes, MemoryKind::kHost));
  sampler->top_ = BufferRef::Whole(std::move(top));
  sampler->host_top_ = BufferRef::Whole(std::move(host_top));
  sampler->host_logits_ = BufferRef::Whole(std::move(host_logits));
  return sampler;
}

absl::Status StepSampler::Enqueue(Stream& stream, const Tensor& logits, std::vector<const SamplingOptions*> options) {
  options_ = std::move(options);
  rows_ = logits.rows;
  const size_t column = rows_ * sizeof(float), row_bytes = vocab_ * sizeof(float);
  if (std::any_of(options_.begin(), options_.end(), [](const SamplingOptions* o) { return IsPlainGreedy(*o); })) {
    const auto part = [&](size_t index) {
      return MakeTensor(top_.Slice(index * column, column), DType::kF32, rows_, 1);
    };
    RUNAHEAD_RETURN_IF_ERROR(device_.TopK(stream, logits, 1, part(0), part(1), part(2)));
    RUNAHEAD_RETURN_IF_ERROR(device_.Copy(stream, top_.Slice(0, 3 * column), host_top_.Slice(0, 3 * column)));
  }
  for (int64_t row = 0; row < rows_; ++row) {
    if (IsPlainGreedy(*options_[row])) continue;
    RUNAHEAD_RETURN_IF_ERROR(
        device_.Copy(stream, logits.Rows(row, 1).ref, host_logits_.Slice(row * row_bytes, row_bytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Sampled> StepSampler::Sample(int64_t row, const PenaltyCounts& counts, int64_t position) const {
  if (!IsPlainGreedy(*options_[row])) {
    const float* logits = reinterpret_cast<const float*>(host_logits_.data()) + row * vocab_;
    return SampleToken(absl::MakeConstSpan(logits, vocab_), *options_[row], counts, position);
  }
  const float* values = reinterpret_cast<const float*>(host_top_.data()) + rows_;
  const int32_t id = reinterpret_cast<const int32_t*>(host_top_.data())[row];
  // Whatever is not finite among the logits shows in their sum.
  if (!std::isfinite(values[row]) || !std::isfinite(values[rows_ + row]) || id < 0 || id >= vocab_) {
    return absl::InternalError(
        absl::StrFormat("the model's logits for position %d are not finite: the sequence cannot go on", position));
  }
  return Sampled{id, {}};
}

}  // namespace runahead
