#include "client/up/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int kReadyFdInChild = 3;
constexpr size_t kMaxReadyBytes = 4096;  // far above two addresses

// posix_spawn's two objects, freed together.
class SpawnSettings {
 public:
  // The child writes its ready line to `ready_fd`.
  explicit SpawnSettings(int ready_fd) {
    RUNAHEAD_CHECK(posix_spawn_file_actions_init(&files) == 0 && posix_spawnattr_init(&attributes) == 0);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, ready_fd, kReadyFdInChild);
    // They would end a child that does not wait for signals yet (StopSignal): they come once it does.
    sigset_t later;
    sigemptyset(&later);
    for (const int signal : {SIGUSR1, SIGUSR2}) sigaddset(&later, signal);
    posix_spawnattr_setsigmask(&attributes, &later);
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
};

}  // namespace

absl::StatusOr<Child> Child::Start(const ChildSpec& spec, const std::string& listen, const std::string& metrics) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  // A dup2 onto itself would keep the write end's close-on-exec flag.
  if (ends[1] == kReadyFdInChild) {
    const int moved = fcntl(ends[1], F_DUPFD_CLOEXEC, kReadyFdInChild + 1);
    close(ends[1]);
    ends[1] = moved;
  }
  fcntl(ends[1], F_SETFL, 0);  // the child may block on it
  std::vector<std::string> args = {spec.binary};
  args.insert(args.end(), spec.args.begin(), spec.args.end());
  for (const std::string& arg :
       {absl::StrCat("--listen=", listen), absl::StrCat("--metrics-listen=", metrics),
        absl::StrCat("--ready-fd=", kReadyFdInChild), absl::StrCat("--parent-pid=", getpid())}) {
    args.push_back(arg);
  }
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  const SpawnSettings settings(ends[1]);
  const int error = posix_spawn(&pid, spec.binary.c_str(), &settings.files, &settings.attributes, argv.data(), environ);
  close(ends[1]);
  Child child(error == 0 ? pid : -1, ends[0]);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(spec.name, ": cannot run ", spec.binary, ": ", strerror(error)));
  }
  return child;
}

Child::Child(Child&& other) noexcept {
  *this = std::move(other);
}

Child& Child::operator=(Child&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(reaped_, other.reaped_);
  std::swap(ready_fd_, other.ready_fd_);
  std::swap(ready_text_, other.ready_text_);
  return *this;
}

Child::~Child() {
  CloseReady();
  if (pid_ < 0 || reaped_) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Child::CloseReady() {
  if (ready_fd_ >= 0) close(ready_fd_);
  ready_fd_ = -1;
}

std::optional<absl::StatusOr<ReadyLine>> Child::ReadReady() {
  while (ready_fd_ >= 0) {
    char bytes[512];
    const ssize_t got = read(ready_fd_, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return std::nullopt;
    if (got > 0) ready_text_.append(bytes, static_cast<size_t>(got));
    const size_t end = ready_text_.find('\n');
    if (end != std::string::npos) {
      CloseReady();
      return ParseReadyLine(absl::string_view(ready_text_).substr(0, end));
    }
    if (got <= 0 || ready_text_.size() > kMaxReadyBytes) {
      CloseReady();
      return absl::InvalidArgumentError("closed its ready_fd without a ready line");
    }
  }
  return std::nullopt;
}

std::optional<int> Child::Reap() {
  int wait_status = 0;
  if (pid_ < 0 || reaped_ || waitpid(pid_, &wait_status, WNOHANG) != pid_) return std::nullopt;
  reaped_ = true;
  return wait_status;
}

void Child::Signal(int signal) const {
  if (pid_ > 0 && !reaped_) kill(pid_, signal);
}

}  // namespace runahead
