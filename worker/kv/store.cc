#include "worker/kv/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"

namespace runahead {
namespace {

int64_t BlocksFor(int64_t tokens) {
  return (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
}

std::string Name(const LeaseId& id) {
  return absl::StrFormat("lease %016x/%d/%016x", id.incarnation, id.epoch, id.number);
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(const KvStoreOptions& options, Device& device, Clock& clock) {
  const int64_t blocks = options.capacity_tokens / kKvBlockTokens;
  if (options.layers < 1 || options.row_bytes < 1 || blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a KV store of %d layers, %d bytes a row and %d tokens cannot be made: it takes at least one "
                        "layer, one byte and %d tokens",
                        options.layers, options.row_bytes, options.capacity_tokens, kKvBlockTokens));
  }
  const size_t bytes = static_cast<size_t>(options.layers * blocks * kKvBlockTokens * options.row_bytes);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> arena, device.Allocate(bytes, MemoryKind::kHost));
  return std::unique_ptr<KvStore>(new KvStore(options, std::move(arena), blocks, clock));
}

KvStore::KvStore(const KvStoreOptions& options, std::shared_ptr<Buffer> arena, int64_t blocks, Clock& clock)
    : options_(options),
      arena_(std::move(arena)),
      block_count_(blocks),
      clock_(clock),
      block_used_(blocks),
      blocks_free_(blocks) {}

KvStore::~KvStore() {
  std::vector<EventSource> ended;
  {
    MutexLock lock(mu_);
    for (const auto& [number, lease] : leases_) {
      RUNAHEAD_CHECK(!lease->open && lease->writing.empty());
      if (!lease->complete) ended.push_back(lease->completed);
    }
  }
  for (const EventSource& event : ended) event.Fire(absl::CancelledError("the KV store was closed"));
}

absl::StatusOr<KvStore::Lease*> KvStore::Find(const LeaseId& id) {
  if (id.incarnation != options_.incarnation || id.epoch != epoch_) {
    return absl::NotFoundError(
        absl::StrCat(Name(id), " was given by another worker, or by this one before it lost its router"));
  }
  const auto it = leases_.find(id.number);
  if (it == leases_.end() || it->second->dead || IsExpired(*it->second)) {
    return absl::NotFoundError(absl::StrCat(Name(id), " is unknown, released or expired"));
  }
  return it->second.get();
}

bool KvStore::IsExpired(const Lease& lease) const {
  const bool in_use = lease.open || lease.awaited || !lease.writing.empty();
  return !in_use && lease.expires < clock_.Now();
}

absl::StatusOr<std::vector<int64_t>> KvStore::TakeBlocks(int64_t count) {
  if (count > blocks_free_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("the KV store is full: %d tokens are wanted and %d of %d are free; try again later",
                        count * kKvBlockTokens, blocks_free_ * kKvBlockTokens, block_count_ * kKvBlockTokens));
  }
  std::vector<int64_t> taken;
  // The first run that holds all of them gives the fewest ranges to write and to read; else the lowest ones.
  int64_t run = 0;
  for (int64_t block = 0; block < block_count_ && run < count; ++block) {
    run = block_used_[block] ? 0 : run + 1;
    if (run == count) {
      for (int64_t b = block - count + 1; b <= block; ++b) taken.push_back(b);
    }
  }
  for (int64_t block = 0; static_cast<int64_t>(taken.size()) < count; ++block) {
    if (!block_used_[block]) taken.push_back(block);
  }
  for (const int64_t block : taken) block_used_[block] = true;
  blocks_free_ -= count;
  return taken;
}

absl::StatusOr<LeaseId> KvStore::Reserve(int64_t prompt_tokens, int64_t total_tokens) {
  if (prompt_tokens < 1 || total_tokens < prompt_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt_tokens is %d and total_tokens %d: a lease takes at least one prompt token, and no "
                        "fewer tokens in total than in the prompt",
                        prompt_tokens, total_tokens));
  }
  if (total_tokens > block_count_ * kKvBlockTokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("the request needs KV for %d tokens, and the whole store of this worker holds %d; shorten the "
                        "prompt or max_tokens, or start the worker with a larger store",
                        total_tokens, block_count_ * kKvBlockTokens));
  }
  const int64_t count = BlocksFor(total_tokens);
  bool full = false;
  {
    MutexLock lock(mu_);
    full = count > blocks_free_;
  }
  if (full) ReapExpired();
  MutexLock lock(mu_);
  auto lease = std::make_unique<Lease>();
  RUNAHEAD_ASSIGN_OR_RETURN(lease->blocks, TakeBlocks(count));
  lease->prompt_tokens = prompt_tokens;
  lease->total_tokens = total_tokens;
  lease->expires = clock_.Now() + options_.lease_life;
  lease->covered.resize(options_.layers);
  LeaseId id{options_.incarnation, RandomBits64(), epoch_};
  while (leases_.contains(id.number)) id.number = RandomBits64();
  leases_.emplace(id.number, std::move(lease));
  ++living_;
  return id;
}

