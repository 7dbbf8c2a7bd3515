// A second process for tests of death: starts a helper binary that lies beside the test's and speaks in lines.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "kernels/base/status_macros.h"
#include "worker/link/edge.h"

namespace runahead::testing {

// Killed and reaped on destruction.
class PeerProcess {
 public:
  PeerProcess(const std::string& binary, std::vector<std::string> arguments) {
    char self[PATH_MAX] = {};
    RUNAHEAD_CHECK(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    std::string path(self);
    path = path.substr(0, path.rfind('/') + 1) + binary;
    arguments.insert(arguments.begin(), path);
    int out[2];
    RUNAHEAD_CHECK(pipe(out) == 0);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    RUNAHEAD_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      close(out[0]);
      close(out[1]);
      execv(path.c_str(), argv.data());
      _exit(127);
    }
    close(out[1]);
    lines_ = fdopen(out[0], "r");
  }
  ~PeerProcess() {
    Kill();
    std::fclose(lines_);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // The next line that the peer prints; empty when it is gone.
  std::string ReadLine() {
    std::string line;
    for (int c; (c = std::getc(lines_)) != EOF && c != '\n';) line.push_back(static_cast<char>(c));
    return line;
  }
  // SIGKILL, and reaped: an unreaped dead process is never noticed over shared memory.
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);  // alive or unreaped until the next line: the id is still its own
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  FILE* lines_ = nullptr;
};

// A peer id as a command line argument.
inline std::string ToArgument(const PeerId& peer) {
  return std::to_string(peer.incarnation) + ":" + absl::BytesToHexString(peer.address);
}
inline PeerId FromArgument(const std::string& text) {
  const size_t colon = text.find(':');
  PeerId peer;
  RUNAHEAD_CHECK(colon != std::string::npos && absl::SimpleAtoi(text.substr(0, colon), &peer.incarnation));
  peer.address = absl::HexStringToBytes(text.substr(colon + 1));
  return peer;
}

}  // namespace runahead::testing
