// What a port counts of its connections.
#pragma once

#include <array>
#include <string>

#include "server/base/metrics.h"

namespace runahead {

// Why a connection was not kept: there were as many as may be, or as many of its address as may be, or too few
// descriptors were left.
enum class ConnectionRefusal { kLimit, kAddress, kDescriptors };
inline constexpr size_t kConnectionRefusals = 3;

// "limit", "address" or "descriptors".
const char* ConnectionRefusalName(ConnectionRefusal refusal);

struct ConnectionMetrics {
  // `port` is "grpc" or "metrics". `registry` must outlive this.
  ConnectionMetrics(MetricRegistry& registry, const std::string& port);

  Counter& refused(ConnectionRefusal why) const { return *refused_[static_cast<size_t>(why)]; }

  Gauge& open;
  Gauge& limit;  // of those that may be open

 private:
  std::array<Counter*, kConnectionRefusals> refused_;
};

}  // namespace runahead
