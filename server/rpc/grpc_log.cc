#include "server/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "server/base/logging.h"
#include "server/base/rare_line.h"

namespace runahead {
namespace {

// "Handshake failed with fatal error SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not return a certificate."
constexpr absl::string_view kHandshakeFailed = "Handshake failed with fatal error ";

std::atomic<bool> warns_of_handshakes{false};

void OnFailedHandshake(absl::string_view message) {
  static RareLine& line = *new RareLine(absl::Minutes(1));
  const std::optional<int64_t> failed = line.Happened();
  if (!failed.has_value()) return;
  const size_t reason = message.rfind("::");
  LogWarning("tls", "handshakes failed, the last one with: ",
             reason == absl::string_view::npos ? message.substr(kHandshakeFailed.size()) : message.substr(reason + 2),
             " (", *failed, " since this was said last)");
}

void LogOfGrpc(gpr_log_func_args* args) {
  const absl::string_view message = args->message;
  const bool last_words = absl::StartsWith(message, "assertion failed");
  if (absl::StartsWith(message, kHandshakeFailed) && warns_of_handshakes) OnFailedHandshake(message);
  const LogLevel level = last_words ? LogLevel::kError : LogLevel::kDebug;
  if (LogEnabled(level)) Log(level, "grpc", message);
  if (last_words) FlushLog();
}

}  // namespace

void RouteGrpcLog() {
  static std::once_flag once;
  std::call_once(once, [] { gpr_set_log_function(LogOfGrpc); });
}

void RouteGrpcLogOfServer() {
  warns_of_handshakes = true;
  RouteGrpcLog();
}

}  // namespace runahead
