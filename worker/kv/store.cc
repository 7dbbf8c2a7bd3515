#include "worker/kv/store.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/kv_table.h"
#include "kernels/base/status_macros.h"

namespace runahead {

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
  RUNAHEAD_ASSIGN_OR_RETURN(ArrivalBuffers bounce, MakeArrivalBuffers(options, device, blocks));
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

KvStore::KvStore(const KvStoreOptions& options, BlockPool pool, std::optional<KvArena> x_arena, ArrivalBuffers bounce,
                 Clock& clock)
    : options_(options),
      arena_(pool.arena()),
      x_arena_(std::move(x_arena)),
      bounce_(std::move(bounce)),
      pool_(std::move(pool)),
      leases_(options.incarnation, options.lease_life, clock),
      kept_(options.windows) {}

KvStore::~KvStore() {
  bounce_ = {};  // first: the end of a copy ends a write
  std::vector<EventSource> ended;
  {
    MutexLock lock(mu_);
    ended = ReturnBlocks(leases_.EndAll());
    RUNAHEAD_CHECK(leases_.empty());  // else a write or a sequence is open
  }
  for (const EventSource& event : ended) event.Fire(absl::CancelledError("the KV store was closed"));
}

absl::Status KvStore::CheckHandedTokens(const LeaseRequest& request) const {
  if (!request.handed_tokens.has_value()) return absl::OkStatus();
  if (*request.handed_tokens < 0 || *request.handed_tokens >= request.prompt_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("handed_tokens: is %d, and of a prompt of %d tokens it must be from 0 to %d",
                        *request.handed_tokens, request.prompt_tokens, request.prompt_tokens - 1));
  }
  const bool windowed =
      std::any_of(options_.windows.begin(), options_.windows.end(), [](int64_t window) { return window > 0; });
  if (!request.with_x && (request.share.tokens == 0 || !windowed)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "handed_tokens: a lease to which X arrives, or that shares rows of layers with windows, takes the whole prompt");
}

absl::Status KvStore::CheckArrivingTokens(const LeaseRequest& request) const {
  if (!request.arriving_tokens.has_value()) return absl::OkStatus();
  const int64_t most = request.expected_tokens.value_or(request.total_tokens);
  if (*request.arriving_tokens < request.prompt_tokens || *request.arriving_tokens > most) {
    return absl::InvalidArgumentError(
        absl::StrFormat("arriving_tokens: is %d, and with a prompt of %d tokens and %d expected it must be from %d to "
                        "%d",
                        *request.arriving_tokens, request.prompt_tokens, most, request.prompt_tokens, most));
  }
  if (!request.with_x && !request.handed_tokens.has_value() && request.share.tokens == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "arriving_tokens: a lease to which X arrives, that shares rows, or that is handed a part of the prompt takes no "
      "sequence that runs elsewhere");
}

