#include "worker/kv/bounce_buffer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"

namespace runahead {

BounceBuffer::Room::Room(BounceBuffer& bounce, int64_t begin, int64_t end)
    : bounce_(bounce), begin_(begin % kKvBlockTokens), end_(end - begin + begin_) {}

BounceBuffer::Room::~Room() {
  bounce_.GiveBack(*this);
}

BounceBuffer::Move BounceBuffer::CopyBy(Device& device, int64_t row_bytes) {
  return {row_bytes, [&device](Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
            return device.Copy(stream, from, to);
          }};
}

absl::StatusOr<std::unique_ptr<BounceBuffer>> BounceBuffer::Create(Device& device, int64_t blocks, int64_t row_bytes,
                                                                   Move move) {
  RUNAHEAD_ASSIGN_OR_RETURN(KvArena arena, KvArena::Create(device, MemoryKind::kHost, /*layers=*/1, blocks, row_bytes));
  return std::unique_ptr<BounceBuffer>(
      new BounceBuffer(device, BlockPool(std::move(arena)), row_bytes, std::move(move)));
}

BounceBuffer::BounceBuffer(Device& device, BlockPool pool, int64_t row_bytes, Move move)
    : device_(device),
      row_bytes_(row_bytes),
      move_(std::move(move)),
      stream_(device.NewStream("kv arrival")),
      pool_(std::move(pool)) {}

BounceBuffer::~BounceBuffer() {
  MutexLock lock(mu_);
  while (copies_ > 0) copied_.Wait(mu_);
  RUNAHEAD_CHECK(pool_.used() == 0 && waiting_.empty());
}

std::unique_ptr<BounceBuffer::Room> BounceBuffer::Request(int64_t begin, int64_t end) {
  std::unique_ptr<Room> room(new Room(*this, begin, end));
  {
    MutexLock lock(mu_);
    RUNAHEAD_CHECK(begin < end && KvBlocksFor(room->end_) <= pool_.arena().blocks());
    // Not by Grant: the caller's locks may be held here, and others' events must not fire under them.
    if (!waiting_.empty() || !GrantIfItFits(*room)) {
      waiting_.push_back(room.get());
      return room;
    }
  }
  room->given_.Fire(absl::OkStatus());  // nobody has asked for the event yet
  return room;
}

bool BounceBuffer::GrantIfItFits(Room& room) {
  const int64_t blocks = KvBlocksFor(room.end_);
  if (blocks > pool_.free()) return false;
  room.blocks_ = *pool_.Take(blocks);
  for (const KvSpan& span : pool_.arena().Spans(room.blocks_, /*layer=*/0, room.begin_, room.end_)) {
    room.rows_.push_back(span.rows);
  }
  return true;
}

// Iterative, and by one thread at a time: what an event runs may give room back, and so on, as deep as many wait.
void BounceBuffer::Grant() {
  {
    MutexLock lock(mu_);
    if (granting_) return;
    granting_ = true;
  }
  for (;;) {
    std::optional<EventSource> given;
    {
      MutexLock lock(mu_);
      if (waiting_.empty() || !GrantIfItFits(*waiting_.front())) {
        granting_ = false;
        return;
      }
      given = waiting_.front()->given_;  // its owner may destroy it from here on
      waiting_.pop_front();
    }
    given->Fire(absl::OkStatus());
  }
}

void BounceBuffer::GiveBack(Room& room) {
  {
    MutexLock lock(mu_);
    if (room.blocks_.empty()) waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &room));
    pool_.Return(room.blocks_);
  }
  Grant();  // even where it only waited: it may have been in the way of others
}

absl::Status BounceBuffer::EnqueueCopies(const std::vector<BufferRef>& from, const std::vector<BufferRef>& to) {
  const auto from_row = static_cast<size_t>(row_bytes_), to_row = static_cast<size_t>(move_.to_row_bytes);
  size_t piece = 0, offset = 0;  // in `to`
  for (const BufferRef& rows : from) {
    for (size_t done = 0; done < rows.size;) {
      const size_t count = std::min((rows.size - done) / from_row, (to[piece].size - offset) / to_row);
      RUNAHEAD_CHECK(count > 0);
      RUNAHEAD_RETURN_IF_ERROR(
          move_.enqueue(*stream_, rows.Slice(done, count * from_row), to[piece].Slice(offset, count * to_row)));
      done += count * from_row;
      offset += count * to_row;
      if (offset == to[piece].size) ++piece, offset = 0;
    }
  }
  return absl::OkStatus();
}

void BounceBuffer::Copy(std::unique_ptr<Room> room, const std::vector<BufferRef>& to,
                        std::function<void(const absl::Status&)> done) {
  {
    MutexLock lock(mu_);
    ++copies_;
  }
  absl::Status enqueued;
  Event copied;
  {
    MutexLock lock(stream_mu_);
    enqueued = EnqueueCopies(room->rows(), to);
    copied = device_.Record(*stream_);  // also where a later piece was refused: the ones before it run
  }
  copied.OnFire([this, room = std::shared_ptr<Room>(std::move(room)), enqueued,
                 done = std::move(done)](const absl::Status& status) mutable {
    room.reset();
    done(enqueued.ok() ? status : enqueued);
    MutexLock lock(mu_);
    --copies_;
    copied_.NotifyAll();
  });
}

}  // namespace runahead