absl::Status KvStore::Renew(const LeaseId& id) {
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(Lease * lease, Find(id));
  lease->expires = clock_.Now() + options_.lease_life;
  return absl::OkStatus();
}

absl::StatusOr<KvStore::Size> KvStore::SizeOf(const LeaseId& id) {
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(const Lease* const lease, Find(id));
  return Size{lease->prompt_tokens, lease->total_tokens};
}

EventSource KvStore::Kill(uint64_t number) {
  Lease& lease = *leases_.at(number);
  RUNAHEAD_CHECK(!lease.dead);
  lease.dead = true;
  --living_;
  const EventSource completed = lease.completed;
  FreeIfUnpinned(number);
  return completed;
}

void KvStore::FreeIfUnpinned(uint64_t number) {
  const auto it = leases_.find(number);
  Lease& lease = *it->second;
  if (!lease.dead || lease.open || !lease.writing.empty()) return;
  for (const int64_t block : lease.blocks) block_used_[block] = false;
  blocks_free_ += static_cast<int64_t>(lease.blocks.size());
  leases_.erase(it);
}

void KvStore::Release(const LeaseId& id) {
  EventSource completed;
  {
    MutexLock lock(mu_);
    const auto it = leases_.find(id.number);
    if (id.incarnation != options_.incarnation || id.epoch != epoch_ || it == leases_.end() || it->second->dead) return;
    completed = Kill(id.number);
  }
  completed.Fire(absl::CancelledError(absl::StrCat(Name(id), " was released")));
}

void KvStore::BeginEpoch(uint32_t epoch) {
  std::vector<EventSource> ended;
  {
    MutexLock lock(mu_);
    epoch_ = epoch;
    std::vector<uint64_t> living;
    for (const auto& [number, lease] : leases_) {
      if (!lease->dead) living.push_back(number);
    }
    for (const uint64_t number : living) ended.push_back(Kill(number));
  }
  for (const EventSource& event : ended) event.Fire(absl::CancelledError("the worker lost its router"));
}

uint32_t KvStore::epoch() const {
  MutexLock lock(mu_);
  return epoch_;
}

int KvStore::ReapExpired() {
  MutexLock lock(mu_);
  std::vector<uint64_t> over;
  for (const auto& [number, lease] : leases_) {
    if (!lease->dead && IsExpired(*lease)) over.push_back(number);
  }
  for (const uint64_t number : over) Kill(number);  // nobody awaits it
  expired_ += static_cast<int64_t>(over.size());
  return static_cast<int>(over.size());
}

absl::StatusOr<KvStore::Write> KvStore::BeginWrite(const LeaseId& id, int64_t layer, int64_t begin, int64_t end) {
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(Lease * lease, Find(id));
  if (layer < 0 || layer >= options_.layers || begin < 0 || begin >= end || end > lease->prompt_tokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("tokens [%d, %d) of layer %d are not in %s, which has %d layers and a "
                        "prompt of %d tokens",
                        begin, end, layer, Name(id), options_.layers, lease->prompt_tokens));
  }
  Write write;
  write.already_covered_ = lease->covered[layer].Covers(begin, end);
  if (!write.already_covered_) {
    for (const PendingWrite& other : lease->writing) {
      if (other.layer == layer && other.begin < end && begin < other.end) {
        return absl::AbortedError(absl::StrFormat("tokens [%d, %d) of layer %d of %s are being written already", begin,
                                                  end, layer, Name(id)));
      }
    }
    for (const KvSpan& span : SpansOf(lease->blocks, layer, begin, end)) write.destination_.push_back(span.rows);
  }
  write.store_ = this;
  write.lease_ = id.number;
  write.write_ = next_write_++;
  // A covered range takes no part in the check for overlaps: nobody writes through it.
  lease->writing.push_back({write.write_, write.already_covered_ ? -1 : layer, begin, end});
  return write;
}

absl::Status KvStore::EndWrite(uint64_t number, uint64_t write, bool commit) {
  EventSource completed;
  bool complete = false;
  {
    MutexLock lock(mu_);
    Lease& lease = *leases_.at(number);
    const auto it =
        std::find_if(lease.writing.begin(), lease.writing.end(), [&](const PendingWrite& w) { return w.id == write; });
    const PendingWrite ended = *it;
    lease.writing.erase(it);
    if (lease.dead) {
      FreeIfUnpinned(number);
      return absl::NotFoundError(
          absl::StrCat(Name({options_.incarnation, number, epoch_}), " ended before its bytes were in"));
    }
    lease.expires = clock_.Now() + options_.lease_life;  // also where bytes were lost: they are sent again
    if (!commit) return absl::OkStatus();
    if (ended.layer >= 0) {
      IntervalSet& covered = lease.covered[ended.layer];
      const bool before = covered.Covers(0, lease.prompt_tokens);
      covered.Add(ended.begin, ended.end);
      if (!before && covered.Covers(0, lease.prompt_tokens)) ++lease.layers_covered;
      complete = !lease.complete && lease.layers_covered == options_.layers;
      lease.complete = lease.complete || complete;
    }
    completed = lease.completed;
  }
  if (complete) completed.Fire(absl::OkStatus());
  return absl::OkStatus();
}

