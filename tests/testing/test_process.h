// A program under test, with its three standard files as pipes.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace runahead::testing {

// Used by one thread. Killed and reaped at the end of the test if it still runs.
class TestProcess {
 public:
  // `args` begins with the program's path; `environment` is added to ours, as "NAME=value".
  explicit TestProcess(std::vector<std::string> args, const std::vector<std::string>& environment = {});
  ~TestProcess();
  TestProcess(const TestProcess&) = delete;
  TestProcess& operator=(const TestProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;

  void Write(const std::string& text);  // to its stdin
  void CloseInput();

  // What it (and whoever inherited the pipes) has written so far.
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  // Reads until `done()`; false when both pipes were closed before. A process that says nothing for 100 seconds, times
  // the factor of patience.h, fails the test; it is shown what the process had said, and this returns false.
  bool ReadUntil(const std::function<bool()>& done);
  bool ReadOutUntil(const std::string& text);
  bool ReadErrUntil(const std::string& text);

  // Closes its stdin, reads all, and returns its exit code, or 128 + the signal that ended it: SIGKILL, from here,
  // where it was silent for too long.
  int Wait();

 private:
  const std::string program_;  // with its arguments
  pid_t pid_ = -1;
  int in_fd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

}  // namespace runahead::testing
