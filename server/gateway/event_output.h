// The way of an answer's events into the socket of its connection.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/mutex.h"

namespace runahead {

// Texts in their order, written by whoever sends them, on that thread: mostly the system takes a text at once, and a
// thread that is woken for it costs more than the text. What the system does not take is the rest, for the owner of the
// socket to write, who may wait. Thread-safe.
class EventOutput {
 public:
  // `socket` does not block, and is open until Close. `stuck` is called where there is a rest, on the thread that
  // sends.
  EventOutput(int socket, std::function<void()> stuck) : stuck_(std::move(stuck)), socket_(socket) {}

  // Goes with the next text.
  void Hold(std::string text) RUNAHEAD_EXCLUDES(mu_);
  // `sent` is called once, perhaps within this call: when the system has taken the text, or will not any more.
  void Send(std::string text, std::function<void()> sent) RUNAHEAD_EXCLUDES(mu_);
  // The last text: those that come later are thrown away.
  void End(std::string text, std::function<void()> sent) RUNAHEAD_EXCLUDES(mu_);

  // For the owner. What `stuck` is about; the same until RestWritten.
  std::string TakeRest() RUNAHEAD_EXCLUDES(mu_);
  // The rest is written; whether there is another one. It is not said by `stuck`.
  bool RestWritten() RUNAHEAD_EXCLUDES(mu_);
  // Nothing is written any more. The socket may be closed.
  void Close() RUNAHEAD_EXCLUDES(mu_);

 private:
  using Sent = std::vector<std::function<void()>>;
  struct Text {
    std::string bytes;
    std::function<void()> sent;  // may be null
  };

  void Add(Text text, bool last) RUNAHEAD_EXCLUDES(mu_);
  void Flush() RUNAHEAD_EXCLUDES(mu_);
  // Writes what waits, as one. What of it was taken is told through `sent`, which is called without the lock.
  void Write(Sent& sent) RUNAHEAD_REQUIRES(mu_);

  const std::function<void()> stuck_;
  Mutex mu_;
  int socket_ RUNAHEAD_GUARDED_BY(mu_);  // -1: closed
  bool ended_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool has_rest_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::string rest_ RUNAHEAD_GUARDED_BY(mu_);
  Sent sent_with_rest_ RUNAHEAD_GUARDED_BY(mu_);
  std::deque<Text> waiting_ RUNAHEAD_GUARDED_BY(mu_);  // behind the rest
};

}  // namespace runahead
