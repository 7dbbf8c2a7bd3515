// Programs that benchmarks run beside themselves.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace runahead {

[[noreturn]] inline void Die(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::exit(1);
}

// Of a clock that is the same for all processes of the machine.
inline int64_t MachineNanoseconds() {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

// A program that says a line when it serves, on descriptor kSaysOn; ends with us.
class Child {
 public:
  static constexpr int kSaysOn = 1;

  explicit Child(std::vector<std::string> words) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) Die("no pipe");
    std::vector<char*> args;
    for (std::string& word : words) args.push_back(word.data());
    args.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      dup2(ends[1], kSaysOn);
      execv(args[0], args.data());
      _exit(127);
    }
    close(ends[1]);
    char byte;
    while (read(ends[0], &byte, 1) == 1 && byte != '\n') line_ += byte;
    close(ends[0]);
    if (line_.empty()) Die(absl::StrCat(words[0], " did not start"));
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const std::string& line() const { return line_; }
  double cpu_seconds() const {
    const std::string stat = Proc("stat");
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(stat.rfind(')') + 2), ' ');
    double user = 0, system = 0;
    if (fields.size() < 13 || !absl::SimpleAtod(fields[11], &user) || !absl::SimpleAtod(fields[12], &system)) {
      Die("a process has ended");
    }
    return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  int64_t resident_bytes() const {
    const std::vector<std::string> fields = absl::StrSplit(Proc("statm"), ' ');
    int64_t pages = 0;
    if (fields.size() < 2 || !absl::SimpleAtoi(fields[1], &pages)) Die("a process has ended");
    return pages * sysconf(_SC_PAGESIZE);
  }

 private:
  std::string Proc(const char* name) const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/", name));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  pid_t pid_ = -1;
  std::string line_;
};

// `path` beside this program; empty: this program.
inline std::string Beside(const std::string& path) {
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof self);
  if (size <= 0) Die("where am I?");
  const std::string us(self, static_cast<size_t>(size));
  return path.empty() ? us : absl::StrCat(us.substr(0, us.rfind('/')), "/", path);
}

class GatewayChild {
 public:
  explicit GatewayChild(const std::string& router)
      : child({Beside("../bin/runahead-gateway"), "--listen", "127.0.0.1:0", "--router", router, "--log-level", "error",
               "--ready-fd", absl::StrCat(Child::kSaysOn)}) {
    const std::string& line = child.line();  // {"address":"127.0.0.1:1234",..
    const size_t at = line.find(':', line.find("127.0.0.1"));
    if (at == std::string::npos || (port = std::atoi(line.c_str() + at + 1)) == 0) Die(line);
  }

  Child child;
  int port = 0;
};

}  // namespace runahead
