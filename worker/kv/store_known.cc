// What KvStore keeps of sequences that ended, and what leases begin with it.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "worker/kv/store.h"

namespace runahead {

absl::Status KvStore::CheckKnownTokens(const LeaseRequest& request) {
  if (!request.least_known_tokens.has_value()) {
    if (!request.rest_handed) return absl::OkStatus();
    return absl::InvalidArgumentError("rest_handed: goes with least_known_tokens alone");
  }
  if (*request.least_known_tokens < 1 || *request.least_known_tokens >= request.prompt_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("least_known_tokens: is %d, and of a prompt of %d tokens it must be from 1 to %d",
                        *request.least_known_tokens, request.prompt_tokens, request.prompt_tokens - 1));
  }
  if (static_cast<int64_t>(request.prompt_ids.size()) != request.prompt_tokens) {
    return absl::InvalidArgumentError(absl::StrFormat("prompt_ids: has %d ids, and the prompt is of %d tokens",
                                                      request.prompt_ids.size(), request.prompt_tokens));
  }
  const bool alone =
      !request.handed_tokens.has_value() && !request.arriving_tokens.has_value() && request.share.tokens == 0;
  const bool x_fits = !request.with_x || (request.rest_handed && request.kv_from == 0);
  if (alone && x_fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "least_known_tokens: goes neither with handed_tokens nor with arriving_tokens or with shared rows; and with X "
      "only where it comes beside KV, with rest_handed");
}

// A begun block is copied, so its source takes memory beside the lease's until then. Where there is none for it the
// lease begins with the whole blocks alone, if these are enough. Whoever asked believes that it is there, and is right
// where memory alone is the matter: NOT_FOUND says that it is not.
absl::StatusOr<KvStore::KnownPart> KvStore::HoldKnown(const LeaseRequest& request, int64_t blocks, bool grows) {
  const int64_t least = *request.least_known_tokens;
  absl::Span<const int32_t> ids = request.prompt_ids.first(request.rest_handed ? least : request.prompt_tokens - 1);
  for (;;) {
    Beginnings::Hit hit = kept_.Find(request.salt, ids);
    if (hit.tokens < least) {
      return absl::NotFoundError(absl::StrFormat(
          "KV of the prompt's first %d tokens is here, and least_known_tokens is %d", hit.tokens, least));
    }
    const int64_t whole = hit.tokens / kKvBlockTokens;
    pool_.Share(hit.blocks);  // first: what has a reference is not free any more
    const absl::Status room = CheckRoom(blocks - whole, grows);
    if (room.ok()) {
      kept_.Use(request.salt, ids.first(hit.tokens));
      KnownPart part{.tokens = hit.tokens, .of_answer = std::move(hit.of_answer), .hole = hit.hole, .has_x = hit.has_x};
      if (hit.tokens % kKvBlockTokens > 0) part.copied_from = hit.blocks.back();
      hit.blocks.resize(whole);
      part.blocks = std::move(hit.blocks);
      return part;
    }
    pool_.Return(hit.blocks);
    if (hit.tokens % kKvBlockTokens == 0) return room;
    if (whole * kKvBlockTokens < least) {
      if (blocks < arena_.blocks()) return room;
      return absl::OutOfRangeError(absl::StrFormat(
          "KV of the prompt's first %d tokens is here, but beside the request's %d tokens the whole store of this "
          "worker, which holds %d, has no block left to copy the last rows from; least_known_tokens is %d",
          hit.tokens, request.total_tokens, arena_.blocks() * kKvBlockTokens, least));
    }
    ids = ids.first(whole * kKvBlockTokens);
  }
}

// Rows that windows hide from the first query behind what comes do not come; those of what is known may be there all
// the same, from whoever left them.
int64_t KvStore::HoleOf(const KnownPart& known, int64_t handed) const {
  int64_t hole = known.hole;
  for (const int64_t hidden : HiddenOf(handed)) {
    if (hidden > known.tokens) hole = std::max(hole, hidden);
  }
  return hole;
}

