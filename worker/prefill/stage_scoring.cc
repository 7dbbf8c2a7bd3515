// What the model gave the tokens of a prompt: by chunks, each a step of its own, so that logits of a whole part are
// never there at once, and a job that is stopped says no more.
#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/prefill/stage.h"
#include "worker/prefill/stage_pass.h"

namespace runahead {
namespace {

// A row of logits, in rows of a layer's matrices, as LayerWork counts: a layer has about twelve times hidden^2 weights.
double LogitWork(const ModelConfig& config, int64_t rows) {
  const double of_a_layer = static_cast<double>(config.vocab) / (12.0 * static_cast<double>(config.hidden));
  return static_cast<double>(rows) * (1 + of_a_layer);
}

}  // namespace

// Tells the scores that are there, and enqueues the next; or it is the pass's end. A job that is scored is alone in its
// pass (MayShare).
absl::Status PrefillStage::ScoreNext(Pass& pass) {
  const Running& running = *pass.jobs[0];
  const PrefillJob& job = running.job;
  const bool scored = pass.jobs.size() == 1 && running.computed.ok();
  if (pass.scoring > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<TokenLogprobPairs> scores, scorer_->Take());
    observer_.OnPromptScores(job, job.begin() + 1 + pass.scored, scores);
    pass.scored += std::exchange(pass.scoring, 0);
  }
  pass.over = !scored || pass.scored == job.scored_tokens();
  return pass.over ? absl::OkStatus() : EnqueueScores(pass, job);
}

absl::Status PrefillStage::EnqueueScores(Pass& pass, const PrefillJob& job) {
  if (scorer_ == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(scorer_, PromptScorer::Create(device_, model_->config().vocab));
  }
  pass.scoring = std::min(PromptScorer::kRows, job.scored_tokens() - pass.scored);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < pass.scoring; ++i) ids.push_back(job.scored_id(pass.scored + i));
  progress_->SetJob(job.id, JobActivity::kComputing);
  progress_->Begin(LogitWork(model_->config(), pass.scoring));
  const auto enqueue = [&]() -> absl::Status {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor logits, pass.loop->LogitsOf(pass.scored, pass.scoring));
    return scorer_->Enqueue(*compute_, logits, ids, job.begin() + 1 + pass.scored, job.prompt_logprobs);
  };
  const absl::Status enqueued = enqueue();
  const Event done = device_.Record(*compute_);
  done.OnFire([progress = progress_](const absl::Status&) { progress->End(); });
  RUNAHEAD_RETURN_IF_ERROR(enqueued);
  Await(pass, {done, PrefillWait::For::kDevice});
  return absl::OkStatus();
}

}  // namespace runahead
