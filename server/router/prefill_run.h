// One prompt on its chain: from the places taken in the workers' queues to the last of them being free again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/decode_lease.h"
#include "server/router/fleet.h"
#include "server/router/prompt_scores.h"
#include "server/router/request_trace.h"
#include "server/router/router_metrics.h"
#include "server/router/sequencer.h"
#include "server/task/task.h"
#include "server/task/wake.h"

namespace runahead {

// What the chain's workers are told of the request.
struct PrefillOrder {
  std::string request_id;
  absl::Span<const int32_t> ids;         // the whole prompt
  const DecodeLease* lease = nullptr;    // null: no hand-off
  v1::SamplingParams sampling;           // seed set
  const v1::DrawRules* rules = nullptr;  // null: any token
  absl::Duration time_left = absl::InfiniteDuration();
  std::shared_ptr<RequestTrace> trace = nullptr;  // null: members record nothing
  std::optional<int32_t> prompt_logprobs = {};    // alternatives; absent: the prompt is not scored
};

// The StartJob of every member, head first.
std::vector<v1::StartJob> StartJobs(const PrefillOrder& order, const Placement& placement);

// Thread-safe. Held by its session and, once started, by the sequencer until every member is done.
class PrefillRun : public std::enable_shared_from_this<PrefillRun> {
 public:
  // Owns the places of `placement`. What is given must outlive the run.
  PrefillRun(Placement placement, Fleet& fleet, Sequencer& sequencer, RouterMetrics& metrics, Clock& clock);
  ~PrefillRun();  // withdraws what was not started
  PrefillRun(const PrefillRun&) = delete;
  PrefillRun& operator=(const PrefillRun&) = delete;

  const Placement& placement() const { return placement_; }

  // Sends the work out; once.
  absl::Status Start(const PrefillOrder& order) RUNAHEAD_EXCLUDES(mu_);

  // Waits for the tail's token until `until`; nothing when that has come first, or there are scores to take. Where the
  // prompt is scored it is not told before all scores were taken. The status of failed(), of the loss of
  // the decode worker that it is handed off to, which makes the token useless, or `cancel`'s. One waits at a time.
  Task<absl::StatusOr<std::optional<v1::FirstToken>>> AwaitFirstToken(absl::Time until, CancelToken& cancel)
      RUNAHEAD_EXCLUDES(mu_);

  // What the prompt's next tokens were given, in its order; nothing where they have not come, or are not asked for.
  std::optional<v1::PromptScores> TakeScores() RUNAHEAD_EXCLUDES(mu_);

  // Cancelled with the reason when a member fails or dies before all are done.
  CancelToken& failed() { return failed_; }

  // Why no first token comes, once AwaitFirstToken has failed, and which worker caused it. `worker` is null where no
  // worker did. `suspects` did not answer others: they may have died, and the news of that may not be here yet.
  struct Failure {
    JobFault fault = JobFault::kNone;
    std::shared_ptr<const LiveWorker> worker;
    std::vector<std::shared_ptr<const LiveWorker>> suspects = {};
  };
  Failure failure() RUNAHEAD_EXCLUDES(mu_);

  // Cancels what is not done.
  void Cancel() RUNAHEAD_EXCLUDES(mu_);

 private:
  // Is cancelled when the decode worker of the hand-off is lost; never, where there is no hand-off.
  std::shared_ptr<CancelToken> DecodeLost() RUNAHEAD_EXCLUDES(mu_);
  // The token, where it has come; nothing as long as it is worth waiting until `until`.
  std::optional<absl::StatusOr<std::optional<v1::FirstToken>>> Look(absl::Time until, const CancelToken& cancel,
                                                                    const CancelToken& lost) RUNAHEAD_EXCLUDES(mu_);
  void Ended(const JobOutcome& end) RUNAHEAD_EXCLUDES(mu_);
  // The place in the chain, and who has it.
  size_t PlaceOf(int worker) const;
  const std::shared_ptr<const LiveWorker>& Member(int worker) const { return placement_.chain[PlaceOf(worker)]; }
  void MemberFree(int worker) RUNAHEAD_EXCLUDES(mu_);
  // A member said how its part ended: tells Ejections, where the failure was the member's own or the decode worker's.
  void Reported(int worker, const absl::Status& said, v1::JobCause cause) RUNAHEAD_EXCLUDES(mu_);
  void Scored(int worker, const v1::PromptScores& scores) RUNAHEAD_EXCLUDES(mu_);
  // The member's scores are not what was asked for: the run has failed by its fault.
  void FailScores(int worker, const absl::Status& why) RUNAHEAD_REQUIRES(mu_);
  std::vector<WorkerPath> PathsOf(const JobOutcome& end) RUNAHEAD_EXCLUDES(mu_);
  // The workers that members of the job did not reach.
  std::vector<std::shared_ptr<const LiveWorker>> SuspectsOf(const JobOutcome& end) const RUNAHEAD_REQUIRES(mu_);

  const Placement placement_;
  Fleet& fleet_;
  Sequencer& sequencer_;
  RouterMetrics& metrics_;
  Clock& clock_;
  CancelToken failed_;
  Mutex mu_;
  Wake news_;
  bool started_ RUNAHEAD_GUARDED_BY(mu_) = false;
  uint64_t job_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const LiveWorker> decode_ RUNAHEAD_GUARDED_BY(mu_);  // with a lease
  Failure failure_ RUNAHEAD_GUARDED_BY(mu_);
  size_t unfinished_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<v1::FirstToken> first_token_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<PromptScoreOrder> scores_ RUNAHEAD_GUARDED_BY(mu_);  // absent: it is not scored
  std::optional<absl::Time> cancelled_at_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
