// grpc.health.v1, asked from outside.
#pragma once

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// OK when `service`, or the server as a whole where it is empty, is SERVING; UNAVAILABLE when it says otherwise, else
// the call's error: NOT_FOUND where there is no such service. Blocks for at most `timeout`.
absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout,
                         const std::string& service = "");

}  // namespace runahead
