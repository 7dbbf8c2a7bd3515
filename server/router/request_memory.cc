#include "server/router/request_memory.h"

#include <memory>

#include "server/rpc/received_bytes.h"
#include "server/rpc/transport_options.h"

namespace runahead {
namespace {

int64_t ArrivingBytes(const RequestMemoryOptions& options) {
  return options.bytes / 4;
}

int64_t HeldBytes(const RequestMemoryOptions& options) {
  return options.bytes - ArrivingBytes(options) - kTokenizingBytes;
}

ArrivalLimits LimitsOf(const RequestMemoryOptions& options) {
  ArrivalLimits limits;
  limits.bytes = ArrivingBytes(options);
  limits.message_bytes = kMaxMessageBytes;
  limits.min_rate = options.min_arrival_rate;
  return limits;
}

ArrivalWatcher WatcherOf(const RequestMemoryMetrics& metrics) {
  ArrivalWatcher watcher;
  watcher.changed = [&metrics](int reading, int waiting) {
    metrics.reading.Set(reading);
    metrics.waiting.Set(waiting);
    metrics.arriving_bytes.Set(static_cast<double>(reading) * kMaxMessageBytes);
  };
  watcher.refused = [&metrics](ArrivalWatcher::Refusal refusal) {
    (refusal == ArrivalWatcher::Refusal::kSlow ? metrics.slow : metrics.full).Increment();
  };
  return watcher;
}

Arrivals::Received ReceivedByKernel() {
  return [bytes = std::make_shared<ReceivedBytes>()](const std::string& peer) { return bytes->Of(peer); };
}

}  // namespace

RequestMemory::RequestMemory(const RequestMemoryOptions& options, MetricRegistry& registry, Clock& clock)
    : metrics_(registry, ArrivingBytes(options), HeldBytes(options)),
      held_(HeldBytes(options)),
      arrivals_(LimitsOf(options), WatcherOf(metrics_), clock, ReceivedByKernel()) {}

void RequestMemory::Update() {
  metrics_.held_bytes.Set(static_cast<double>(held_.taken()));
  const int64_t refusals = held_.refusals();
  metrics_.no_memory.Increment(static_cast<double>(refusals - refusals_));
  refusals_ = refusals;
}

}  // namespace runahead
