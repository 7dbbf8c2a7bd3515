// Host memory that slices pass through on their way to where they stay: device memory that the host cannot write, or
// rows that are stored quantised; and the work that brings them there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/buffer.h"
#include "kernels/base/device.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "worker/kv/block_pool.h"

namespace runahead {

// Thread-safe; one stream of its own. Room is given in the order of asking. Whoever has room waits for its own bytes
// and then for their copy, never for somebody who waits for room: so every wait ends. Events fire outside of all locks.
class BounceBuffer {
 public:
  // Room for tokens [begin, end) of one layer, wanted or given. Destroying it gives it back, or ends the wait; not
  // under a lock that those who wait need, for their events fire. It ends before the buffer does.
  class Room {
   public:
    ~Room();
    // Fires OK when there is room: on the thread that gave room back, or on one that is giving room at that time.
    Event given() const { return given_.event(); }
    // From then on: where the rows go, in order, cut where memory does not touch.
    const std::vector<BufferRef>& rows() const { return rows_; }

   private:
    friend class BounceBuffer;
    Room(BounceBuffer& bounce, int64_t begin, int64_t end);

    BounceBuffer& bounce_;
    const int64_t begin_, end_;  // from the beginning of the first token's block
    const EventSource given_;
    // Set once, before given_ fires.
    std::vector<int32_t> blocks_;
    std::vector<BufferRef> rows_;
  };

  // How rows get to where they stay, each of to_row_bytes there.
  struct Move {
    int64_t to_row_bytes = 0;
    // Enqueues whole rows: their bytes in the buffer, and where they go.
    std::function<absl::Status(Stream&, const ConstBufferRef& from, const BufferRef& to)> enqueue;
  };
  // Copies by `device`, as they are.
  static Move CopyBy(Device& device, int64_t row_bytes);
  // `blocks` blocks of one layer each, in `device`'s host memory. `device`, on whose streams `move` enqueues, outlives
  // it.
  static absl::StatusOr<std::unique_ptr<BounceBuffer>> Create(Device& device, int64_t blocks, int64_t row_bytes,
                                                              Move move);
  // Waits for the copies under way and for what they ran.
  ~BounceBuffer();

  // Asks for room. The range takes no more blocks than there are.
  std::unique_ptr<Room> Request(int64_t begin, int64_t end) RUNAHEAD_EXCLUDES(mu_);

  // Moves a given room's rows to `to`: memory for as many rows, in order, cut between any two. Once no copy touches
  // either any more the room is given back, and `done` runs: with OK, or the failure of a copy. On the device's thread,
  // so it must be short; or on this one.
  void Copy(std::unique_ptr<Room> room, const std::vector<BufferRef>& to, std::function<void(const absl::Status&)> done)
      RUNAHEAD_EXCLUDES(mu_, stream_mu_);

 private:
  BounceBuffer(Device& device, BlockPool pool, int64_t row_bytes, Move move);
  // Gives room as far as there is some.
  void Grant() RUNAHEAD_EXCLUDES(mu_);
  bool GrantIfItFits(Room& room) RUNAHEAD_REQUIRES(mu_);
  void GiveBack(Room& room) RUNAHEAD_EXCLUDES(mu_);
  absl::Status EnqueueCopies(const std::vector<BufferRef>& from, const std::vector<BufferRef>& to)
      RUNAHEAD_REQUIRES(stream_mu_);

  Device& device_;
  const int64_t row_bytes_;
  const Move move_;
  Mutex stream_mu_;  // not held with mu_
  const std::unique_ptr<Stream> stream_ RUNAHEAD_PT_GUARDED_BY(stream_mu_);

  Mutex mu_;
  CondVar copied_;
  BlockPool pool_ RUNAHEAD_GUARDED_BY(mu_);
  std::deque<Room*> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  bool granting_ RUNAHEAD_GUARDED_BY(mu_) = false;  // a thread is in Grant: it does what others find to do
  int copies_ RUNAHEAD_GUARDED_BY(mu_) = 0;         // rooms under way
};

}  // namespace runahead
