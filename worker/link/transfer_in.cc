#include "worker/link/transfer_in.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"

namespace runahead {

TransferIn::TransferIn(uint64_t number, uint64_t size, int attempt, Inbound what, ReceiveDone done, TransferWire& wire,
                       Later later)
    : number_(number),
      size_(size),
      attempt_(attempt),
      what_(std::move(what)),
      done_(std::move(done)),
      wire_(&wire),
      later_(std::move(later)),
      sum_(what_.seed),
      left_(size) {}

void TransferIn::Start() {
  left_ = size_;
  asked_ = copied_ = 0;
  told_.reset();
  came_.first = absl::InfiniteFuture();
  sum_.Reset();
  if (what_.mover != nullptr) return MoveAll();
  if (what_.lane != nullptr) return AskForRoom();
  places_.assign(what_.into.begin(), what_.into.end());
  room_ = size_;
  wire_->Grant(number_, size_);
}

// The receive is enqueued before the sender may send.
void TransferIn::MoveAll() {
  left_ = 0;
  ++under_way_;
  const auto came = std::make_shared<Came>();
  const Event moved = what_.mover->Recv(what_.into.front(), came);
  wire_->Grant(number_, size_);
  moved.OnFire([self = shared_from_this(), came](const absl::Status& status) {
    self->later_([self, came, status] {
      self->came_ = *came;
      self->CopyEnded(status);
    });
  });
}

absl::Status TransferIn::Moved(uint64_t sum) {
  if (what_.mover == nullptr || told_.has_value()) return absl::InvalidArgumentError("a sum out of place");
  told_ = sum;
  Check();
  return absl::OkStatus();
}

void TransferIn::Take(std::string_view bytes, uint64_t sum, absl::Time when) {
  places_.assign(what_.into.begin(), what_.into.end());
  told_ = sum;
  came_.first = when;
  iovec piece;
  size_t size = 0;
  for (size_t from = 0; from < bytes.size(); from += size) {
    Places(&piece, 1, bytes.size() - from, size);
    std::memcpy(piece.iov_base, bytes.data() + from, size);
    Place(size);
  }
  left_ = 0;
  came_.last = when;
  Check();
}

void TransferIn::BeginChunk(uint64_t bytes, uint64_t sum) {
  came_.first = std::min(came_.first, MonotonicNow());
  if (bytes == left_) told_ = sum;
}

size_t TransferIn::Places(iovec* pieces, size_t limit, uint64_t most, size_t& bytes) const {
  size_t count = 0;
  bytes = 0;
  size_t offset = offset_;
  for (auto place = places_.begin(); bytes < most && count < limit; ++place) {
    const size_t size = std::min<uint64_t>(place->size - offset, most - bytes);
    if (size > 0) pieces[count++] = {place->data() + offset, size};
    bytes += size;
    offset = 0;
  }
  return count;
}

void TransferIn::Filled(size_t bytes) {
  left_ -= bytes;
  room_ -= bytes;
  Place(bytes);
  if (left_ > 0) return;
  came_.last = MonotonicNow();
  Check();
}

void TransferIn::Place(size_t bytes) {
  while (bytes > 0) {
    BufferRef& place = places_.front();
    const size_t size = std::min(place.size - offset_, bytes);
    if (size > 0) sum_.Add(place.data() + offset_, size);
    bytes -= size;
    offset_ += size;
    if (offset_ < place.size) break;
    offset_ = 0;
    if (what_.lane != nullptr) CopyOut(std::move(place));
    places_.pop_front();
  }
}

void TransferIn::AskForRoom() {
  uint64_t granted = 0;
  while (asked_ < size_ && rooms_ < kStagedChunks) {
    const size_t bytes = std::min<uint64_t>(what_.lane->chunk_bytes(), size_ - asked_);
    asked_ += bytes;
    ++rooms_;
    BufferRef room = requests_.empty() ? what_.lane->Take(bytes) : BufferRef();
    if (room.buffer != nullptr) {
      places_.push_back(std::move(room));
      granted += bytes;
    } else {
      RequestRoom(bytes);
    }
  }
  room_ += granted;
  if (granted > 0) wire_->Grant(number_, granted);
}

void TransferIn::RequestRoom(size_t bytes) {
  ++under_way_;
  const uint64_t request = what_.lane->Request(bytes, [self = shared_from_this()](absl::StatusOr<BufferRef> room) {
    self->later_([self, room = std::move(room)]() mutable { self->GotRoom(std::move(room)); });
  });
  requests_.push_back(request);
  if (request == 0)
    later_([self = shared_from_this()] { self->GotRoom(absl::UnavailableError("the link has stopped")); });
}

// In the order of the requests.
void TransferIn::GotRoom(absl::StatusOr<BufferRef> room) {
  --under_way_;
  requests_.pop_front();
  if (wire_ == nullptr) {
    room = BufferRef();
    return Check();
  }
  if (!room.ok()) return wire_->Break(room.status());
  const size_t bytes = room->size;
  places_.push_back(*std::move(room));
  room_ += bytes;
  wire_->Grant(number_, bytes);
}

void TransferIn::CopyOut(BufferRef chunk) {
  const BufferRef to = what_.into.front().Slice(copied_, chunk.size);
  copied_ += chunk.size;
  ++under_way_;
  what_.lane->Copy(std::move(chunk), to, [self = shared_from_this()](const absl::Status& status) {
    self->later_([self, status] { self->Copied(status); });
  });
}

void TransferIn::Copied(const absl::Status& status) {
  --rooms_;
  if (wire_ != nullptr && why_.ok() && status.ok()) AskForRoom();
  CopyEnded(status);
}

void TransferIn::CopyEnded(const absl::Status& status) {
  --under_way_;
  if (!status.ok() && why_.ok()) {
    why_ = status;
    if (wire_ != nullptr) wire_->Break(status);  // what was granted comes still: it ends by Fail
  }
  Check();
}

void TransferIn::Check() {
  if (under_way_ > 0 || (wire_ != nullptr && (!why_.ok() || left_ > 0 || !told_.has_value()))) return;
  if (!why_.ok()) return End(why_);
  if (what_.mover == nullptr) came_.sum = sum_.value();
  if (came_.sum == *told_) return End(absl::OkStatus());
  if (what_.on_damaged) what_.on_damaged(attempt_);
  if (size_ == 0 || attempt_ >= kTransferAttempts) {
    return End(absl::DataLossError(absl::StrCat("the bytes came damaged ", kTransferAttempts, " times")));
  }
  ++attempt_;
  wire_->Again(number_);
  Start();
}

Event TransferIn::Fail(const absl::Status& why) {
  wire_ = nullptr;
  why_ = absl::UnavailableError(why.message());
  places_.clear();
  // Those that are not cancelled any more come.
  while (!requests_.empty() && what_.lane->Cancel(requests_.back())) {
    requests_.pop_back();
    --under_way_;
  }
  Check();
  return ended_.event();
}

void TransferIn::End(absl::Status status) {
  const std::shared_ptr<TransferIn> self = shared_from_this();  // Over lets it go
  places_.clear();
  what_.into.clear();
  if (wire_ != nullptr) std::exchange(wire_, nullptr)->Over(number_, attempt_, status);
  const ReceiveDone done = std::move(done_);
  done_ = nullptr;
  if (done) done(std::move(status), came_);
  ended_.Fire(absl::OkStatus());
}

}  // namespace runahead
