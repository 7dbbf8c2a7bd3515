#include "worker/kv/store.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Values of a row of KV.
int64_t RowValues(const KvStoreOptions& options) {
  return options.row_bytes / static_cast<int64_t>(DTypeSize(options.quantisation->dtype));
}

BounceBuffer::Move QuantiseBy(const KvStoreOptions& options) {
  return {options.stored_row_bytes(), [how = *options.quantisation, columns = RowValues(options),
                                       row_bytes = static_cast<size_t>(options.row_bytes)](
                                          Stream& stream, const ConstBufferRef& from, const BufferRef& to) {
            const Tensor rows = MakeTensor(from, how.dtype, static_cast<int64_t>(from.size / row_bytes), columns);
            return how.host->QuantizeKv(stream, rows, how.quant, to);
          }};
}

// Null where slices need none.
absl::StatusOr<std::unique_ptr<BounceBuffer>> MakeBounceBuffer(const KvStoreOptions& options, Device& device,
                                                               int64_t store_blocks) {
  const bool quantises = options.quantisation.has_value();
  const bool reaches = options.tier == MemoryKind::kHost || device.host_reads_device_memory();
  if (reaches && !quantises) return nullptr;
  const int64_t block_bytes = kKvBlockTokens * options.row_bytes;
  const int64_t blocks = options.bounce_bytes == 0 ? store_blocks : options.bounce_bytes / block_bytes;
  if (blocks < store_blocks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "slices reach a store in device memory through %d bytes of host memory, and one slice may be as "
        "large as a layer of the store, which has %d bytes",
        options.bounce_bytes, store_blocks * block_bytes));
  }
  if (quantises) {
    return BounceBuffer::Create(*options.quantisation->host, blocks, options.row_bytes, QuantiseBy(options));
  }
  return BounceBuffer::Create(device, blocks, options.row_bytes, BounceBuffer::CopyBy(device, options.row_bytes));
}

absl::Status CheckQuantisation(const KvStoreOptions& options) {
  if (!options.quantisation.has_value()) return absl::OkStatus();
  const KvQuant& quant = options.quantisation->quant;
  if (options.tier == MemoryKind::kHost && options.quantisation->host != nullptr &&
      (quant.bits == 4 || quant.bits == 8) && quant.group > 0 && RowValues(options) % quant.group == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("KV of %d bytes a row cannot be kept in %d bits by groups of %d: 4 and 8 bits work, in host "
                      "memory, where a row is whole groups",
                      options.row_bytes, quant.bits, quant.group));
}

}  // namespace

int64_t KvStoreOptions::stored_row_bytes() const {
  if (!quantisation.has_value()) return row_bytes;
  return static_cast<int64_t>(KvQuantRowBytes(RowValues(*this), quantisation->quant));
}

absl::StatusOr<std::unique_ptr<KvStore>> KvStore::Create(const KvStoreOptions& options, Device& device, Clock& clock) {
  const int64_t blocks = options.capacity_tokens / kKvBlockTokens;
  if (options.x_row_bytes < 0 || (options.x_row_bytes > 0 && options.tier != MemoryKind::kHost)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes of X a row: X is kept beside KV in host memory, to be recomputed from, and nowhere "
                        "else",
                        options.x_row_bytes));
  }
  if (options.layers < 1 || options.row_bytes < 1 || blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a KV store of %d layers, %d bytes a row and %d tokens cannot be made: it takes at least one "
                        "layer, one byte and %d tokens",
                        options.layers, options.row_bytes, options.capacity_tokens, kKvBlockTokens));
  }
  if (!options.windows.empty() && static_cast<int64_t>(options.windows.size()) != options.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("windows of %d layers, and the store has %d", options.windows.size(), options.layers));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckQuantisation(options));
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<BounceBuffer> bounce, MakeBounceBuffer(options, device, blocks));
  RUNAHEAD_ASSIGN_OR_RETURN(KvArena arena,
                            KvArena::Create(device, options.tier, options.layers, blocks, options.stored_row_bytes()));
  std::optional<KvArena> x_arena;
  if (options.x_row_bytes > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(x_arena,
                              KvArena::Create(device, options.tier, options.layers, blocks, options.x_row_bytes));
  }
  return std::unique_ptr<KvStore>(
      new KvStore(options, BlockPool(std::move(arena)), std::move(x_arena), std::move(bounce), clock));
}

KvStore::KvStore(const KvStoreOptions& options, BlockPool pool, std::optional<KvArena> x_arena,
                 std::unique_ptr<BounceBuffer> bounce, Clock& clock)
    : options_(options),
      arena_(pool.arena()),
      x_arena_(std::move(x_arena)),
      bounce_(std::move(bounce)),
      pool_(std::move(pool)),
      leases_(options.incarnation, options.lease_life, clock) {}

KvStore::~KvStore() {
  bounce_.reset();  // first: the end of a copy ends a write
  std::vector<EventSource> ended;
  {
    MutexLock lock(mu_);
    ended = ReturnBlocks(leases_.EndAll());
    RUNAHEAD_CHECK(leases_.empty());  // else a write or a sequence is open
  }
  for (const EventSource& event : ended) event.Fire(absl::CancelledError("the KV store was closed"));
}

