// Asking another process whether it serves.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace runahead {

// One question. Holds the channel: its end, where that is the channel's last holder, must not be on a thread of gRPC,
// which would wait for itself.
class HealthCheck {
 public:
  // grpc.health.v1 of `service` (empty: the server's own). `done` is called once, on a thread of gRPC: OK when it says
  // SERVING, UNAVAILABLE when it says something else, DEADLINE_EXCEEDED after `timeout`, or the call's error. Until
  // then this object stays. Once.
  void Ask(const std::shared_ptr<grpc::Channel>& channel, absl::Duration timeout, const std::string& service,
           std::function<void(absl::Status)> done);

 private:
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, response_;
};

}  // namespace runahead
