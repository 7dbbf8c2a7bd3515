#include "server/rpc/channel.h"

#include <grpcpp/create_channel.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/grpc_log.h"

namespace runahead {
namespace {

std::chrono::system_clock::time_point After(absl::Duration timeout) {
  // A year stands for ever: adding the largest duration to now would overflow.
  const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(absl::ToChronoNanoseconds(bounded));
}

// An attempt to connect ends after so long, of which TCP, TLS and the server's first frame take a way there and back
// each: gRPC takes it from the "least backoff". Whoever refuses the connection is asked again much sooner.
constexpr int kConnectMs = 5000;

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const KeepAlive& keep_alive,
                                           Interceptors interceptors, const ChannelTls& tls, bool read_ahead) {
  RouteGrpcLog();
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(absl::ToInt64Milliseconds(keep_alive.time)));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(absl::ToInt64Milliseconds(keep_alive.timeout)));
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no limit, or keep-alive stops on a quiet stream
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  if (!read_ahead) args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  if (!tls.server_name.empty()) args.SetSslTargetNameOverride(tls.server_name);
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      address, tls.credentials != nullptr ? tls.credentials : grpc::InsecureChannelCredentials(), args,
      std::move(interceptors));
}

absl::Status WaitReady(grpc::Channel& channel, const std::string& address, absl::Duration timeout) {
  if (channel.WaitForConnected(After(timeout))) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no answer from ", address, " within ", absl::FormatDuration(timeout),
                                             "; is it running, and is the address right?"));
}

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  if (timeout != absl::InfiniteDuration()) context.set_deadline(After(timeout));
}

}  // namespace runahead
