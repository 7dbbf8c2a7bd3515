#include "worker/link/transfer_out.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

// In place of a request, of a chunk that was had at once.
constexpr uint64_t kTaken = ~uint64_t{0};

absl::Status OutOfPlace(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer speaks no link of this version: ", what));
}

}  // namespace

TransferOut::TransferOut(uint64_t number, Outbound what, Done done, TransferWire& wire, Later later)
    : number_(number),
      size_(what.bytes.size),
      what_(std::move(what)),
      done_(std::move(done)),
      wire_(&wire),
      later_(std::move(later)),
      running_(what_.seed) {}

ConstBufferRef TransferOut::Next(size_t limit) {
  ConstBufferRef next;
  if (staged()) {
    next = std::move(staged_.front());
    staged_.pop_front();
  } else {
    next = what_.bytes.Slice(sent_, std::min<uint64_t>(limit, granted_ - sent_));
  }
  sent_ += next.size;
  if (!what_.sum.has_value()) {
    running_.Add(next.data(), next.size);
    if (whole()) what_.sum = running_.value();
  }
  if (staged()) Stage();
  return next;
}

ConstBufferRef TransferOut::All() {
  unasked_ = true;
  granted_ = size_;
  if (size_ > 0) return Next(size_);
  if (!what_.sum.has_value()) what_.sum = running_.value();
  return {};
}

absl::Status TransferOut::Granted(uint64_t bytes) {
  if (std::exchange(unasked_, false)) Rewind();  // they are of no use as they went
  if (bytes == 0 || bytes > size_ - granted_) return OutOfPlace("a grant of more bytes than there are");
  granted_ += bytes;
  if (staged()) Stage();
  if (moved()) {
    if (granted_ != size_) return OutOfPlace("half a grant");
    MoveAll();
  }
  return absl::OkStatus();
}

absl::Status TransferOut::Again() {
  if (end_.has_value() || !whole() || !resting() || ++agains_ >= kTransferAttempts)
    return OutOfPlace("bytes asked for too often");
  unasked_ = false;
  Rewind();
  if (what_.on_again) what_.on_again();
  return absl::OkStatus();
}

// OK also comes before any bytes: what the receiver has already it does not ask for.
absl::Status TransferOut::Answered(absl::StatusCode answer) {
  if (end_.has_value() || !resting() || granted_ != sent_) return OutOfPlace("an answer out of place");
  End(absl::Status(answer, "the peer did not take the bytes"));
  return absl::OkStatus();
}

void TransferOut::MoveAll() {
  sent_ = size_;
  ++under_way_;
  const bool known = what_.sum.has_value();
  const auto sum = known ? nullptr : std::make_shared<uint64_t>(0);
  const Event sent = what_.mover->Send(what_.bytes, sum);
  sent.OnFire([self = shared_from_this(), sum](const absl::Status& status) {
    self->later_([self, sum, status] { self->Moved(status, sum.get()); });
  });
  if (known) wire_->Moved(number_, *what_.sum);
}

void TransferOut::Moved(const absl::Status& status, const uint64_t* sum) {
  --under_way_;
  if (wire_ != nullptr && !status.ok()) return wire_->Break(status);
  if (wire_ != nullptr && sum != nullptr) {
    what_.sum = *sum;
    wire_->Moved(number_, *sum);
  }
  if (end_.has_value()) End(*end_);
}

void TransferOut::Stage() {
  while (asked_ < granted_ && under_way_ + static_cast<int>(staged_.size()) < kStagedChunks) {
    const size_t bytes = std::min<uint64_t>(what_.lane->chunk_bytes(), granted_ - asked_);
    asked_ += bytes;
    StageChunk(what_.bytes.Slice(asked_ - bytes, bytes));
  }
}

void TransferOut::StageChunk(ConstBufferRef from) {
  ++under_way_;
  const size_t bytes = from.size;
  // Nothing but what is copied holds the bytes when it has been.
  auto copy = [self = shared_from_this(), lane = what_.lane,
               from = std::move(from)](absl::StatusOr<BufferRef> room) mutable {
    if (!room.ok()) return self->later_([self, why = room.status()] { self->Staged(why, {}); });
    BufferRef to = *std::move(room);
    lane->Copy(std::move(from), to, [self, to](const absl::Status& status) mutable {
      self->later_([self, status, chunk = std::move(to)]() mutable { self->Staged(status, std::move(chunk)); });
    });
  };
  BufferRef room = requests_.empty() || requests_.back() == kTaken ? what_.lane->Take(bytes) : BufferRef();
  if (room.buffer != nullptr) {
    requests_.push_back(kTaken);
    return copy(std::move(room));
  }
  const uint64_t request = what_.lane->Request(bytes, std::move(copy));
  requests_.push_back(request);
  if (request == 0) later_([self = shared_from_this()] { self->Staged(absl::UnavailableError("it has stopped"), {}); });
}

// In the order of the requests.
void TransferOut::Staged(absl::Status status, BufferRef chunk) {
  --under_way_;
  requests_.pop_front();
  if (wire_ == nullptr) {
    chunk = {};
    return End(*end_);
  }
  if (!status.ok()) return wire_->Break(status);
  staged_.push_back(std::move(chunk));
  wire_->Ready(number_);
}

Event TransferOut::Fail(const absl::Status& why) {
  wire_ = nullptr;
  staged_.clear();
  // Those that are not cancelled any more come.
  while (!requests_.empty() && what_.lane->Cancel(requests_.back())) {
    requests_.pop_back();
    --under_way_;
  }
  End(absl::UnavailableError(why.message()));
  return ended_.event();
}

void TransferOut::End(absl::Status status) {
  end_ = std::move(status);
  if (under_way_ > 0) return;
  const std::shared_ptr<TransferOut> self = shared_from_this();  // Gone lets it go
  if (wire_ != nullptr) wire_->Gone(number_);
  what_.bytes = {};
  if (const Done done = std::exchange(done_, nullptr)) done(*end_);
  ended_.Fire(absl::OkStatus());
}

}  // namespace runahead
