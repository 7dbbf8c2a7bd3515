// Log lines on stderr, as text or as JSON, an object a line:
//   2026-01-31T12:00:00.000Z W prefill-0 [link] message name=value
//   {"time":"2026-01-31T12:00:00.000Z","level":"warning","process":"prefill-0","component":"link","message":"message",
//    "name":"value"}
// Thread-safe; callable before InitLogging and at any time after it. Who logs never waits for who reads the log: from
// InitLogging on one thread writes all lines (server/base/log_writer.h), and what comes faster than the log is read is
// dropped, counted, and said in the log.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace runahead {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// "debug", "info", "warning" or "error".
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

// What a line says besides its message; lists and pairs keep their order.
using LogValue = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>,
                              std::vector<std::pair<std::string, double>>>;
struct LogField {
  std::string name;  // a word: not one of those that every JSON line has
  LogValue value;
};

// Names the process in every line from now on and drops what is below `level`.
void InitLogging(absl::string_view process, LogLevel level, LogFormat format = LogFormat::kText);

bool LogEnabled(LogLevel level);

// One level more or less, as far as there are any. A line says which it is then, whatever is dropped.
enum class LogChange { kMore, kLess };
void ChangeLogLevel(LogChange change);

// Writes one line, unless the level is off. `component` is the part that speaks ("link", "sequencer"). Whatever the
// text holds, control characters and bytes that are no UTF-8 too, it is one line, and as JSON a valid one: text from
// outside cannot forge lines.
void Log(LogLevel level, absl::string_view component, absl::string_view message,
         const std::vector<LogField>& fields = {});

// Waits until what was logged before is written, for at most kLogFlushTime. A process does so by itself when it exits;
// one that ends in another way (_exit, abort) calls this first.
inline constexpr absl::Duration kLogFlushTime = absl::Seconds(1);
void FlushLog();

// Lines that were dropped since the process began.
int64_t DroppedLogLines();

// Takes what absl::StrCat takes; nothing is formatted when the level is off.
template <typename... Args>
void LogDebug(absl::string_view component, const Args&... args) {
  if (LogEnabled(LogLevel::kDebug)) Log(LogLevel::kDebug, component, absl::StrCat(args...));
}
template <typename... Args>
void LogInfo(absl::string_view component, const Args&... args) {
  if (LogEnabled(LogLevel::kInfo)) Log(LogLevel::kInfo, component, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(absl::string_view component, const Args&... args) {
  if (LogEnabled(LogLevel::kWarning)) Log(LogLevel::kWarning, component, absl::StrCat(args...));
}
template <typename... Args>
void LogError(absl::string_view component, const Args&... args) {
  if (LogEnabled(LogLevel::kError)) Log(LogLevel::kError, component, absl::StrCat(args...));
}

}  // namespace runahead