absl::StatusOr<LeaseId> KvStore::Reserve(int64_t prompt_tokens, int64_t total_tokens, const SharedPrefix& share,
                                         bool with_x, int64_t kv_from) {
  if (with_x && !x_arena_.has_value()) {
    return absl::InvalidArgumentError("X is to arrive, and this store keeps none: reserve without it");
  }
  if (prompt_tokens < 1 || total_tokens < prompt_tokens || share.tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt_tokens is %d, total_tokens %d and those to share are %d: a lease takes at least one "
                        "prompt token, and no fewer tokens in total than in the prompt",
                        prompt_tokens, total_tokens, share.tokens));
  }
  if (const int64_t last = with_x ? prompt_tokens : 0; kv_from < 0 || kv_from > last) {
    return absl::InvalidArgumentError(
        absl::StrFormat("kv_from: %d is not in [0, %d], the tokens of which X is to arrive", kv_from, last));
  }
  if (total_tokens > arena_.blocks() * kKvBlockTokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("the request needs KV for %d tokens, and the whole store of this worker holds %d; shorten the "
                        "prompt or max_tokens, or start the worker with a larger store",
                        total_tokens, arena_.blocks() * kKvBlockTokens));
  }
  std::vector<SliceKind> kinds = {SliceKind::kKv};
  if (with_x) kinds.push_back(SliceKind::kX);
  Arrival arrival(options_.layers, prompt_tokens, std::move(kinds), kv_from, HiddenOf(prompt_tokens));
  MutexLock lock(mu_);
  if (KvBlocksFor(total_tokens) > pool_.free()) Reap();
  KvLease* from = nullptr;
  std::vector<int32_t> blocks;
  if (share.tokens > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(from, leases_.Find(share.lease));
    // Decode appends behind the prompt, so whole blocks of both prompts are appended to by nobody.
    const int64_t tokens = std::min({share.tokens, prompt_tokens, from->arrival.SettledFor(arrival)});
    blocks.assign(from->blocks.begin(), from->blocks.begin() + tokens / kKvBlockTokens);
  }
  const int64_t shared = static_cast<int64_t>(blocks.size());
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int32_t> fresh, pool_.Take(KvBlocksFor(total_tokens) - shared));
  if (from != nullptr) {
    pool_.Share(blocks);
    from->arrival.Fix(shared * kKvBlockTokens);
    arrival.Fix(shared * kKvBlockTokens);
  }
  for (const SliceKind kind : arrival.kinds()) {
    HandoffOf(kind).expected_bytes += arrival.Missing(kind) * RowBytes(kind);
  }
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  auto lease = std::make_unique<KvLease>(prompt_tokens, total_tokens, std::move(blocks), std::move(arrival));
  if (lease->arrival.complete()) lease->completed.Fire(absl::OkStatus());  // nobody has asked for the event yet
  return leases_.Add(std::move(lease));
}

absl::Status KvStore::Renew(const LeaseId& id) {
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(KvLease * lease, leases_.Find(id));
  leases_.Renew(*lease);
  return absl::OkStatus();
}

absl::StatusOr<KvStore::Size> KvStore::SizeOf(const LeaseId& id) {
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(const KvLease* const lease, leases_.Find(id));
  return Size{lease->prompt_tokens, lease->total_tokens, lease->arrival.fixed()};
}

std::vector<EventSource> KvStore::ReturnBlocks(const std::vector<LeaseTable::Ending>& endings) {
  std::vector<EventSource> events;
  for (const LeaseTable::Ending& ending : endings) {
    pool_.Return(ending.blocks);
    events.push_back(ending.completed);
  }
  return events;
}

void KvStore::Release(const LeaseId& id) {
  std::optional<LeaseTable::Ending> ending;
  {
    MutexLock lock(mu_);
    ending = leases_.Release(id);
    if (!ending.has_value()) return;
    pool_.Return(ending->blocks);
  }
  ending->completed.Fire(absl::CancelledError(absl::StrCat(LeaseName(id), " was released")));
}

void KvStore::BeginEpoch(uint32_t epoch) {
  std::vector<EventSource> ended;
  {
    MutexLock lock(mu_);
    ended = ReturnBlocks(leases_.BeginEpoch(epoch));
  }
  for (const EventSource& event : ended) event.Fire(absl::CancelledError("the worker lost its router"));
}

uint32_t KvStore::epoch() const {
  MutexLock lock(mu_);
  return leases_.epoch();
}

int64_t KvStore::RowBytes(SliceKind kind) const {
  return kind == SliceKind::kKv ? options_.row_bytes : options_.x_row_bytes;
}

std::vector<int64_t> KvStore::HiddenOf(int64_t prompt_tokens) const {
  std::vector<int64_t> hidden;
  for (const int64_t window : options_.windows) hidden.push_back(FirstSeen(window, prompt_tokens));
  return hidden;
}

