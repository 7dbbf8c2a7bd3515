#include "tests/testing/test_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "kernels/base/status_macros.h"
#include "tests/testing/patience.h"

namespace runahead::testing {
namespace {

// Longer than any program under test is silent where it does what the test waits for.
constexpr absl::Duration kLongestSilence = absl::Seconds(100);

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// False at the end of the file, which is then closed.
bool ReadSome(int& fd, std::string& text) {
  char bytes[4096];
  const ssize_t got = read(fd, bytes, sizeof bytes);
  if (got > 0) {
    text.append(bytes, static_cast<size_t>(got));
    return true;
  }
  close(fd);
  fd = -1;
  return false;
}

}  // namespace

TestProcess::TestProcess(std::vector<std::string> args, const std::vector<std::string>& environment)
    : program_(absl::StrJoin(args, " ")) {
  int in[2], out[2], err[2];
  RUNAHEAD_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
  signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.emplace_back(*variable);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  RUNAHEAD_CHECK(posix_spawn_file_actions_init(&files) == 0 && posix_spawnattr_init(&attributes) == 0);
  posix_spawn_file_actions_adddup2(&files, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err[1], STDERR_FILENO);
  sigset_t set;
  sigemptyset(&set);
  posix_spawnattr_setsigmask(&attributes, &set);
  sigaddset(&set, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &set);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const std::vector<char*> argv = Pointers(args);
  const std::vector<char*> envp = Pointers(variables);
  RUNAHEAD_CHECK(posix_spawn(&pid_, argv[0], &files, &attributes, argv.data(), envp.data()) == 0);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  for (const int fd : {in[0], out[1], err[1]}) close(fd);
  in_fd_ = in[1];
  out_fd_ = out[0];
  err_fd_ = err[0];
}

TestProcess::~TestProcess() {
  for (const int fd : {in_fd_, out_fd_, err_fd_}) {
    if (fd >= 0) close(fd);
  }
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void TestProcess::Signal(int signal) const {
  RUNAHEAD_CHECK(kill(pid_, signal) == 0);
}

void TestProcess::Write(const std::string& text) {
  RUNAHEAD_CHECK(write(in_fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
}

void TestProcess::CloseInput() {
  if (in_fd_ >= 0) close(in_fd_);
  in_fd_ = -1;
}

bool TestProcess::ReadUntil(const std::function<bool()>& done) {
  const absl::Duration patience = Patience(kLongestSilence);
  while (!done()) {
    if (out_fd_ < 0 && err_fd_ < 0) return false;
    pollfd waits[] = {{out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}};  // -1 is passed over
    const int ready = poll(waits, 2, static_cast<int>(absl::ToInt64Milliseconds(patience)));
    if (ready < 0) continue;  // a signal
    if (ready == 0) {
      ADD_FAILURE() << "waited " << absl::FormatDuration(patience) << " in vain for another word of " << program_
                    << "; its output so far:\n"
                    << out_ << "\nand its errors:\n"
                    << err_;
      return false;
    }
    if (waits[0].revents != 0) ReadSome(out_fd_, out_);
    if (waits[1].revents != 0) ReadSome(err_fd_, err_);
  }
  return true;
}

bool TestProcess::ReadOutUntil(const std::string& text) {
  return ReadUntil([&] { return out_.find(text) != std::string::npos; });
}

bool TestProcess::ReadErrUntil(const std::string& text) {
  return ReadUntil([&] { return err_.find(text) != std::string::npos; });
}

int TestProcess::Wait() {
  CloseInput();
  ReadUntil([] { return false; });
  if (out_fd_ >= 0 || err_fd_ >= 0) kill(pid_, SIGKILL);  // it has said nothing for too long
  int status = 0;
  RUNAHEAD_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace runahead::testing
