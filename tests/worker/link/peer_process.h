// A second process for tests of death: starts a helper binary that lies beside the test's and speaks in lines.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "tests/testing/patience.h"
#include "worker/link/edge.h"

namespace runahead::testing {

// Killed and reaped on destruction.
class PeerProcess {
 public:
  // `environment`: names and values, beside what this process has.
  PeerProcess(const std::string& binary, std::vector<std::string> arguments,
              const std::vector<std::pair<std::string, std::string>>& environment = {}) {
    char self[PATH_MAX] = {};
    RUNAHEAD_CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    std::string path(self);
    path = path.substr(0, path.rfind('/') + 1) + binary;
    arguments.insert(arguments.begin(), path);
    // Closed in other peers, or one that waits for the end of its input would wait for those too.
    int in[2], out[2];
    RUNAHEAD_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    RUNAHEAD_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execv(path.c_str(), argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = in[1];
    from_ = out[0];
  }
  ~PeerProcess() {
    Kill();
    close(to_);
    close(from_);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // The next line that the peer prints; empty when it is gone, or when `most` is over before there is a whole one.
  std::string ReadLine(absl::Duration most = LongestWait()) {
    const absl::Time deadline = absl::Now() + most;
    for (;;) {
      if (const size_t end = read_.find('\n'); end != std::string::npos) {
        const std::string line = read_.substr(0, end);
        read_.erase(0, end + 1);
        return line;
      }
      const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
      pollfd ready{from_, POLLIN, 0};
      const int count = poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
      if (count == 0 && absl::Now() >= deadline) return "";
      if (count <= 0) continue;
      char bytes[4096];
      const ssize_t size = read(from_, bytes, sizeof(bytes));
      if (size == 0 || (size < 0 && errno != EINTR)) return "";
      if (size > 0) read_.append(bytes, static_cast<size_t>(size));
    }
  }
  // For a peer that is alive.
  void WriteLine(const std::string& line) {
    const std::string whole = line + "\n";
    RUNAHEAD_CHECK(write(to_, whole.data(), whole.size()) == static_cast<ssize_t>(whole.size()));
  }
  // SIGKILL, and reaped: an unreaped dead process is never noticed over shared memory.
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);  // alive or unreaped until it is awaited: the id is still its own
    Await();
  }
  // SIGSTOP, and stopped when this returns; SIGCONT.
  void Stop() {
    kill(pid_, SIGSTOP);
    while (waitpid(pid_, nullptr, WUNTRACED) < 0 && errno == EINTR) {
    }
  }
  void Continue() { kill(pid_, SIGCONT); }
  // Waits until it has ended by itself; its exit code, or minus the signal that ended it.
  int Await() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int to_ = -1;
  int from_ = -1;
  std::string read_;  // beyond the last line
};

// A peer id as a command line argument.
inline std::string ToArgument(const PeerId& peer) {
  return std::to_string(peer.incarnation) + ":" + absl::BytesToHexString(peer.address) + ":" +
         absl::BytesToHexString(peer.device_link);
}
inline PeerId FromArgument(const std::string& text) {
  const size_t colon = text.find(':'), second = std::min(text.find(':', colon + 1), text.size());
  PeerId peer;
  RUNAHEAD_CHECK(colon != std::string::npos && absl::SimpleAtoi(text.substr(0, colon), &peer.incarnation));
  peer.address = absl::HexStringToBytes(text.substr(colon + 1, second - colon - 1));
  if (second < text.size()) peer.device_link = absl::HexStringToBytes(text.substr(second + 1));
  return peer;
}

}  // namespace runahead::testing
