#include "worker/prefill/job.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"

namespace runahead {

struct JobStop::State {
  const EventSource fired;
  mutable Mutex mu;
  std::optional<JobEnd> reason RUNAHEAD_GUARDED_BY(mu);
};

JobStop::JobStop() : state_(std::make_shared<State>()) {}

void JobStop::Fire(JobCause cause, const absl::Status& why) const {
  {
    MutexLock lock(state_->mu);
    if (state_->reason.has_value()) return;
    state_->reason = JobEnd{why, cause};
  }
  state_->fired.Fire(why);
}

Event JobStop::event() const {
  return state_->fired.event();
}

std::optional<JobEnd> JobStop::reason() const {
  MutexLock lock(state_->mu);
  return state_->reason;
}

namespace {

// Nothing where it is fine.
std::string WrongScores(const PrefillJob& job, int64_t vocab) {
  if (job.prompt_logprobs < -1 || job.prompt_logprobs > kMostLogprobs) {
    return absl::StrCat("prompt_logprobs: ", job.prompt_logprobs, " is not in [0, ", kMostLogprobs, "]");
  }
  if (job.prompt_logprobs < 0 || job.tail() || (job.next_id >= 0 && job.next_id < vocab)) return "";
  return absl::StrCat("next_id: token ", job.next_id, " is not in [0, ", vocab, ")");
}

}  // namespace

absl::Status CheckJob(const PrefillJob& job, int64_t context_length, int64_t vocab) {
  auto refuse = [&](auto... what) { return absl::InvalidArgumentError(absl::StrCat("job ", job.id, ": ", what...)); };
  if (job.bounds.size() < 2 || job.part < 0 || job.part >= job.parts()) {
    return refuse("part ", job.part, " is not one of ", static_cast<int64_t>(job.bounds.size()) - 1, " parts");
  }
  for (size_t i = 1; i < job.bounds.size(); ++i) {
    if (job.bounds[i] <= job.bounds[i - 1]) return refuse("bounds: part ", i - 1, " has no token");
  }
  if (job.bounds.front() < 0 || job.bounds.back() > context_length) {
    return refuse("bounds: ", job.bounds.back(), " tokens do not fit a context of ", context_length);
  }
  if (job.interleave && (job.parts() > 1 || job.prefix != nullptr)) return refuse("one that waits is not interleaved");
  if (job.bounds.front() > 0 && IsTsp(job.schedule)) return refuse("only a chain has a prefix");
  const int64_t expected = job.tail() ? job.end() : job.tokens();
  if (static_cast<int64_t>(job.ids.size()) != expected) {
    return refuse("ids: ", job.ids.size(), " where the part needs ", expected);
  }
  for (int32_t id : job.ids) {
    if (id < 0 || id >= vocab) return refuse("ids: token ", id, " is not in [0, ", vocab, ")");
  }
  if ((job.part > 0) != (job.predecessor != nullptr)) return refuse("part ", job.part, " and its predecessor disagree");
  if (job.tail() != (job.successor == nullptr)) return refuse("part ", job.part, " and its successor disagree");
  if (job.part == 0 && job.bounds[0] > 0 && job.prefix == nullptr) {
    return refuse("bounds: KV of the ", job.bounds[0],
                  " tokens before the first part comes from a lease, and there is none");
  }
  if (job.prefix != nullptr && (job.part > 0 || job.bounds[0] == 0)) return refuse("bounds and prefix disagree");
  if (job.x_tokens < 0 || job.x_tokens > job.bounds.back()) {
    return refuse("x_tokens: ", job.x_tokens, " is not in [0, ", job.bounds.back(), "], the prompt's tokens");
  }
  if (job.x_tokens > 0 && !job.lease.has_value()) return refuse("x_tokens: X goes nowhere without a lease");
  if (job.kv_from < 0 || job.kv_from > job.x_tokens) {
    return refuse("kv_from: ", job.kv_from, " is not in [0, ", job.x_tokens, "], the tokens of which X is handed off");
  }
  if (const std::string wrong = WrongScores(job, vocab); !wrong.empty()) return refuse(wrong);
  return absl::OkStatus();
}

}  // namespace runahead
