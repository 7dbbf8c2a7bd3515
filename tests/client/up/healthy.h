// Whether a started process serves.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/base/health.h"
#include "server/rpc/channel.h"

namespace runahead::testing {

// Waits until `address` answers, and asks its health service.
inline absl::Status Healthy(const std::string& address) {
  const auto channel = MakeChannel(address);
  const absl::Status ready = WaitReady(*channel, address, absl::Minutes(1));
  return ready.ok() ? CheckHealth(channel, absl::Minutes(1)) : ready;
}

}  // namespace runahead::testing
