// One child process of `runahead up`: started, heard, reaped.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/up/ready_line.h"

namespace runahead {

struct ChildSpec {
  std::string name;                    // "prefill-0", as in messages
  std::string binary;                  // path
  std::vector<std::string> args;       // without the ones that Child adds: addresses, ready_fd, parent_pid
  bool vital = false;                  // nothing works without it: Supervisor gives up where it goes on dying
  std::string listen = "127.0.0.1:0";  // host:port of its services; port 0 takes a free one, and keeps it
};

// A running child. Its stdin is empty and its stdout goes to our stderr; it is a process group of its own, so that the
// terminal's Ctrl-C reaches us alone. SIGUSR1 and SIGUSR2 are blocked in it until it waits for them. It ends when the
// thread that started it ends (see DieWithParent). Not thread-safe.
class Child {
 public:
  // Starts it on the given addresses (host:port, port 0 takes a free one). UNAVAILABLE names the binary when it cannot
  // be run.
  static absl::StatusOr<Child> Start(const ChildSpec& spec, const std::string& listen, const std::string& metrics);

  Child(Child&& other) noexcept;
  Child& operator=(Child&& other) noexcept;
  ~Child();  // kills and reaps what still runs

  pid_t pid() const { return pid_; }  // also after its end

  // To poll for POLLIN; -1 once the ready line was read or will never come.
  int ready_fd() const { return ready_fd_; }

  // Reads what has come on ready_fd() without waiting. Nothing: no whole line yet. INVALID_ARGUMENT: not a ready line,
  // or the pipe was closed without one; the child is then of no use.
  std::optional<absl::StatusOr<ReadyLine>> ReadReady();

  // Reaps it if it has ended: its wait status, for DescribeEnd (client/base/wait_status.h).
  std::optional<int> Reap();

  void Signal(int signal) const;

 private:
  Child(pid_t pid, int ready_fd) : pid_(pid), ready_fd_(ready_fd) {}
  void CloseReady();

  pid_t pid_ = -1;  // -1: moved from
  bool reaped_ = false;
  int ready_fd_ = -1;
  std::string ready_text_;
};

}  // namespace runahead
