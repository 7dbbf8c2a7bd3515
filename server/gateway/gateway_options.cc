#include "server/gateway/gateway_options.h"

#include <grpcpp/security/credentials.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/address.h"
#include "server/base/text_file.h"

namespace runahead {
namespace {

constexpr int64_t kMostCaBytes = int64_t{1} << 20;

}  // namespace

LogLevel GatewayOptions::level() const {
  const absl::StatusOr<LogLevel> level = ParseLogLevel(log_level);
  RUNAHEAD_CHECK(level.ok());
  return *level;
}

void DeclareGatewayOptions(ConfigSchema& schema, GatewayOptions& options) {
  schema.Address("listen", &options.listen, {.any_port = true}, "Where it speaks HTTP");
  schema.Address("metrics_listen", &options.metrics_listen, {.any_port = true}, "Where /metrics and /healthz listen");
  schema.Address("router", &options.router, {.required = true}, "Where the router listens");
  schema.Bool("router_tls", &options.router_tls,
              "Speak TLS with the router, whose certificate is of an authority that this system trusts");
  schema.String("router_tls_ca", &options.router_tls_ca, {.value_name = "FILE"},
                "Speak TLS with the router, whose certificate is of one of these authorities (PEM)");
  schema.String("router_tls_server_name", &options.router_tls_server_name, {.value_name = "NAME"},
                "The name that the router's certificate must have; absent: the host of its address");
  schema.Strings("model_aliases", &options.model_aliases, {.max_items = 64},
                 "Other names that clients may call the model by");
  schema.Strings(
      "cors_origins", &options.cors_origins, {.max_items = 64},
      "Origins (https://chat.example.org) whose pages may call from a browser; * is all. Others are refused");
  schema.Strings(
      "allowed_hosts", &options.allowed_hosts, {.max_items = 64},
      "Names (chat.example.org) that requests may call this host by, beside localhost and IP addresses; * is "
      "all. Absent: none where it listens on loopback, else all");
  schema.Int("max_connections", &options.max_connections, {.min = 4, .max = 1 << 20},
             "Connections at the most; others are closed at once");
  schema.Bytes("max_body", &options.max_body, {.min = 1 << 10, .max = 1 << 30}, "Of a request");
  schema.Bytes("request_memory", &options.request_memory, {.min = 1 << 20},
               "For the bodies of requests and for answers that go out whole; what needs more is answered with 429");
  schema.Duration("drain_timeout", &options.drain_timeout, {},
                  "How long requests may go on after SIGTERM before they are ended");
  schema.String("log_level", &options.log_level, {.one_of = {"debug", "info", "warning", "error"}},
                "What is logged, with all that is graver; later SIGUSR1 makes it one level more, SIGUSR2 one less");
  schema.String("log_format", &options.log_format, {.one_of = {"text", "json"}},
                "How: text for people, or a JSON object a line");
  schema.Int("ready_fd", &options.ready_fd, {.min = -1, .max = 1 << 20},
             "File descriptor that gets one line of JSON with the addresses when the process serves; -1 for none");
  schema.FlagOnly();
  schema.Int("parent_pid", &options.parent_pid, {.min = 0, .max = 1 << 22},
             "The process that starts this one; when it ends, this one stops too; 0 for none");
  schema.FlagOnly();
}

std::vector<std::string> HostsOf(const GatewayOptions& options) {
  if (!options.allowed_hosts.empty()) return options.allowed_hosts;
  const absl::StatusOr<HostPort> listen = ParseHostPort(options.listen);
  if (listen.ok() && IsLoopback(listen->host)) return {};
  return {"*"};
}

absl::StatusOr<ChannelTls> RouterTlsOf(const GatewayOptions& options) {
  if (!options.router_tls && options.router_tls_ca.empty() && options.router_tls_server_name.empty()) {
    return ChannelTls{};
  }
  grpc::SslCredentialsOptions ssl;
  if (!options.router_tls_ca.empty()) {
    absl::StatusOr<std::string> text = ReadTextFile(options.router_tls_ca, kMostCaBytes);
    if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("router_tls_ca: ", text.status().message()));
    ssl.pem_root_certs = *std::move(text);
  }
  return ChannelTls{grpc::SslCredentials(ssl), options.router_tls_server_name};
}

}  // namespace runahead
