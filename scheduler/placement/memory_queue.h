// Requests that were refused KV memory, and the room that decode workers keep for them, so that none starves behind
// smaller ones that come while it waits. Pure: load is an argument.
//
// Each has room kept for it on one decode worker. Who comes later may use that worker only as far as what is left
// beside that, and all others as if nothing were kept. So what a worker's leases give back adds up for the oldest that
// waits for it, and it goes on when those that were there before it have ended, at the latest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/placement/decode_choice.h"

namespace runahead {

// For one thread at a time. Requests are numbers, the older the smaller; workers are indices of the span that is given,
// always the same list.
class MemoryQueue {
 public:
  // Keeps room for `tokens` from now on, where the ready worker that could hold them has most, what is kept for older
  // ones taken off; on the same worker as before where none has more. On none while there is no such worker.
  void Keep(int64_t request, int64_t tokens, absl::Span<const DecodeView> workers);

  // It has its lease, or has given up. Whether anything was known of it.
  bool Leave(int64_t request) { return kept_.erase(request) > 0; }

  // The worker is gone: what it kept is kept nowhere until Keep is called again.
  void Lost(size_t worker);

  // Adds to each worker's kept_tokens what it keeps for those that are older than the request.
  void AddKept(int64_t request, absl::Span<DecodeView> workers) const;

  // Whether nobody older waits for the same worker.
  bool First(int64_t request) const;

  // Those for whom there is room by what is known of the workers, the oldest first, each room given to one of them.
  std::vector<int64_t> WhoFits(absl::Span<const DecodeView> workers) const;

 private:
  struct Kept {
    int64_t tokens = 0;
    std::optional<size_t> worker;
  };

  std::map<int64_t, Kept> kept_;
};

}  // namespace runahead