absl::StatusOr<KvStore::Lent> KvStore::LendKnown(const LeaseId& id, int64_t tokens) {
  Lent lent;
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(const KvLease* const lease, leases_.Find(id));
  const auto known = static_cast<int64_t>(lease->known_answers.size());
  if (tokens < 1 || tokens > known) {
    return absl::OutOfRangeError(
        absl::StrFormat("%s began with KV of %d tokens, and that of %d is asked for", LeaseName(id), known, tokens));
  }
  lent.blocks_.assign(lease->blocks.begin(), lease->blocks.begin() + KvBlocksFor(tokens));
  if (const bool begun = tokens > known / kKvBlockTokens * kKvBlockTokens; begun && lease->copied_from.has_value()) {
    lent.blocks_.back() = *lease->copied_from;
  }
  lent.end_ = tokens;
  pool_.Share(lent.blocks_);
  lent.store_ = this;
  return lent;
}

void KvStore::EndCopies(uint64_t number) {
  MutexLock lock(mu_);
  KvLease& lease = leases_.at(number);
  RUNAHEAD_CHECK(lease.copied_from.has_value());
  GiveBack({*std::exchange(lease.copied_from, std::nullopt)});
}

// Of a lease that is dead, its router knows nothing any more.
void KvStore::KeepLease(uint64_t number, absl::Span<const int32_t> ids) {
  MutexLock lock(mu_);
  const KvLease& lease = leases_.at(number);
  if (!keeps() || lease.dead || lease.not_kept || lease.blocks.empty()) return;
  RUNAHEAD_CHECK(lease.open && !lease.copied_from.has_value() &&
                 KvBlocksFor(static_cast<int64_t>(ids.size())) <= static_cast<int64_t>(lease.blocks.size()));
  std::vector<bool> of_answer = lease.known_answers;
  of_answer.resize(std::max(of_answer.size(), static_cast<size_t>(lease.prompt_tokens)), false);
  of_answer.resize(std::max(of_answer.size(), ids.size()), true);
  const Beginnings::Change change =
      kept_.Add(lease.salt, ids, lease.blocks, of_answer, lease.hole, lease.arrival.Has(SliceKind::kX));
  for (const int32_t block : change.kept) pool_.Keep(block);
  for (const int32_t block : change.forgotten) pool_.Forget(block);
  for (const uint64_t hash : change.fresh) news_.Kept(hash);
}

// Of the oldest what nobody needs now is blank at once; what somebody does will be when that ends.
std::vector<int32_t> KvStore::TakeBlocks(int64_t count) {
  const int64_t before = pool_.blank();
  while (pool_.blank() < count) {
    const std::optional<Beginnings::Removed> oldest = kept_.RemoveOldest();
    RUNAHEAD_CHECK(oldest.has_value());  // else more is free than is blank and nobody keeps it
    pool_.Forget(oldest->block);
    news_.Evicted(oldest->hash);
  }
  evicted_ += pool_.blank() - before;
  absl::StatusOr<std::vector<int32_t>> taken = pool_.Take(count);
  RUNAHEAD_CHECK(taken.ok());
  return *std::move(taken);
}

int64_t KvStore::Forget(std::optional<absl::string_view> salt) {
  MutexLock lock(mu_);
  const int64_t before = pool_.kept();
  if (salt.has_value()) {
    for (const int32_t block : kept_.RemoveSalt(*salt)) pool_.Forget(block);
  } else {
    ForgetKept();
  }
  return (before - pool_.kept()) * BlockBytes();
}

void KvStore::ForgetKept() {
  while (const std::optional<Beginnings::Removed> oldest = kept_.RemoveOldest()) pool_.Forget(oldest->block);
}

EvictionNews::Some KvStore::EvictedSince(uint64_t serial, size_t most) const {
  MutexLock lock(mu_);
  return news_.Since(serial, most);
}

}  // namespace runahead
