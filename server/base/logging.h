// Log lines on stderr: "2026-01-31T12:00:00.000Z W prefill-0 [link] message". Thread-safe; callable before
// InitLogging and at any time after it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace runahead {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error".
absl::StatusOr<LogLevel> ParseLogLevel(absl::string_view name);

// Names the process in every line from now on and drops what is below `level`.
void InitLogging(absl::string_view process, LogLevel level);

bool LogEnabled(LogLevel level);

// Writes one line. `component` is the part that speaks ("link", "sequencer"). Control characters in `message` are
// escaped, so that text from outside cannot forge lines.
void Log(LogLevel level, absl::string_view component, absl::string_view message);

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
