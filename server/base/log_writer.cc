#include "server/base/log_writer.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"

namespace runahead {
namespace {

// A pipe that is ready takes so much at once, and never mixes it with what others write.
constexpr size_t kBatchBytes = PIPE_BUF;

// What a line takes besides its text.
constexpr size_t kLineOverhead = 64;

size_t SizeOf(absl::string_view line) {
  return line.size() + kLineOverhead;
}

// The thread takes no signal: the process has a place for each.
template <typename Function>
std::thread ThreadWithoutSignals(Function run) {
  sigset_t all, before;
  sigfillset(&all);
  RUNAHEAD_CHECK(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
  std::thread thread(std::move(run));
  RUNAHEAD_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  return thread;
}

}  // namespace

LogWriter::LogWriter(int fd, std::function<std::string(int64_t dropped)> notice, const LogRoom& room)
    : fd_(fd),
      notice_(std::move(notice)),
      room_(room),
      stop_fd_(eventfd(0, EFD_CLOEXEC)),
      thread_(ThreadWithoutSignals([this] { Run(); })) {}

LogWriter::~LogWriter() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    changed_.NotifyAll();
  }
  const uint64_t one = 1;
  RUNAHEAD_CHECK(write(stop_fd_, &one, sizeof(one)) == sizeof(one));
  thread_.join();
  close(stop_fd_);
}

void LogWriter::Append(absl::string_view line, bool is_error) {
  MutexLock lock(mu_);
  const size_t room = room_.bytes + (is_error ? room_.reserve_for_errors : 0);
  if (bytes_ + SizeOf(line) > room) {
    ++dropped_;
    ++untold_;
    return;
  }
  bytes_ += SizeOf(line);
  ++taken_;
  lines_.push_back({std::string(line), std::exchange(untold_, 0)});
  changed_.NotifyAll();
}

bool LogWriter::Flush(absl::Duration timeout) {
  const absl::Time until = MonotonicNow() + timeout;
  MutexLock lock(mu_);
  const int64_t wanted = taken_;
  while (done_ < wanted) {
    const absl::Duration left = until - MonotonicNow();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(mu_, left);
  }
  return true;
}

int64_t LogWriter::dropped() const {
  MutexLock lock(mu_);
  return dropped_;
}

LogWriter::Batch LogWriter::Take() {
  Batch batch;
  if (lines_.empty()) {
    batch.dropped = std::exchange(untold_, 0);
    return batch;
  }
  batch.dropped = lines_.front().dropped_before;
  do {
    batch.text += lines_.front().text;
    batch.bytes += SizeOf(lines_.front().text);
    ++batch.lines;
    lines_.pop_front();
  } while (!lines_.empty() && lines_.front().dropped_before == 0 &&
           batch.text.size() + lines_.front().text.size() <= kBatchBytes);
  return batch;
}

void LogWriter::Run() {
  NameThread("log");
  mu_.Lock();
  while (true) {
    while (lines_.empty() && untold_ == 0 && !stop_) changed_.Wait(mu_);
    if (lines_.empty() && untold_ == 0) break;
    const Batch batch = Take();
    mu_.Unlock();
    if (batch.dropped > 0) Write(notice_(batch.dropped));
    const bool written = Write(batch.text);
    mu_.Lock();
    bytes_ -= batch.bytes;
    done_ += batch.lines;
    if (!written) dropped_ += batch.lines;
    changed_.NotifyAll();
  }
  mu_.Unlock();
}

// False where the descriptor refused it, or the writer was to end while the reader stood still.
bool LogWriter::Write(absl::string_view text) const {
  while (!text.empty()) {
    pollfd waits[] = {{fd_, POLLOUT, 0}, {stop_fd_, POLLIN, 0}};
    if (poll(waits, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (waits[0].revents == 0) return false;
    const ssize_t wrote = write(fd_, text.data(), text.size());
    if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (wrote < 0) return false;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace runahead
