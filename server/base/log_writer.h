// Writes the lines of a log on a thread of its own, so that a reader of the log that stands still holds up nobody.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Bytes of lines that may wait to be written. A line that finds no room is dropped and counted. Errors have a reserve
// beside what all lines share.
struct LogRoom {
  size_t bytes = 1 << 20;
  size_t reserve_for_errors = 256 << 10;
};

// Thread-safe. Lines come out whole and in the order of Append. The descriptor keeps its flags: other processes may
// write to the same file.
class LogWriter {
 public:
  // `fd` is the caller's and stays open. `notice` makes the line that says how many lines were dropped; the writer's
  // thread calls it and writes the line at the place where they are missing.
  LogWriter(int fd, std::function<std::string(int64_t dropped)> notice, const LogRoom& room = {});

  // Writes what goes out without waiting for the reader.
  ~LogWriter() RUNAHEAD_EXCLUDES(mu_);

  // `line` ends with a newline. Never waits for the descriptor.
  void Append(absl::string_view line, bool is_error) RUNAHEAD_EXCLUDES(mu_);

  // Waits until every line that Append took before is written. False when `timeout` ran out first.
  bool Flush(absl::Duration timeout) RUNAHEAD_EXCLUDES(mu_);

  // Lines that found no room, or that the descriptor refused (a full disk, a reader that is gone).
  int64_t dropped() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Line {
    std::string text;
    int64_t dropped_before = 0;  // lines that are missing between the one before and this
  };
  // What one write takes.
  struct Batch {
    std::string text;
    int64_t lines = 0;
    size_t bytes = 0;     // of those lines, without the notice
    int64_t dropped = 0;  // lines that are missing before it: `text` is to begin with a notice
  };

  void Run() RUNAHEAD_EXCLUDES(mu_);
  Batch Take() RUNAHEAD_REQUIRES(mu_);
  bool Write(absl::string_view text) const;

  const int fd_;
  const std::function<std::string(int64_t)> notice_;
  const LogRoom room_;
  const int stop_fd_;  // an eventfd: readable when the writer is to end

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<Line> lines_ RUNAHEAD_GUARDED_BY(mu_);
  size_t bytes_ RUNAHEAD_GUARDED_BY(mu_) = 0;   // of lines_ and of what is being written
  int64_t taken_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // lines that Append took
  int64_t done_ RUNAHEAD_GUARDED_BY(mu_) = 0;   // of those, lines that are written or refused
  int64_t dropped_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t untold_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // of those, lines behind the last one in lines_
  bool stop_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace runahead
