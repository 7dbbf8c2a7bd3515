// Which decode worker takes a request. Pure: load is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/placement/capacity.h"

namespace runahead {

// The worker does not say how many slots it has: it takes as many sequences as anybody wants.
inline constexpr int64_t kSlotsUntold = 0;

// What a request needs of a decode worker.
struct DecodeNeed {
  int64_t tokens = 0;  // of KV memory, at most: prompt + max_tokens
  double lead_s = 0;   // predicted, until its KV has come: a slot that is free by then does
  // Of `tokens`, what is expected to be used, of prompt and output.
  int64_t expected_tokens = tokens;

  // What a lease counts of a worker's tokens, where leases grow and where they do not.
  int64_t counted(bool grows) const { return grows ? expected_tokens : tokens; }
};

// A decode worker as the router sees it.
struct DecodeView {
  bool ready = false;
  int64_t capacity_tokens = kNeverReached;  // KV that the empty store holds; of one that is not ready: as last known
  int64_t reserved_tokens = 0;              // of it, what the router's leases have taken
  int leases = 0;
  int64_t kept_tokens = 0;  // of it, what is kept for requests that go first (decode_queue.h)
  int64_t slots = kSlotsUntold;
  int64_t taken_slots = 0;          // by leases, those that are asked for among them
  int64_t kept_slots = 0;           // kept as tokens are
  std::vector<double> ends_s = {};  // predicted, until sequences that have a slot end at the latest, rising
  bool grows = true;                // it has said that its leases begin small; else each has memory for all it may use

  // What looks free; below 0 where more is kept than is free.
  int64_t room() const { return capacity_tokens - reserved_tokens - kept_tokens; }
  // Until a slot is free for one request more; 0 when there is one, infinity when that is not known.
  double slot_s() const;
  // Whether the empty store holds it, however long its answer gets.
  bool may_hold(const DecodeNeed& need) const { return ready && capacity_tokens >= need.tokens; }
  bool has_room(const DecodeNeed& need) const { return room() >= need.counted(grows); }
  bool fits(const DecodeNeed& need) const { return may_hold(need) && has_room(need) && slot_s() <= need.lead_s; }
  // Of its slots, the share that is taken or kept; 0 where it says nothing of them.
  double share() const;
};

// A request whose prompt is computed for a worker, behind which others are to begin there.
struct ComingLease {
  DecodeNeed need;            // the request's
  bool reserved = false;      // its memory is among what is taken there; its slot is in any case
  bool returned = false;      // slot and memory are given back once the prompt is there
  int64_t shared_tokens = 0;  // of its memory, what it shares with whoever begins behind it: whole blocks
  int64_t waiting = 0;        // others that wait for the prompt already, and need as much as one more does
  double in_s = 0;            // until it is there
};

// Whether the worker has a slot and memory for one more once the prompt is there, as far as can be told: beside what is
// taken and kept there now, and all that wait already.
bool HasRoomBehind(DecodeView worker, const DecodeNeed& need, const ComingLease& coming);

// Whether one that is ready and not of `avoided`, indices, may hold the request.
bool OthersMayHold(const std::set<int>& avoided, const DecodeNeed& need, absl::Span<const DecodeView> workers);
// As if those of `avoided`, indices, were not ready, where another one that is may hold the request.
void LeaveOut(const std::set<int>& avoided, const DecodeNeed& need, absl::Span<DecodeView> workers);

// Indices of the workers to ask for a lease, the best first: whose slots have the smallest share taken, then most room,
// then fewest leases, then the first in the list. A worker whose memory looks full is listed too, behind those that
// have room, for only it knows; but not where room is kept for others and not as much is left beside it. One whose
// slots are taken for longer than `lead_s` is not listed.
// RESOURCE_EXHAUSTED when all that could hold it have no slot, or keep their room for others; UNAVAILABLE when none
// that could hold it is ready; OUT_OF_RANGE, naming both sizes, when no empty store of the list could hold it, were it
// ready.
absl::StatusOr<std::vector<size_t>> RankDecodeWorkers(const DecodeNeed& need, absl::Span<const DecodeView> workers);

}  // namespace runahead
