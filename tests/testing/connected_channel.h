// Channels of tests whose calls do not wait for a connection.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>

#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "tests/testing/patience.h"

namespace runahead::testing {

// The same channel, once its server has answered. On a busy machine that takes longer than a channel gives its first
// attempt (server/rpc/channel.cc), and a call that does not wait would fail with it.
inline std::shared_ptr<grpc::Channel> Connected(std::shared_ptr<grpc::Channel> channel) {
  const auto until = std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(
                                                            absl::ToChronoNanoseconds(LongestWait()));
  RUNAHEAD_CHECK(channel->WaitForConnected(until));
  return channel;
}

}  // namespace runahead::testing
