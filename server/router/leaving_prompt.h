// A prompt whose answer ended with its first token, and of which a decode worker is to keep KV for prompts that begin
// alike: the hand-off goes on without the request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/byte_budget.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/coming_beginnings.h"
#include "server/router/decode_lease.h"
#include "server/router/fleet.h"
#include "server/router/known_index.h"
#include "server/router/prefill_run.h"
#include "server/task/task.h"

namespace runahead {

// For one coroutine. Gives back all that it holds, and ends what the chain still does, when destroyed.
class LeavingPrompt {
 public:
  // What the request had.
  struct Parts {
    std::vector<int32_t> ids;  // the prompt's
    std::string salt;
    ByteBudget::Lease memory;                            // for the ids
    v1::DecodeRequest request;                           // of an answer that ends with its first token
    std::unique_ptr<DecodeLease> lease;                  // on a worker that keeps prompts
    std::shared_ptr<PrefillRun> run;                     // which hands off to it
    std::unique_ptr<ComingBeginnings::Computed> coming;  // of `ids`; null: nobody waits for the prompt
    absl::Time deadline;                                 // the request's
  };

  // What is given by reference must outlive it.
  LeavingPrompt(Parts parts, KnownIndex& known, Fleet& fleet, Clock& clock);
  ~LeavingPrompt();
  LeavingPrompt(const LeavingPrompt&) = delete;
  LeavingPrompt& operator=(const LeavingPrompt&) = delete;

  // Until the worker keeps the prompt, or will not: it or the chain has failed, or `cancel` is cancelled. Once.
  Task<> Run(CancelToken& cancel);

 private:
  Parts parts_;
  KnownIndex& known_;
  Fleet& fleet_;
  Clock& clock_;
  bool left_ = false;
};

}  // namespace runahead
