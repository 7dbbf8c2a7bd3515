#include "server/base/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/str_format.h"
#include "kernels/base/mutex.h"

namespace runahead {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger> MakeLogger(absl::string_view process, LogLevel level) {
  auto logger =
      std::make_shared<spdlog::logger>(std::string(process), std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %L %n %v", spdlog::pattern_time_type::utc);
  logger->set_level(ToSpdlog(level));
  return logger;
}

// Replaced whole by InitLogging, so that a thread that is writing keeps the one it has.
struct Current {
  Mutex mu;
  std::shared_ptr<spdlog::logger> logger RUNAHEAD_GUARDED_BY(mu) = MakeLogger("runahead", LogLevel::kInfo);
};

Current& GetCurrent() {
  static Current* const current = new Current;  // never destroyed: threads may log while the process ends
  return *current;
}

std::shared_ptr<spdlog::logger> Logger() {
  Current& current = GetCurrent();
  MutexLock lock(current.mu);
  return current.logger;
}

std::string EscapeControl(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(&out, "\\x%02x", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(absl::StrCat("log level '", name, "' is none of: debug, info, warning, error"));
}

void InitLogging(absl::string_view process, LogLevel level) {
  auto logger = MakeLogger(process, level);
  Current& current = GetCurrent();
  MutexLock lock(current.mu);
  current.logger = std::move(logger);
}

bool LogEnabled(LogLevel level) {
  return Logger()->should_log(ToSpdlog(level));
}

void Log(LogLevel level, absl::string_view component, absl::string_view message) {
  Logger()->log(ToSpdlog(level), absl::StrCat("[", component, "] ", EscapeControl(message)));
}

}  // namespace runahead
