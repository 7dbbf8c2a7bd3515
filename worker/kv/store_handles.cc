// What KvStore hands out: a Write and a Sequence each give back what they hold when they end.
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/kv/store.h"

namespace runahead {

KvStore::Write::Write(Write&& other) noexcept {
  *this = std::move(other);
}

KvStore::Write& KvStore::Write::operator=(Write&& other) noexcept {
  if (this == &other) return *this;
  Abandon();
  store_ = std::exchange(other.store_, nullptr);
  lease_ = other.lease_;
  write_ = other.write_;
  already_covered_ = other.already_covered_;
  rows_ = std::move(other.rows_);
  room_ = std::move(other.room_);
  return *this;
}

KvStore::Write::~Write() {
  Abandon();
}

void KvStore::Write::Abandon() {
  if (store_ == nullptr) return;
  std::exchange(store_, nullptr)->EndWrite(lease_, write_, absl::CancelledError("given up")).IgnoreError();
  room_ = nullptr;
}

Event KvStore::Write::ready() const {
  return room_ == nullptr ? Event() : room_->given();
}

const std::vector<BufferRef>& KvStore::Write::destination() const {
  return room_ == nullptr ? rows_ : room_->rows();
}

Event KvStore::Write::Commit() {
  RUNAHEAD_CHECK(store_ != nullptr && ready().fired());
  KvStore* const store = std::exchange(store_, nullptr);
  const EventSource done;
  if (room_ == nullptr) {
    done.Fire(store->EndWrite(lease_, write_, absl::OkStatus()));
  } else {
    store->bounce_->Copy(std::move(room_), rows_,
                         [store, done, lease = lease_, write = write_](const absl::Status& copied) {
                           done.Fire(store->EndWrite(lease, write, copied));
                         });
  }
  return done.event();
}

KvStore::Sequence::Sequence(Sequence&& other) noexcept {
  *this = std::move(other);
}

KvStore::Sequence& KvStore::Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->CloseSequence(lease_);
  store_ = std::exchange(other.store_, nullptr);
  lease_ = other.lease_;
  blocks_ = std::move(other.blocks_);
  has_x_ = other.has_x_;
  kv_from_ = other.kv_from_;
  return *this;
}

KvStore::Sequence::~Sequence() {
  if (store_ != nullptr) store_->CloseSequence(lease_);
}

}  // namespace runahead
