#include "server/base/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_replace.h"
#include "kernels/base/mutex.h"
#include "server/base/log_text.h"
#include "server/base/log_writer.h"

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

constexpr spdlog::pattern_time_type kUtc = spdlog::pattern_time_type::utc;

// Gives lines to the writer. Its lock is held while a line is put together, never while one is written.
class WriterSink final : public spdlog::sinks::sink {
 public:
  explicit WriterSink(LogWriter& writer) : writer_(writer) {}

  void log(const spdlog::details::log_msg& message) override RUNAHEAD_EXCLUDES(mu_) {
    spdlog::memory_buf_t line;
    MutexLock lock(mu_);
    formatter_->format(message, line);
    writer_.Append(absl::string_view(line.data(), line.size()), message.level >= spdlog::level::err);
  }
  void flush() override {}
  void set_pattern(const std::string& pattern) override {
    set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern, kUtc));
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    formatter_ = std::move(formatter);
  }

 private:
  LogWriter& writer_;
  Mutex mu_;
  std::unique_ptr<spdlog::formatter> formatter_ RUNAHEAD_GUARDED_BY(mu_) =
      std::make_unique<spdlog::pattern_formatter>();
};

// Drops nothing: Log has done so.
std::shared_ptr<spdlog::logger> MakeLogger(absl::string_view process, LogFormat format, spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>(std::string(process), std::move(sink));
  logger->set_pattern(PatternOf(process, format), kUtc);
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
  std::unique_ptr<LogWriter> writer RUNAHEAD_GUARDED_BY(mu);  // from the first InitLogging on, for good
  // Before InitLogging lines are written at once.
  Output output RUNAHEAD_GUARDED_BY(mu) = {
      MakeLogger("runahead", LogFormat::kText, std::make_shared<spdlog::sinks::stderr_sink_mt>()), LogFormat::kText};
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

// What spdlog's pattern puts time, level and process before.
std::string LineOf(LogFormat format, absl::string_view component, absl::string_view message,
                   const std::vector<LogField>& fields) {
  return format == LogFormat::kJson ? JsonMembers(component, message, fields) : TextLine(component, message, fields);
}

void Write(LogLevel level, absl::string_view component, absl::string_view message,
           const std::vector<LogField>& fields) {
  const Output output = CurrentOutput();
  output.logger->log(ToSpdlog(level), LineOf(output.format, component, message, fields));
}

// The line in the place of `dropped` others.
std::string NoticeOfDropped(int64_t dropped) {
  const Output output = CurrentOutput();
  const std::string text = LineOf(
      output.format, "log", "lines are missing here: they came faster than the log was read", {{"lines", dropped}});
  spdlog::memory_buf_t line;
  spdlog::pattern_formatter formatter(PatternOf(output.logger->name(), output.format), kUtc);
  formatter.format(spdlog::details::log_msg(output.logger->name(), spdlog::level::warn, text), line);
  return std::string(line.data(), line.size());
}

LogWriter& MakeWriter() {
  Current& current = GetCurrent();
  MutexLock lock(current.mu);
  if (current.writer == nullptr) {
    current.writer = std::make_unique<LogWriter>(STDERR_FILENO, NoticeOfDropped);
    std::atexit(FlushLog);
  }
  return *current.writer;
}

// Null before InitLogging.
LogWriter* CurrentWriter() {
  Current& current = GetCurrent();
  MutexLock lock(current.mu);
  return current.writer.get();
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (name == kLevelNames[static_cast<int>(level)]) return level;
  }
  return absl::InvalidArgumentError(absl::StrCat("log level '", name, "' is none of: debug, info, warning, error"));
}

void InitLogging(absl::string_view process, LogLevel level, LogFormat format) {
  Output output{MakeLogger(process, format, std::make_shared<WriterSink>(MakeWriter())), format};
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

void FlushLog() {
  LogWriter* const writer = CurrentWriter();
  if (writer != nullptr) writer->Flush(kLogFlushTime);
}

int64_t DroppedLogLines() {
  const LogWriter* const writer = CurrentWriter();
  return writer != nullptr ? writer->dropped() : 0;
}

}  // namespace runahead
