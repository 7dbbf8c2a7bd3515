// Log lines that come to mind under a lock and are said after it, so that nobody who waits for the lock waits for them:
//   LogLater later;  // before the lock, so that it ends after it
//   MutexLock lock(mu_);
//   later.Info("registry", name, " joined");
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/base/logging.h"

namespace runahead {

// Says what it collected, in order, when it is destroyed. Not thread-safe: a local, or guarded by the lock.
class LogLater {
 public:
  LogLater() = default;
  ~LogLater() {
    for (const Line& line : lines_) Log(line.level, line.component, line.message);
  }
  LogLater(const LogLater&) = delete;
  LogLater& operator=(const LogLater&) = delete;

  // As LogInfo and LogWarning.
  template <typename... Args>
  void Info(absl::string_view component, const Args&... args) {
    Add(LogLevel::kInfo, component, args...);
  }
  template <typename... Args>
  void Warning(absl::string_view component, const Args&... args) {
    Add(LogLevel::kWarning, component, args...);
  }

  // Collects what `other` has collected, which says nothing any more.
  void Take(LogLater& other) {
    for (Line& line : other.lines_) lines_.push_back(std::move(line));
    other.lines_.clear();
  }

 private:
  struct Line {
    LogLevel level;
    std::string component, message;
  };
  template <typename... Args>
  void Add(LogLevel level, absl::string_view component, const Args&... args) {
    if (LogEnabled(level)) lines_.push_back({level, std::string(component), absl::StrCat(args...)});
  }

  std::vector<Line> lines_;
};

}  // namespace runahead