Event KvStore::Complete(const LeaseId& id) {
  absl::Status unknown;
  {
    MutexLock lock(mu_);
    absl::StatusOr<Lease*> lease = Find(id);
    if (lease.ok()) {
      (*lease)->awaited = true;
      return (*lease)->completed.event();
    }
    unknown = lease.status();
  }
  EventSource failed;
  failed.Fire(unknown);
  return failed.event();
}

absl::StatusOr<KvStore::Sequence> KvStore::Open(const LeaseId& id) {
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(Lease * lease, Find(id));
  if (lease->open) return absl::FailedPreconditionError(absl::StrCat(Name(id), " is decoded already"));
  if (!lease->complete) {
    return absl::FailedPreconditionError(absl::StrFormat("%s is not complete: %d of %d layers cover the prompt",
                                                         Name(id), lease->layers_covered, options_.layers));
  }
  lease->open = true;
  Sequence sequence;
  sequence.store_ = this;
  sequence.lease_ = id.number;
  sequence.total_tokens_ = lease->total_tokens;
  sequence.blocks_ = lease->blocks;
  const int64_t tokens = static_cast<int64_t>(lease->blocks.size()) * kKvBlockTokens;
  for (int64_t layer = 0; layer < options_.layers; ++layer) {
    sequence.spans_.push_back(SpansOf(lease->blocks, layer, 0, tokens));
  }
  return sequence;
}

void KvStore::CloseSequence(uint64_t number) {
  MutexLock lock(mu_);
  Lease& lease = *leases_.at(number);
  lease.open = false;
  // The completion event has fired long ago: nothing to fire here.
  if (!lease.dead) {
    Kill(number);
  } else {
    FreeIfUnpinned(number);
  }
}

std::vector<KvSpan> KvStore::SpansOf(const std::vector<int64_t>& blocks, int64_t layer, int64_t begin,
                                     int64_t end) const {
  std::vector<KvSpan> spans;
  while (begin < end) {
    const int64_t tokens = std::min(end, (begin / kKvBlockTokens + 1) * kKvBlockTokens) - begin;
    const int64_t row =
        (layer * block_count_ + blocks[begin / kKvBlockTokens]) * kKvBlockTokens + begin % kKvBlockTokens;
    const size_t offset = static_cast<size_t>(row * options_.row_bytes);
    const size_t bytes = static_cast<size_t>(tokens * options_.row_bytes);
    if (!spans.empty() && spans.back().rows.offset + spans.back().rows.size == offset) {
      spans.back().rows.size += bytes;
      spans.back().tokens += tokens;
    } else {
      spans.push_back({BufferRef{arena_, offset, bytes}, tokens});
    }
    begin += tokens;
  }
  return spans;
}

KvStore::Stats KvStore::stats() const {
  MutexLock lock(mu_);
  const int64_t block_bytes = options_.layers * kKvBlockTokens * options_.row_bytes;
  return {block_count_ * block_bytes, (block_count_ - blocks_free_) * block_bytes, living_, expired_};
}

KvStore::Write::Write(Write&& other) noexcept {
  *this = std::move(other);
}

KvStore::Write& KvStore::Write::operator=(Write&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->EndWrite(lease_, write_, false).IgnoreError();
  store_ = std::exchange(other.store_, nullptr);
  lease_ = other.lease_;
  write_ = other.write_;
  already_covered_ = other.already_covered_;
  destination_ = std::move(other.destination_);
  return *this;
}

KvStore::Write::~Write() {
  if (store_ != nullptr) store_->EndWrite(lease_, write_, false).IgnoreError();
}

absl::Status KvStore::Write::Commit() {
  RUNAHEAD_CHECK(store_ != nullptr);
  return std::exchange(store_, nullptr)->EndWrite(lease_, write_, true);
}

KvStore::Sequence::Sequence(Sequence&& other) noexcept {
  *this = std::move(other);
}

KvStore::Sequence& KvStore::Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->CloseSequence(lease_);
  store_ = std::exchange(other.store_, nullptr);
  lease_ = other.lease_;
  total_tokens_ = other.total_tokens_;
  blocks_ = std::move(other.blocks_);
  spans_ = std::move(other.spans_);
  return *this;
}

KvStore::Sequence::~Sequence() {
  if (store_ != nullptr) store_->CloseSequence(lease_);
}

KvSpan KvStore::Sequence::Row(int64_t layer, int64_t position) const {
  RUNAHEAD_CHECK(position >= 0 && position < total_tokens_);
  return store_->SpansOf(blocks_, layer, position, position + 1).front();
}

}  // namespace runahead
