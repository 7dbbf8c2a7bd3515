// One thread of another process that stands still, as it does when a driver hangs; the others run on.
#pragma once

#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace runahead::testing {

// The process's threads and their names.
inline std::map<pid_t, std::string> ThreadsOf(pid_t pid) {
  std::map<pid_t, std::string> threads;
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), gone)) {
    std::string comm;
    std::getline(std::ifstream(task.path() / "comm"), comm);
    pid_t tid = 0;
    if (absl::SimpleAtoi(task.path().filename().string(), &tid) && !comm.empty()) threads.emplace(tid, comm);
  }
  return threads;
}

// Its first thread of this name; nothing where there is none.
inline std::optional<pid_t> ThreadNamed(pid_t pid, const std::string& name) {
  for (const auto& [tid, comm] : ThreadsOf(pid)) {
    if (comm == name) return tid;
  }
  return std::nullopt;
}

// For one thread. The other one runs again when this is destroyed.
class FrozenThread {
 public:
  explicit FrozenThread(pid_t tid) : tid_(tid) {
    if (ptrace(PTRACE_SEIZE, tid_, nullptr, nullptr) != 0) {
      status_ = absl::ErrnoToStatus(errno, "ptrace of another process");
      return;
    }
    ptrace(PTRACE_INTERRUPT, tid_, nullptr, nullptr);
    int stopped = 0;
    waitpid(tid_, &stopped, __WALL);
  }
  ~FrozenThread() { ptrace(PTRACE_DETACH, tid_, nullptr, nullptr); }
  FrozenThread(const FrozenThread&) = delete;
  FrozenThread& operator=(const FrozenThread&) = delete;

  // Not OK: it cannot be frozen here, and runs.
  const absl::Status& status() const { return status_; }

 private:
  const pid_t tid_;
  absl::Status status_;
};

}  // namespace runahead::testing
