#include "server/rpc/transport_limits.h"

#include <grpcpp/resource_quota.h>

namespace runahead {

void SetTransportLimits(grpc::ServerBuilder& builder, const TransportLimits& limits) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.connection_streams);
  if (!limits.read_ahead) builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  grpc::ResourceQuota quota("connections");
  quota.Resize(static_cast<size_t>(limits.buffers));
  builder.SetResourceQuota(quota);
}

}  // namespace runahead