absl::Status KvStore::CheckRequest(const LeaseRequest& request) const {
  if (request.with_x && !x_arena_.has_value()) {
    return absl::InvalidArgumentError("X is to arrive, and this store keeps none: reserve without it");
  }
  if (request.prompt_tokens < 1 || request.total_tokens < request.prompt_tokens || request.share.tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt_tokens is %d, total_tokens %d and those to share are %d: a lease takes at least one "
                        "prompt token, and no fewer tokens in total than in the prompt",
                        request.prompt_tokens, request.total_tokens, request.share.tokens));
  }
  if (const int64_t last = request.with_x ? request.prompt_tokens : 0; request.kv_from < 0 || request.kv_from > last) {
    return absl::InvalidArgumentError(
        absl::StrFormat("kv_from: %d is not in [0, %d], the tokens of which X is to arrive", request.kv_from, last));
  }
  RUNAHEAD_RETURN_IF_ERROR(CheckHandedTokens(request));
  RUNAHEAD_RETURN_IF_ERROR(CheckArrivingTokens(request));
  RUNAHEAD_RETURN_IF_ERROR(CheckKnownTokens(request));
  const int64_t expected = request.expected_tokens.value_or(request.total_tokens);
  if (expected < request.prompt_tokens || expected > request.total_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "expected_tokens: is %d, and with a prompt of %d tokens and %d in total it must be from %d to %d", expected,
        request.prompt_tokens, request.total_tokens, request.prompt_tokens, request.total_tokens));
  }
  if (request.total_tokens > arena_.blocks() * kKvBlockTokens) {
    return absl::OutOfRangeError(
        absl::StrFormat("the request needs KV for %d tokens, and the whole store of this worker holds %d; shorten the "
                        "prompt or max_tokens, or start the worker with a larger store",
                        request.total_tokens, arena_.blocks() * kKvBlockTokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<LeaseId> KvStore::Reserve(const LeaseRequest& request) {
  RUNAHEAD_RETURN_IF_ERROR(CheckRequest(request));
  const bool grows = request.expected_tokens.has_value();
  const int64_t expected = request.expected_tokens.value_or(request.total_tokens);
  const int64_t arriving = request.arriving_tokens.value_or(request.prompt_tokens);
  const int64_t first = grows ? std::min(expected, arriving + kFirstPortion) : expected;
  const bool from_known = request.least_known_tokens.has_value();
  MutexLock lock(mu_);
  if (KvBlocksFor(expected) + (from_known ? 1 : 0) > RoomForNew(grows)) Reap();
  KnownPart known;
  if (from_known) {
    RUNAHEAD_ASSIGN_OR_RETURN(known, HoldKnown(request, KvBlocksFor(expected), grows));
  }
  std::vector<SliceKind> kinds = {SliceKind::kKv};
  if (request.with_x && (!from_known || known.has_x)) kinds.push_back(SliceKind::kX);
  const bool rest_computed = from_known && !request.rest_handed;  // by the engine
  const int64_t handed = rest_computed ? known.tokens : request.handed_tokens.value_or(request.prompt_tokens);
  Arrival arrival(options_.layers, arriving, std::move(kinds), request.kv_from, HiddenOf(handed));
  KvLease* from = nullptr;
  std::vector<int32_t> blocks = std::move(known.blocks);
  if (request.share.tokens > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(from, leases_.Find(request.share.lease));
    // Decode appends behind the prompt, so whole blocks of both prompts are appended to by nobody.
    const int64_t tokens = std::min(
        {request.share.tokens, request.prompt_tokens, from->was_parked ? 0 : from->arrival.SettledFor(arrival)});
    blocks.assign(from->blocks.begin(), from->blocks.begin() + tokens / kKvBlockTokens);
  }
  const int64_t shared = static_cast<int64_t>(blocks.size());
  if (!from_known) RUNAHEAD_RETURN_IF_ERROR(CheckRoom(KvBlocksFor(expected) - shared, grows));
  if (from != nullptr) {
    pool_.Share(blocks);
    from->arrival.Fix(shared * kKvBlockTokens);
    arrival.Fix(shared * kKvBlockTokens);
    known.of_answer = from->known_answers;
    known.of_answer.resize(std::min<size_t>(known.of_answer.size(), shared * kKvBlockTokens));
  }
  const std::vector<int32_t> fresh = TakeBlocks(KvBlocksFor(first) - shared);
  if (from_known) arrival.Fix(known.tokens);
  if (rest_computed || request.handed_tokens.has_value()) arrival.EndAt(std::max(handed, shared * kKvBlockTokens));
  const bool moves_in = request.arriving_tokens.has_value();
  for (const SliceKind kind : arrival.kinds()) {
    if (!moves_in) HandoffOf(kind).expected_bytes += arrival.Missing(kind) * RowBytes(kind);
  }
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  auto lease =
      std::make_unique<KvLease>(request.prompt_tokens, request.total_tokens, std::move(blocks), std::move(arrival));
  lease->grows = grows;
  lease->moves_in = moves_in;
  lease->parked_first = request.parked_first;
  lease->salt = std::string(request.salt);
  // Who sends a sequence does not say which of its prompt's rows were an answer's there.
  lease->not_kept = request.not_kept || moves_in;
  lease->known_answers = std::move(known.of_answer);
  lease->copied_from = known.copied_from;
  lease->hole = HoleOf(known, handed);
  if (lease->arrival.complete()) lease->completed.Fire(absl::OkStatus());  // nobody has asked for the event yet
  KvLease& added = *lease;
  const LeaseId id = leases_.Add(std::move(lease));
  Count(added, expected);
  return id;
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
  const std::vector<bool>& known = lease->known_answers;
  return Size{lease->prompt_tokens,
              lease->total_tokens,
              lease->arrival.fixed(),
              lease->arrival.end(),
              lease->grows,
              lease->arrival.Has(SliceKind::kX),
              static_cast<int64_t>(known.size()),
              std::count(known.begin(), known.end(), true)};
}

absl::Status KvStore::EndArrival(const LeaseId& id, int64_t tokens) {
  std::optional<EventSource> completed;
  {
    MutexLock lock(mu_);
    RUNAHEAD_ASSIGN_OR_RETURN(KvLease * lease, leases_.Find(id));
    Arrival& arrival = lease->arrival;
    if (!lease->moves_in || tokens < lease->prompt_tokens || tokens > arrival.tokens() || arrival.under_way()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s, with a prompt of %d tokens, takes no KV of %d tokens from elsewhere, or some is under "
                          "way still",
                          LeaseName(id), lease->prompt_tokens, tokens));
    }
    lease->moves_in = false;
    const bool before = arrival.complete();
    arrival.EndAt(tokens);
    if (!before && arrival.complete()) completed = lease->completed;
  }
  if (completed.has_value()) completed->Fire(absl::OkStatus());
  return absl::OkStatus();
}

std::vector<EventSource> KvStore::ReturnBlocks(const std::vector<LeaseTable::Ending>& endings) {
  std::vector<EventSource> events;
  for (const LeaseTable::Ending& ending : endings) {
    GiveBack(ending.blocks);
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
    GiveBack(ending->blocks);
  }
  ending->completed.Fire(absl::CancelledError(absl::StrCat(LeaseName(id), " was released")));
}

void KvStore::BeginEpoch(uint32_t epoch) {
  std::vector<EventSource> ended;
  {
    MutexLock lock(mu_);
    ended = ReturnBlocks(leases_.BeginEpoch(epoch));
    ForgetKept();
    news_.Clear();
  }
  for (const EventSource& event : ended) event.Fire(absl::CancelledError("the worker lost its router"));
}

uint32_t KvStore::epoch() const {
  MutexLock lock(mu_);
  return leases_.epoch();
}

int64_t KvStore::RowBytes(SliceKind kind) const {
  return kind == SliceKind::kKv ? options_.row_bytes : options_.arriving_x_row_bytes();
}

std::vector<int64_t> KvStore::HiddenOf(int64_t position) const {
  std::vector<int64_t> hidden;
  for (const int64_t window : options_.windows) hidden.push_back(FirstSeen(window, position));
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
    if (layer < 0 || layer >= options_.layers || begin < 0 || begin >= end || end > lease->arrival.tokens()) {
      return absl::OutOfRangeError(
          absl::StrFormat("tokens [%d, %d) of layer %d are not in %s, which has %d layers and takes %d tokens", begin,
                          end, layer, LeaseName(id), options_.layers, lease->arrival.tokens()));
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
  if (write.already_covered_) return write;
  write.bounce_ = (kind == SliceKind::kKv ? bounce_.kv : bounce_.x).get();
  if (write.bounce_ != nullptr) write.room_ = write.bounce_->Request(begin, end);
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
        // What of a sequence that moves in was to come nobody said, so neither counts.
        if (!lease.moves_in) HandoffOf(fresh.kind).received_bytes += fresh.tokens * RowBytes(fresh.kind);
      }
      if (!before && lease.arrival.complete()) completed = lease.completed;
    }
    GiveBack(leases_.EndWrite(number));
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
  sequence.prompt_tokens_ = lease->prompt_tokens;
  sequence.handed_tokens_ = lease->arrival.end();
  sequence.known_tokens_ = static_cast<int64_t>(lease->known_answers.size());
  sequence.has_x_ = lease->arrival.Has(SliceKind::kX);
  sequence.kv_from_ = lease->arrival.kv_from();
  sequence.grows_ = lease->grows;
  sequence.parked_first_ = lease->parked_first;
  sequence.total_tokens_ = lease->total_tokens;
  sequence.copied_from_ = lease->copied_from;
  return sequence;
}

void KvStore::CloseSequence(uint64_t number) {
  MutexLock lock(mu_);
  GiveBack(leases_.Close(number));  // its completion event has fired long ago
}

KvStore::Stats KvStore::stats() const {
  MutexLock lock(mu_);
  return {arena_.blocks() * BlockBytes(),
          pool_.used() * BlockBytes(),
          std::min(pool_.used() + leases_.promised(), arena_.blocks()) * BlockBytes(),
          std::max<int64_t>(0, RoomForNew(/*grows=*/true)) * BlockBytes(),
          leases_.living(),
          leases_.expired(),
          handed_kv_,
          handed_x_,
          pool_.kept() * BlockBytes(),
          evicted_ * BlockBytes()};
}

}  // namespace runahead
