// KV memory for one request on one decode worker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/fleet.h"
#include "server/router/sequencer.h"

namespace runahead {

// Of how many tokens, from the first on, the chain can hand X off: of all, or of none where some member's
// buffers hold its prefix only without.
int32_t MaxXTokens(const Placement& placement);

// Gives the memory back when destroyed. For one thread at a time; blocks.
class DecodeLease {
 public:
  struct Need {
    std::string request_id;
    int32_t prompt_tokens = 0;
    int32_t total_tokens = 0;  // prompt + max_tokens
    int32_t max_x_tokens = 0;  // of which the chain can hand X off (MaxXTokens)
  };

  // Asks one decode worker after the other, the one with most free memory first. RESOURCE_EXHAUSTED when all that are
  // ready are full now, or keep what they have for older tickets; OUT_OF_RANGE when no empty store could hold it;
  // UNAVAILABLE when none that could is ready, or it was lost meanwhile; `cancel`'s status. `chain` will hand off to
  // it. `fleet`, `sequencer` and `clock` must outlive the lease.
  static absl::StatusOr<std::unique_ptr<DecodeLease>> Reserve(const Need& need, const Fleet::Ticket& ticket,
                                                              absl::Span<const std::shared_ptr<const LiveWorker>> chain,
                                                              Fleet& fleet, Sequencer& sequencer, Clock& clock,
                                                              CancelToken& cancel);
  ~DecodeLease();
  DecodeLease(const DecodeLease&) = delete;
  DecodeLease& operator=(const DecodeLease&) = delete;

  // Keeps it for another 30 s. False when the worker has not answered within a second: as long as it is not given up
  // that is no reason to end anything, and it is to be asked again. UNAVAILABLE when the lease or the worker is gone.
  absl::StatusOr<bool> Renew(CancelToken& cancel);

  // Says that it is not wanted any more: what decodes on it ends at the next step. It may be said more than once.
  void GiveUp() { sequencer_.Release(worker_->index, id_); }

  const LiveWorker& worker() const { return *worker_; }
  const std::shared_ptr<const LiveWorker>& live() const { return worker_; }
  const v1::LeaseId& id() const { return id_; }
  // Of tokens [0, x_tokens()) the chain is to hand X off, of those from kv_from() on KV.
  int32_t x_tokens() const { return x_tokens_; }
  int32_t kv_from() const { return kv_from_; }

 private:
  DecodeLease(Fleet& fleet, Sequencer& sequencer, Clock& clock, std::shared_ptr<const LiveWorker> worker,
              const v1::ReserveReply& reply, int32_t tokens);

  Fleet& fleet_;
  Sequencer& sequencer_;
  Clock& clock_;
  const std::shared_ptr<const LiveWorker> worker_;
  const v1::LeaseId id_;
  const int32_t x_tokens_, kv_from_;
  const int32_t tokens_;
};

}  // namespace runahead
