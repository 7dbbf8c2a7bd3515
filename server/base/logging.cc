#include "server/base/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "absl/strings/str_replace.h"
#include "kernels/base/mutex.h"
#include "server/base/log_text.h"

namespace runahead {
namespace {

constexpr const char* kLevelNames[] = {"debug", "info", "warning", "error"};

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

// spdlog's pattern. Of a JSON line it makes the beginning; what Write gives it is the rest.
std::string PatternOf(absl::string_view process, LogFormat format) {
  constexpr char kTime[] = "%Y-%m-%dT%H:%M:%S.%eZ";
  if (format == LogFormat::kText) return absl::StrCat(kTime, " %L %n %v");
  const std::string name = absl::StrReplaceAll(JsonOf(std::string(process)), {{"%", "%%"}});
  return absl::StrCat("{\"time\":\"", kTime, "\",\"level\":\"%l\",\"process\":", name, ",%v");
}

// Drops nothing: Log has done so.
std::shared_ptr<spdlog::logger> MakeLogger(absl::string_view process, LogFormat format) {
  auto logger =
      std::make_shared<spdlog::logger>(std::string(process), std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(PatternOf(process, format), spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::trace);
  return logger;
}

// Where lines go: replaced whole by InitLogging, so that a thread that is writing keeps the one it has.
struct Output {
  std::shared_ptr<spdlog::logger> logger;
  LogFormat format;
};
struct Current {
  std::atomic<LogLevel> level = LogLevel::kInfo;
  Mutex mu;
  Output output RUNAHEAD_GUARDED_BY(mu) = {MakeLogger("runahead", LogFormat::kText), LogFormat::kText};
};

Current& GetCurrent() {
  static Current* const current = new Current;  // never destroyed: threads may log while the process ends
  return *current;
}

Output CurrentOutput() {
  Current& current = GetCurrent();
  MutexLock lock(current.mu);
  return current.output;
}

void Write(LogLevel level, absl::string_view component, absl::string_view message,
           const std::vector<LogField>& fields) {
  const Output output = CurrentOutput();
  const bool json = output.format == LogFormat::kJson;
  output.logger->log(ToSpdlog(level),
                     json ? JsonMembers(component, message, fields) : TextLine(component, message, fields));
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (name == kLevelNames[static_cast<int>(level)]) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat("log level '", name, "' is none of: debug, info, warning, error"));
}

void InitLogging(absl::string_view process, LogLevel level, LogFormat format) {
  Output output{MakeLogger(process, format), format};
  Current& current = GetCurrent();
  current.level = level;
  MutexLock lock(current.mu);
  current.output = std::move(output);
}

bool LogEnabled(LogLevel level) {
  return level >= GetCurrent().level.load(std::memory_order_relaxed);
}

void ChangeLogLevel(LogChange change) {
  std::atomic<LogLevel>& level = GetCurrent().level;
  const int wanted = static_cast<int>(level.load()) + (change == LogChange::kMore ? -1 : 1);
  const auto now =
      static_cast<LogLevel>(std::clamp(wanted, static_cast<int>(LogLevel::kDebug), static_cast<int>(LogLevel::kError)));
  level = now;
  Write(LogLevel::kInfo, "log", absl::StrCat("the log level is ", kLevelNames[static_cast<int>(now)], " now"), {});
}

void Log(LogLevel level, absl::string_view component, absl::string_view message, const std::vector<LogField>& fields) {
  if (LogEnabled(level)) Write(level, component, message, fields);
}

}  // namespace runahead