KvStore::Stats::Handoff& KvStore::HandoffOf(SliceKind kind) {
  return kind == SliceKind::kKv ? handed_kv_ : handed_x_;
}

int64_t KvStore::BlockBytes() const {
  return arena_.block_bytes() + (x_arena_.has_value() ? x_arena_->block_bytes() : 0);
}

int KvStore::Reap() {
  return static_cast<int>(ReturnBlocks(leases_.ReapExpired()).size());  // nobody waits for their events
}

int KvStore::ReapExpired() {
  MutexLock lock(mu_);
  return Reap();
}

absl::StatusOr<KvStore::Write> KvStore::BeginWrite(const LeaseId& id, int64_t layer, int64_t begin, int64_t end,
                                                   SliceKind kind) {
  Write write;
  {
    MutexLock lock(mu_);
    RUNAHEAD_ASSIGN_OR_RETURN(KvLease * lease, leases_.Find(id));
    if (layer < 0 || layer >= options_.layers || begin < 0 || begin >= end || end > lease->prompt_tokens) {
      return absl::OutOfRangeError(
          absl::StrFormat("tokens [%d, %d) of layer %d are not in %s, which has %d layers and a prompt of %d tokens",
                          begin, end, layer, LeaseName(id), options_.layers, lease->prompt_tokens));
    }
    if (!lease->arrival.Has(kind)) {
      return absl::OutOfRangeError(absl::StrCat(LeaseName(id), " was reserved for KV alone, without X"));
    }
    write.already_covered_ = lease->arrival.Covers(kind, layer, begin, end);
    if (!write.already_covered_) {
      if (begin < lease->arrival.fixed()) {
        return absl::OutOfRangeError(
            absl::StrFormat("tokens [%d, %d) of layer %d begin in the %d that %s shares with another and that nobody "
                            "writes again",
                            begin, end, layer, lease->arrival.fixed(), LeaseName(id)));
      }
      const std::optional<uint64_t> begun = lease->arrival.Begin(kind, layer, begin, end);
      if (!begun.has_value()) {
        return absl::AbortedError(absl::StrFormat("tokens [%d, %d) of layer %d of %s are being written already", begin,
                                                  end, layer, LeaseName(id)));
      }
      write.write_ = *begun;
      const KvArena& arena = kind == SliceKind::kKv ? arena_ : *x_arena_;
      for (const KvSpan& span : arena.Spans(lease->blocks, layer, begin, end)) write.rows_.push_back(span.rows);
    }
    ++lease->writes;
    write.store_ = this;
    write.lease_ = id.number;
  }
  if (bounce_ != nullptr && !write.already_covered_ && kind == SliceKind::kKv) {
    write.room_ = bounce_->Request(begin, end);
  }
  return write;
}

absl::Status KvStore::EndWrite(uint64_t number, uint64_t write, const absl::Status& came) {
  std::optional<EventSource> completed;
  {
    MutexLock lock(mu_);
    KvLease& lease = leases_.at(number);
    const bool dead = lease.dead;
    if (!dead) {
      leases_.Renew(lease);  // also where bytes were lost: they are sent again
      const bool before = lease.arrival.complete();
      if (write != 0) {
        const Arrival::Came fresh = lease.arrival.End(write, came.ok());
        HandoffOf(fresh.kind).received_bytes += fresh.tokens * RowBytes(fresh.kind);
      }
      if (!before && lease.arrival.complete()) completed = lease.completed;
    }
    pool_.Return(leases_.EndWrite(number));
    if (dead) return absl::NotFoundError("the lease ended before its bytes were in");
  }
  if (completed.has_value()) completed->Fire(absl::OkStatus());
  return came;
}

Event KvStore::Complete(const LeaseId& id) {
  absl::Status unknown;
  {
    MutexLock lock(mu_);
    absl::StatusOr<KvLease*> lease = leases_.Find(id);
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
  RUNAHEAD_ASSIGN_OR_RETURN(KvLease * lease, leases_.Find(id));
  if (lease->open) return absl::FailedPreconditionError(absl::StrCat(LeaseName(id), " is decoded already"));
  if (!lease->arrival.complete()) {
    return absl::FailedPreconditionError(absl::StrFormat("%s is not complete: %d of %d layers cover the prompt",
                                                         LeaseName(id), lease->arrival.layers_complete(),
                                                         options_.layers));
  }
  lease->open = true;
  Sequence sequence;
  sequence.store_ = this;
  sequence.lease_ = id.number;
  sequence.blocks_ = lease->blocks;
  sequence.has_x_ = lease->arrival.Has(SliceKind::kX);
  sequence.kv_from_ = lease->arrival.kv_from();
  return sequence;
}

void KvStore::CloseSequence(uint64_t number) {
  MutexLock lock(mu_);
  pool_.Return(leases_.Close(number));  // its completion event has fired long ago
}

KvStore::Stats KvStore::stats() const {
  MutexLock lock(mu_);
  return {arena_.blocks() * BlockBytes(),
          pool_.used() * BlockBytes(),
          leases_.living(),
          leases_.expired(),
          handed_kv_,
          handed_x_};
}

}  // namespace runahead
