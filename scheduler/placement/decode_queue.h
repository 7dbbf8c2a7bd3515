// Requests for which no decode worker had a slot or KV memory, and what is kept for them, so that none starves behind
// smaller ones that come while it waits. Pure: load is an argument.
//
// Each has a slot and room kept for it on one decode worker. Who comes later may use that worker only as far as what is
// left beside that, and all others as if nothing were kept. So what a worker's leases give back adds up for the oldest
// that waits for it, and it goes on when those that were there before it have ended, at the latest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/decode_choice.h"
#include "scheduler/placement/fair_order.h"

namespace runahead {

// For one thread at a time. A request is known by its turn; "older" is who goes first; workers are indices of the span
// that is given, always the same list.
class DecodeQueue {
 public:
  // Keeps a slot and room for the request from now on, where it fits soonest beside what is kept for older ones: where
  // there is memory for it, by the slot; else where there is most. On the same worker as before where none is better.
  // On none while there is no ready worker that could hold it. On one of `avoided`, and woken for one, only where no
  // other ready worker could.
  void Keep(const Turn& request, const DecodeNeed& need, absl::Span<const DecodeView> workers,
            const std::set<int>& avoided = {});

  // It has its lease, or has given up. Whether anything was known of it.
  bool Leave(const Turn& request) { return kept_.erase(request) > 0; }

  // The worker is gone: what it kept is kept nowhere until Keep is called again.
  void Lost(size_t worker);

  // Adds to each worker what it keeps for those that are older than the request.
  void AddKept(const Turn& request, absl::Span<DecodeView> workers) const;

  // Whether nobody older waits for the same worker.
  bool First(const Turn& request) const;
  // Of all, the oldest first.
  std::vector<Turn> Firsts() const;

  // Those who may go on by what is known of the workers, the oldest first, each slot and room given to one of them.
  std::vector<Turn> WhoFits(absl::Span<const DecodeView> workers) const;
  // Until that is so of the request by the ends of sequences alone, in seconds; infinity where it is not foreseen, or
  // memory is what it waits for.
  double FitsInS(const Turn& request, absl::Span<const DecodeView> workers) const;

 private:
  struct Kept {
    DecodeNeed need;
    std::optional<size_t> worker;
    std::set<int> avoided;
  };

  double LongestLead() const;

  std::map<Turn, Kept> kept_;
};

}  // namespace runahead
