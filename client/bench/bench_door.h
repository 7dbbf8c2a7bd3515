// What requests of a load go to.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "client/bench/bench_request.h"

namespace runahead {

// What a server says of an answer when it has ended, as far as it does.
struct AnswerCounts {
  std::optional<int64_t> input_tokens = std::nullopt;
  std::optional<int64_t> output_tokens = std::nullopt;
  int64_t cached_tokens = 0;  // of the input, those whose KV was there from an earlier request
};

// Hears one answer, on threads of the door, one call after the other. Must not block.
class AnswerHearer {
 public:
  virtual ~AnswerHearer() = default;
  // Tokens have come, in one message: how many of them, or 1 where the door does not know.
  virtual void OnTokens(int64_t tokens) = 0;
  // The last call, exactly once. CANCELLED behind Cancel.
  virtual void OnEnd(const absl::Status& status, const AnswerCounts& counts) = 0;
};

// Thread-safe.
class BenchDoor {
 public:
  virtual ~BenchDoor() = default;
  // Sends a request, and does not wait for its answer: so as many are under way as one likes, on few threads.
  virtual void Ask(const BenchRequest& request, std::shared_ptr<AnswerHearer> hearer) = 0;
  // Ends all that are under way, and all that are asked later.
  virtual void Cancel() = 0;
};

}  // namespace runahead
