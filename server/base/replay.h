// The two ends of one direction of a stream that outlives its connections: messages are numbered from 1, kept until the
// other side has said that it received them, and sent again over the next connection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

namespace runahead {

// The sending end. For one thread at a time. What it keeps is bounded by what its user has under way: an
// acknowledgement comes with every ping, and with every pong.
template <typename Message>
class Outbox {
 public:
  // The number of the message that is appended next.
  uint64_t next() const { return last_ + 1; }
  void Append(Message message) {
    kept_.push_back(std::move(message));
    ++last_;
  }

  // The other side has received all messages up to `number`, which need not be kept any more. False where that cannot
  // be: it has none that was not sent, and cannot lose what it has acknowledged.
  bool Acknowledge(uint64_t number) {
    const uint64_t acknowledged = last_ - kept_.size();
    if (number < acknowledged || number > last_) return false;
    kept_.erase(kept_.begin(), kept_.begin() + static_cast<ptrdiff_t>(number - acknowledged));
    return true;
  }

  // Those that have not been acknowledged, oldest first.
  const std::deque<Message>& kept() const { return kept_; }

 private:
  std::deque<Message> kept_;
  uint64_t last_ = 0;
};

enum class InboxAnswer {
  kNext,
  kRepeat,  // it has come before: to be dropped
  kGap,     // one before it has not come: the connection has lost a message, and is to be given up
};

// The receiving end. For one thread at a time.
class Inbox {
 public:
  InboxAnswer Take(uint64_t number) {
    if (number <= received_) return InboxAnswer::kRepeat;
    if (number != received_ + 1) return InboxAnswer::kGap;
    received_ = number;
    return InboxAnswer::kNext;
  }
  // The number of the last message that came; 0: none.
  uint64_t received() const { return received_; }

 private:
  uint64_t received_ = 0;
};

}  // namespace runahead
