// Asking another process whether it serves.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// grpc.health.v1 of `service` (empty: the server's own). `done` is called once, on a thread of gRPC: OK when it says
// SERVING, UNAVAILABLE when it says something else, DEADLINE_EXCEEDED after `timeout`, or the call's error.
void CheckHealthLater(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout, const std::string& service,
                      std::function<void(absl::Status)> done);

}  // namespace runahead
