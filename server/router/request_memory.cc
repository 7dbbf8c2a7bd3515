#include "server/router/request_memory.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "kernels/base/status_macros.h"
#include "server/rpc/transport_options.h"

namespace runahead {
namespace {

// What clients have sent of calls that wait: HTTP/2 lets 64 KiB of each come, and a connection may have a thousand.
constexpr uint64_t kOtherBytes = uint64_t{64} << 20;

int64_t ArrivingBytes(const RequestMemoryOptions& options) {
  return options.bytes / 4;
}

int64_t AnswerBytes(const RequestMemoryOptions& options) {
  // Less would leave no room for several; with more, the largest chat that may be sent would never fit among the rest.
  return (options.bytes - ArrivingBytes(options) - kTokenizingBytes) / 8;
}

int64_t HeldBytes(const RequestMemoryOptions& options) {
  return options.bytes - ArrivingBytes(options) - kTokenizingBytes - AnswerBytes(options);
}

ArrivalLimits LimitsOf(const RequestMemoryOptions& options) {
  ArrivalLimits limits;
  limits.bytes = ArrivingBytes(options);
  limits.message_bytes = kMaxMessageBytes;
  limits.min_rate = options.min_arrival_rate;
  limits.other_bytes = kOtherBytes;
  limits.max_refused = static_cast<int>(std::min<int64_t>(2 * int64_t{options.connection_streams}, INT32_MAX));
  return limits;
}

DepartureLimits AnswerLimitsOf(const RequestMemoryOptions& options) {
  DepartureLimits limits;
  limits.bytes = AnswerBytes(options);
  limits.min_rate = options.min_arrival_rate;
  return limits;
}

Counter& RefusedFor(ArrivalWatcher::Refusal refusal, const RequestMemoryMetrics& metrics) {
  switch (refusal) {
    case ArrivalWatcher::Refusal::kSlow:
      return metrics.slow;
    case ArrivalWatcher::Refusal::kFull:
      return metrics.full;
    case ArrivalWatcher::Refusal::kLong:
      return metrics.too_long;
  }
  RUNAHEAD_CHECK(false);
}

ArrivalWatcher WatcherOf(const RequestMemoryMetrics& metrics) {
  ArrivalWatcher watcher;
  watcher.changed = [&metrics](int reading, int waiting, int64_t bytes) {
    metrics.reading.Set(reading);
    metrics.waiting.Set(waiting);
    metrics.arriving_bytes.Set(static_cast<double>(bytes));
  };
  watcher.refused = [&metrics](ArrivalWatcher::Refusal refusal) { RefusedFor(refusal, metrics).Increment(); };
  return watcher;
}

DepartureWatcher AnswerWatcherOf(const RequestMemoryMetrics& metrics) {
  DepartureWatcher watcher;
  watcher.changed = [&metrics](int64_t bytes) { metrics.answer_bytes.Set(static_cast<double>(bytes)); };
  watcher.cut = [&metrics](DepartureWatcher::Cut why) {
    (why == DepartureWatcher::Cut::kSlow ? metrics.answers_slow : metrics.answers_full).Increment();
  };
  return watcher;
}

}  // namespace

RequestMemory::RequestMemory(const RequestMemoryOptions& options, MetricRegistry& registry, Clock& clock)
    : metrics_(registry, {ArrivingBytes(options), HeldBytes(options), AnswerBytes(options)}),
      held_(HeldBytes(options)),
      arrivals_(
          LimitsOf(options), WatcherOf(metrics_), clock,
          [this](const std::string& peer) { return connections_.Of(peer); },
          [this](const std::string& peer) { connections_.HangUp(peer); }),
      departures_(AnswerLimitsOf(options), AnswerWatcherOf(metrics_), clock) {}

void RequestMemory::Update() {
  metrics_.held_bytes.Set(static_cast<double>(held_.taken()));
  const int64_t refusals = held_.refusals();
  metrics_.no_memory.Increment(static_cast<double>(refusals - refusals_));
  refusals_ = refusals;
}

}  // namespace runahead
