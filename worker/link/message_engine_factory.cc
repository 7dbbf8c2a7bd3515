#include "worker/link/message_engine_factory.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/base/descriptor_limit.h"
#include "worker/link/tcp/tcp_engine.h"
#include "worker/link/ucx/ucx_engine.h"

namespace runahead {

absl::StatusOr<std::unique_ptr<MessageEngine>> MakeMessageEngine(const MessageEngineOptions& options) {
  if (options.transport == "tcp") {
    TcpOptions tcp;
    tcp.incarnation = options.incarnation;
    tcp.epoch = options.epoch;
    tcp.host = options.host;
    tcp.port = options.port;
    tcp.key = options.key;
    tcp.max_strangers = std::min(tcp.max_strangers, static_cast<size_t>(KeptDescriptors()) / 4);
    tcp.commands = options.commands;
    return TcpEngine::Start(tcp);
  }
  if (options.transport == "ucx") {
    return UcxEngine::Start({options.incarnation, options.epoch, "", options.host, options.port, options.key});
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(options.transport), "\" is no link transport: take tcp or ucx"));
}

}  // namespace runahead
