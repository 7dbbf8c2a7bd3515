// The memory that all requests together may take in a router, from their first byte on, and its metrics.
#pragma once

#include <cstdint>

#include "server/base/byte_budget.h"
#include "server/base/clock.h"
#include "server/base/metrics.h"
#include "server/router/request_memory_metrics.h"
#include "server/rpc/arrivals.h"
#include "server/rpc/departures.h"
#include "server/rpc/message_call.h"
#include "server/rpc/received_bytes.h"

namespace runahead {

struct RequestMemoryOptions {
  int64_t bytes = int64_t{1} << 30;
  int64_t min_arrival_rate = int64_t{64} << 10;  // bytes a second; of answers as well
  int connection_streams = 1024;                 // that a connection may have open
};

// What texts take while they are tokenized, as many as LargeTextTurns lets do that at once: some 36 times their bytes.
inline constexpr int64_t kTokenizingBytes = int64_t{400} << 20;
// Of a prompt's ids, for each: here, and in messages on their way to workers.
inline constexpr int64_t kBytesPerId = 3 * sizeof(int32_t);
// Of an answer's, for each that there may be: here, as the client brought it, and in a message to the worker that goes
// on with it.
inline constexpr int64_t kBytesPerOutputId = 3 * sizeof(int32_t);

// Of what a token of the prompt is given, for itself and each alternative, while it waits for those before it, or for
// the client: a message of its own.
inline constexpr int64_t kBytesPerPromptLogprob = 96;

// Below it there is little left but that.
inline constexpr int64_t kLeastRequestMemory = int64_t{640} << 20;

// Thread-safe. A quarter is for messages on their way, kTokenizingBytes are kept for tokenizing. An eighth of the rest
// is for answers that clients have not taken, and requests that wait or run may hold what is left.
class RequestMemory {
 public:
  // `registry` and `clock` outlive this, and this the services that use it.
  RequestMemory(const RequestMemoryOptions& options, MetricRegistry& registry, Clock& clock);

  // Before the methods of the public service.
  CallDoor door() { return {.admit = nullptr, .arrivals = &arrivals_, .memory = &held_, .departures = &departures_}; }

  // Brings the metrics up to date. Called again and again by one thread.
  void Update();

 private:
  const RequestMemoryMetrics metrics_;
  ByteBudget held_;
  ReceivedBytes connections_;  // of arrivals_' thread
  Arrivals arrivals_;
  Departures departures_;
  int64_t refusals_ = 0;  // of held_, that were counted
};

}  // namespace runahead
