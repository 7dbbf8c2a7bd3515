#include "server/gateway/event_output.h"

#include <sys/socket.h>
#include <sys/types.h>

#include <utility>

namespace runahead {
namespace {

void CallAll(const std::vector<std::function<void()>>& functions) {
  for (const auto& function : functions) function();
}

}  // namespace

void EventOutput::Hold(std::string text) {
  MutexLock lock(mu_);
  if (socket_ >= 0 && !ended_) waiting_.push_back({std::move(text), nullptr});
}

void EventOutput::Send(std::string text, std::function<void()> sent) {
  Add({std::move(text), std::move(sent)}, false);
}

void EventOutput::End(std::string text, std::function<void()> sent) {
  Add({std::move(text), std::move(sent)}, true);
}

void EventOutput::Add(Text text, bool last) {
  bool added = false;
  {
    MutexLock lock(mu_);
    added = socket_ >= 0 && !ended_;
    if (added) {
      waiting_.push_back(std::move(text));
      ended_ = last;
    }
  }
  if (added) return Flush();
  if (text.sent) text.sent();
}

void EventOutput::Flush() {
  Sent sent;
  bool stuck = false;
  {
    MutexLock lock(mu_);
    if (has_rest_ || waiting_.empty()) return;
    Write(sent);
    stuck = has_rest_;
  }
  CallAll(sent);
  if (stuck) stuck_();
}

void EventOutput::Write(Sent& sent) {
  Sent of_these;
  std::string bytes = std::move(waiting_.front().bytes);
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (i > 0) bytes += waiting_[i].bytes;
    if (waiting_[i].sent) of_these.push_back(std::move(waiting_[i].sent));
  }
  waiting_.clear();
  const ssize_t taken = send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (taken == static_cast<ssize_t>(bytes.size())) {
    sent = std::move(of_these);
    return;
  }
  has_rest_ = true;
  rest_ =
      taken > 0 ? bytes.substr(static_cast<size_t>(taken)) : std::move(bytes);  // an error: the owner finds it again
  sent_with_rest_ = std::move(of_these);
}

std::string EventOutput::TakeRest() {
  MutexLock lock(mu_);
  return std::move(rest_);
}

bool EventOutput::RestWritten() {
  Sent sent, of_next;
  bool more = false;
  {
    MutexLock lock(mu_);
    if (!has_rest_) return false;  // closed meanwhile
    has_rest_ = false;
    sent = std::move(sent_with_rest_);
    sent_with_rest_.clear();
    if (!waiting_.empty()) Write(of_next);
    more = has_rest_;
  }
  CallAll(sent);
  CallAll(of_next);
  return more;
}

void EventOutput::Close() {
  Sent sent;
  {
    MutexLock lock(mu_);
    socket_ = -1;
    has_rest_ = false;
    sent = std::move(sent_with_rest_);
    sent_with_rest_.clear();
    for (Text& text : waiting_) {
      if (text.sent) sent.push_back(std::move(text.sent));
    }
    waiting_.clear();
  }
  CallAll(sent);
}

}  // namespace runahead
