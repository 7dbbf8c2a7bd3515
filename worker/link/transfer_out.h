// The sending end of a transfer.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "kernels/base/event.h"
#include "worker/link/running_sum.h"
#include "worker/link/transfer.h"

namespace runahead {

// Used on its connection's thread. What the other end says is doubted: an error means that it may not say so.
class TransferOut : public std::enable_shared_from_this<TransferOut> {
 public:
  using Done = std::function<void(absl::Status)>;

  // `done` runs once, when the bytes may be reused: with the receiver's answer, or with why there is none. `wire` lives
  // until Fail or the answer.
  TransferOut(uint64_t number, Outbound what, Done done, TransferWire& wire, Later later);

  uint64_t number() const { return number_; }
  uint64_t size() const { return size_; }
  bool staged() const { return what_.lane != nullptr && size_ > 0; }
  bool moved() const { return what_.mover != nullptr && size_ > 0; }
  bool ready() const { return staged() ? !staged_.empty() : !moved() && sent_ < granted_; }
  // The next bytes, at most `limit` of them (a staged chunk is always whole); there are some. Where it is staged, room
  // comes back with the last reference.
  ConstBufferRef Next(size_t limit);
  // All at once, unasked. They are memory of the host.
  ConstBufferRef All();
  // All bytes were given out by Next; sum() is theirs.
  bool whole() const { return sent_ == size_; }
  uint64_t sum() const { return *what_.sum; }

  absl::Status Granted(uint64_t bytes);
  absl::Status Again();
  absl::Status Answered(absl::StatusCode answer);
  // The connection has ended. Fires once `done` has run: at once, or when what is copied has been.
  Event Fail(const absl::Status& why);

 private:
  void MoveAll();
  void Moved(const absl::Status& status, const uint64_t* sum);
  void Stage();
  void StageChunk(ConstBufferRef from);
  void Staged(absl::Status status, BufferRef chunk);
  // Neither here nor under way are bytes that the other end knows nothing of yet.
  bool resting() const { return (under_way_ == 0 || moved()) && staged_.empty() && (sent_ == 0 || sent_ == size_); }
  void Rewind() { sent_ = granted_ = asked_ = 0; }
  void End(absl::Status status);

  const uint64_t number_, size_;
  Outbound what_;
  Done done_;
  TransferWire* wire_;  // null: it has failed
  const Later later_;
  const EventSource ended_;
  RunningSum running_;
  std::optional<absl::Status> end_;  // how it ends once nothing is under way
  uint64_t sent_ = 0, granted_ = 0;
  bool unasked_ = false;  // they went with their header
  int agains_ = 0;
  int under_way_ = 0;  // chunks that wait for room or are copied; sends of the mover
  // Staged: up to asked_ chunks were asked for, of which some are there.
  uint64_t asked_ = 0;
  std::deque<uint64_t> requests_;  // of the lane, by those
  std::deque<BufferRef> staged_;
};

}  // namespace runahead
