// KV memory for one request on one decode worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/fleet_queue.h"
#include "server/router/sequencer.h"
#include "server/task/task.h"

namespace runahead {

// Of how many tokens, from the first on, the chain can hand X off: of all, or of none where some member's
// buffers hold its prefix only without, or it begins behind known tokens.
int32_t MaxXTokens(const Placement& placement);

// Whether the worker has KV of a whole prompt for others, or for their chains, once that is handed off and decoded.
// Where windows hide rows, its last token cannot be computed anew behind that.
bool KeepsPrompts(const LiveWorker& worker);

// By which prompts may begin with one that is computed for the worker now; none where it keeps no prompts.
KnownWays WaysOfPrompt(const LiveWorker& worker);

// Whether a worker is there is for its connection to judge, which gives a silent one up sooner: then the call ends.
// This is for one that answers pings and not Reserve.
inline constexpr absl::Duration kReservePatience = absl::Seconds(6);

// Gives the memory back when destroyed. For one thread at a time.
class DecodeLease {
 public:
  struct Need {
    std::string request_id;
    int32_t prompt_tokens = 0;
    int32_t total_tokens = 0;  // prompt + max_tokens
    int32_t max_x_tokens = 0;  // of which the chain can hand X off (MaxXTokens)
    absl::Duration lead = {};  // predicted, until its KV has come
    // Prompt and expected output: the lease may begin small, and grow. Absent: memory for all of it is wanted at once.
    std::optional<int32_t> expected_tokens = {};
    bool parked_first = false;  // where memory gets short, before others
    // The sequence runs on another decode worker, and KV of so many of its tokens comes from there, at most. Only
    // workers that take such sequences are asked.
    std::optional<int32_t> arriving_tokens = {};
    absl::Duration patience = kReservePatience;  // with each worker
    bool avoid_silent = false;  // the ticket avoids those who did not answer in time (FleetQueue::Avoid)
    std::string salt = {};      // only prompts with the same know what is kept of the sequence
    bool not_kept = false;      // nothing is kept of it
    bool keeps = false;         // only workers are asked that keep the prompt for others (KeepsPrompts)
    // Only one worker is asked, and only for a lease with KV of so many of the prompt's first tokens, or more. It
    // computes the others; `rest_handed`: a chain does, and KV of exactly so many is to be there.
    struct Known {
      std::shared_ptr<const LiveWorker> at;
      int32_t least_tokens = 0;
      absl::Span<const int32_t> prompt = {};  // outlives the call
      bool rest_handed = false;
    };
    std::optional<Known> known = {};

    DecodeNeed of_worker() const {
      return {total_tokens, absl::ToDoubleSeconds(lead), expected_tokens.value_or(total_tokens)};
    }
  };

  // Asks one decode worker after the other, as FleetQueue::RankDecode ranks them. RESOURCE_EXHAUSTED when all that are
  // ready have no slot or no memory now, or keep what they have for older tickets; OUT_OF_RANGE when no empty store
  // could hold it; UNAVAILABLE when none that could is ready, or it was lost meanwhile, FAILED_PRECONDITION when none
  // takes sequences that run elsewhere, or keeps prompts where that is wanted; `cancel`'s status. With `known`, what
  // that worker said, NOT_FOUND where it does not have as much, or RESOURCE_EXHAUSTED or UNAVAILABLE where it may not
  // be asked now. `chain` will hand off to it. `queue`, `fleet`, `sequencer` and `clock` must outlive the lease.
  static Task<absl::StatusOr<std::unique_ptr<DecodeLease>>> Reserve(
      const Need& need, const FleetQueue::Ticket& ticket, absl::Span<const std::shared_ptr<const LiveWorker>> chain,
      FleetQueue& queue, Fleet& fleet, Sequencer& sequencer, Clock& clock, CancelToken& cancel);
  ~DecodeLease();
  DecodeLease(const DecodeLease&) = delete;
  DecodeLease& operator=(const DecodeLease&) = delete;

  // Keeps it for another 30 s. False when the worker has not answered within a second: as long as it is not given up
  // that is no reason to end anything, and it is to be asked again. UNAVAILABLE when the lease or the worker is gone.
  Task<absl::StatusOr<bool>> Renew(CancelToken& cancel);

  // The fleet learns how long leases are held of those that tokens are asked of.
  void Decodes() { decodes_ = true; }
  // The sequence of `from`, which is given back next, goes on here: for how long leases are held the two count as one.
  void GoesOnFor(DecodeLease& from) {
    taken_ = from.taken_;
    from.decodes_ = false;
  }

  // Says that it is not wanted any more: what decodes on it ends at the next step. It may be said more than once.
  void GiveUp() { sequencer_.Release(worker_->index, id_); }

  const LiveWorker& worker() const { return *worker_; }
  const std::shared_ptr<const LiveWorker>& live() const { return worker_; }
  const v1::LeaseId& id() const { return id_; }
  // Of tokens [0, x_tokens()) the chain is to hand X off, of those from kv_from() on KV.
  int32_t x_tokens() const { return x_tokens_; }
  int32_t kv_from() const { return kv_from_; }
  // Of the prompt's first tokens, those whose KV was there when it was reserved, and of these those that were an
  // answer's. 0 unless that was asked for.
  int32_t known_tokens() const { return known_tokens_; }
  int32_t known_output_tokens() const { return known_output_tokens_; }
  // By how many seconds each step is expected to take longer because these have no X; 0: by nothing, or nobody knows.
  double lost_recompute_s() const { return lost_recompute_s_; }

 private:
  DecodeLease(Fleet& fleet, Sequencer& sequencer, Clock& clock, std::shared_ptr<const LiveWorker> worker,
              const v1::ReserveReply& reply, int32_t tokens);

  Fleet& fleet_;
  Sequencer& sequencer_;
  Clock& clock_;
  const std::shared_ptr<const LiveWorker> worker_;
  const v1::LeaseId id_;
  const int32_t x_tokens_, kv_from_;
  const int32_t known_tokens_, known_output_tokens_;
  const double lost_recompute_s_;
  const int32_t tokens_;  // that it counts at its worker
  absl::Time taken_;
  bool decodes_ = false;
};

}  // namespace runahead
