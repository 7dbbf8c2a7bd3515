// The first token, which the chain's tail draws.
#include "kernels/base/status_macros.h"
#include "worker/model/draw_rules.h"
#include "worker/prefill/stage.h"
#include "worker/prefill/stage_pass.h"

namespace runahead {

absl::StatusOr<Sampled> PrefillStage::SampleFirst(const Running& running, const Tensor& logits) {
  const PrefillJob& job = running.job;
  if (sampler_ == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(sampler_, TokenSampler::Create(device_, 1, logits.cols));
  }
  const PenaltyCounts counts(job.sampling, job.ids);
  TokenMask mask(job.rules, logits.cols, running.grammar);
  RUNAHEAD_ASSIGN_OR_RETURN(const absl::Span<const uint32_t> allowed, mask.Next());
  RUNAHEAD_ASSIGN_OR_RETURN(const TokenSampler::SequenceRow row, sampler_->TakeRow(*compute_, job.sampling, counts));
  const auto position = static_cast<int64_t>(job.ids.size());
  const absl::Status enqueued = sampler_->Enqueue(
      *compute_, logits,
      {{.options = job.sampling, .position = position, .counts = counts, .sequence_row = row, .allowed = allowed}});
  // Also where that failed: the row must not be given back before the stream is done with it.
  const absl::Status done = device_.Record(*compute_).Wait();
  RUNAHEAD_RETURN_IF_ERROR(enqueued);
  RUNAHEAD_RETURN_IF_ERROR(done);
  return sampler_->Token(0);
}

}  // namespace runahead
