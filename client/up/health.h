// grpc.health.v1, asked from outside.
#pragma once

#include <grpcpp/channel.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// OK when the server as a whole is SERVING, UNAVAILABLE when it says otherwise, else the call's error. Blocks for at
// most `timeout`.
absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout);

}  // namespace runahead
