// What KvStore hands out: a Write, a Sequence and what one lends each give back what they hold when they end.
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
  bounce_ = other.bounce_;
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
    bounce_->Copy(std::move(room_), rows_, [store, done, lease = lease_, write = write_](const absl::Status& copied) {
      done.Fire(store->EndWrite(lease, write, copied));
    });
  }
  return done.event();
}

KvStore::Lent::Lent(Lent&& other) noexcept {
  *this = std::move(other);
}

KvStore::Lent& KvStore::Lent::operator=(Lent&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->EndLending(blocks_);
  store_ = std::exchange(other.store_, nullptr);
  blocks_ = std::move(other.blocks_);
  begin_ = other.begin_;
  end_ = other.end_;
  return *this;
}

KvStore::Lent::~Lent() {
  if (store_ != nullptr) store_->EndLending(blocks_);
}

std::vector<KvSpan> KvStore::Lent::Spans(int64_t layer, int64_t from) const {
  const int64_t before = begin_ / kKvBlockTokens * kKvBlockTokens;  // tokens of the blocks before
  return store_->arena().Spans(blocks_, layer, from - before, end_ - before);
}

KvStore::Lent KvStore::Sequence::Lend(int64_t begin, int64_t end) const {
  Lent lent;
  lent.blocks_.assign(blocks_.begin() + begin / kKvBlockTokens, blocks_.begin() + KvBlocksFor(end));
  lent.begin_ = begin;
  lent.end_ = end;
  store_->LendBlocks(lent.blocks_);
  lent.store_ = store_;
  return lent;
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
  prompt_tokens_ = other.prompt_tokens_;
  handed_tokens_ = other.handed_tokens_;
  known_tokens_ = other.known_tokens_;
  has_x_ = other.has_x_;
  kv_from_ = other.kv_from_;
  grows_ = other.grows_;
  parked_first_ = other.parked_first_;
  total_tokens_ = other.total_tokens_;
  copied_from_ = other.copied_from_;
  return *this;
}

absl::Status KvStore::Sequence::Grow(int64_t tokens, int64_t leave) {
  if (KvBlocksFor(tokens) <= static_cast<int64_t>(blocks_.size())) return absl::OkStatus();
  RUNAHEAD_ASSIGN_OR_RETURN(blocks_, store_->GrowLease(lease_, tokens, leave));
  return absl::OkStatus();
}

void KvStore::Sequence::Park(int64_t tokens) {
  store_->ParkLease(lease_, tokens);
  blocks_.clear();
  copied_from_.reset();
}

std::vector<CopyPart> KvStore::Sequence::Copies() const {
  std::vector<CopyPart> copies;
  if (!copied_from_.has_value()) return copies;
  const int64_t begin = known_tokens_ / kKvBlockTokens * kKvBlockTokens;
  const auto add = [&](const KvArena& arena, int64_t layer) {
    const std::vector<KvSpan> from = arena.Spans({*copied_from_}, layer, 0, known_tokens_ - begin);
    const std::vector<KvSpan> to = arena.Spans(blocks_, layer, begin, known_tokens_);
    copies.push_back({from.front().rows, to.front().rows});
  };
  for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
    add(store_->arena(), layer);
    if (has_x_) add(*store_->x_arena(), layer);
  }
  return copies;
}

void KvStore::Sequence::EndCopies() {
  if (!copied_from_.has_value()) return;
  copied_from_.reset();
  store_->EndCopies(lease_);
}

void KvStore::Sequence::Keep(absl::Span<const int32_t> ids) {
  store_->KeepLease(lease_, ids);
}

KvStore::Sequence::~Sequence() {
  if (store_ != nullptr) store_->CloseSequence(lease_);
}

}  // namespace runahead
