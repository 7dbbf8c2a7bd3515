#include "server/router/leaving_prompt.h"

#include <utility>

#include "absl/status/status.h"
#include "server/router/decode_stream.h"
#include "server/router/worker_failure.h"

namespace runahead {

LeavingPrompt::LeavingPrompt(Parts parts, KnownIndex& known, Fleet& fleet, Clock& clock)
    : parts_(std::move(parts)), known_(known), fleet_(fleet), clock_(clock) {}

// First nothing is written to the lease any more, then it is given back. Those that wait for the prompt look last.
LeavingPrompt::~LeavingPrompt() {
  if (!left_) parts_.run->Cancel();
  parts_.run.reset();
  parts_.lease.reset();
}

// The worker draws nothing: the answer is at its end. Its call ends once the prompt's KV is in, and kept.
Task<> LeavingPrompt::Run(CancelToken& cancel) {
  const LiveWorker& worker = parts_.lease->worker();
  const absl::Duration left =
      parts_.deadline == absl::InfiniteFuture() ? absl::InfiniteDuration() : parts_.deadline - clock_.Now();
  DecodeStream stream(*worker.decode, std::move(parts_.request), left);
  const auto stop = [&stream] { stream.Cancel(); };
  const CancelToken::Subscription on_cancel = cancel.OnCancel(stop), on_lost = worker.lost->OnCancel(stop),
                                  on_failed = parts_.run->failed().OnCancel(stop);
  v1::DecodeReply none;
  while (co_await stream.Read(none, clock_)) {
  }
  const absl::Status ended = co_await stream.Finish();
  left_ = ended.ok();
  if (left_) known_.Learn(worker, parts_.salt, parts_.ids);
  if (left_ || IsToBlame(ended)) fleet_.ejections().Judge(WorkerRole::kDecode, worker.index, ended);
}

}  // namespace runahead
