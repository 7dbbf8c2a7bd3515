// The receiving end of a transfer.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/base/event.h"
#include "worker/link/running_sum.h"
#include "worker/link/transfer.h"

namespace runahead {

// Used on its connection's thread, which fills it. Bytes are summed as they come; where they go on to a device, chunk
// by chunk, its memory may hold what turns out damaged, but `done` has not run then.
class TransferIn : public std::enable_shared_from_this<TransferIn> {
 public:
  // `done` runs once: OK, all bytes are where they are to go, and match their sum; DATA_LOSS, they came damaged
  // kTransferAttempts times; else why they did not come. This is the `attempt`th time that they come, from 1. `wire`
  // lives until Fail or Over.
  TransferIn(uint64_t number, uint64_t size, int attempt, Inbound what, ReceiveDone done, TransferWire& wire,
             Later later);

  // Asks for the bytes.
  void Start();
  // All went past the connection, and this is their sum. An error: they were not to.
  absl::Status Moved(uint64_t sum);
  // They came with the offer at `when`, and so did their sum; `what` is memory of the host.
  void Take(std::string_view bytes, uint64_t sum, absl::Time when);

  // How many bytes were granted and have not come.
  uint64_t room() const { return room_; }
  // How many are to come still, granted or not.
  uint64_t left() const { return left_; }
  // A chunk comes. `sum` is that of all bytes where it is the last one.
  void BeginChunk(uint64_t bytes, uint64_t sum);
  // Where the next bytes go, at most `limit` pieces and `most` bytes; returns how many pieces, and says how many bytes.
  size_t Places(iovec* pieces, size_t limit, uint64_t most, size_t& bytes) const;
  void Filled(size_t bytes);

  // The connection has ended. Fires once `done` has run: at once, or when what is copied has been.
  Event Fail(const absl::Status& why);

 private:
  // The next bytes are in their places.
  void Place(size_t bytes);
  void MoveAll();
  void AskForRoom();
  void RequestRoom(size_t bytes);
  void GotRoom(absl::StatusOr<BufferRef> room);
  void CopyOut(BufferRef chunk);
  void Copied(const absl::Status& status);
  void CopyEnded(const absl::Status& status);
  // Ends it, or begins anew, where all has come.
  void Check();
  void End(absl::Status status);

  const uint64_t number_, size_;
  int attempt_;
  Inbound what_;
  ReceiveDone done_;
  TransferWire* wire_;  // null: it has failed
  const Later later_;
  const EventSource ended_;
  RunningSum sum_;
  std::optional<uint64_t> told_;  // the sum that the sender says
  Came came_;
  uint64_t left_ = 0, room_ = 0;
  std::deque<BufferRef> places_;  // granted and not full
  size_t offset_ = 0;             // in the first one
  absl::Status why_;              // not OK: how it is to end
  // Staged: up to asked_ chunks of room were asked for, of which so many are in use; of copies and requests so many are
  // under way.
  uint64_t asked_ = 0, copied_ = 0;
  int rooms_ = 0, under_way_ = 0;  // receives of the mover, too
  std::deque<uint64_t> requests_;
};

}  // namespace runahead
