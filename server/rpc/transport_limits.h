// What connections may take of a gRPC server, whatever comes over them.
#pragma once

#include <grpcpp/server_builder.h>

#include <cstdint>

namespace runahead {

struct TransportLimits {
  int connection_streams = 8192;         // calls that a connection may have open; one that has more is closed
  int64_t buffers = int64_t{512} << 20;  // bytes of all connections' buffers; when they are full, calls are ended
  // Whether more of a call may come than 64 KiB before somebody asks for it. Faster on long ways, and for each call
  // megabytes that nobody asked for.
  bool read_ahead = true;
};

void SetTransportLimits(grpc::ServerBuilder& builder, const TransportLimits& limits);

}  // namespace runahead
