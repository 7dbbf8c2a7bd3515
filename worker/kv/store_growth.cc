// What memory KvStore gives to new leases, and to those that grow or are parked.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "worker/kv/store.h"

namespace runahead {
namespace {

// Blocks that a new lease that grows leaves free, so that those that grow already seldom have to park somebody at once:
// a 32nd of the store, at least one, and none in a store of so few that one is much of it.
int64_t LeftToGrow(int64_t blocks) {
  constexpr int64_t kPart = 32, kFew = 8;
  return blocks < kFew ? 0 : std::max<int64_t>(1, blocks / kPart);
}

}  // namespace

// Nothing is left to growth where no living lease grows: so whatever fits an empty store is taken, and leases that have
// all of their memory at once may fill it.
int64_t KvStore::RoomForNew(bool grows) const {
  const int64_t left = grows && leases_.growing() > 0 ? LeftToGrow(arena_.blocks()) : 0;
  return pool_.free() - leases_.promised() - left;
}

absl::Status KvStore::CheckRoom(int64_t blocks, bool grows) const {
  if (blocks <= RoomForNew(grows)) return absl::OkStatus();
  const int64_t free = pool_.free(), kept = std::min(free, free - RoomForNew(grows));
  const std::string why = kept == 0 ? ""
                                    : absl::StrFormat(", of which %d are promised to leases that grow, or left to them",
                                                      kept * kKvBlockTokens);
  return absl::ResourceExhaustedError(
      absl::StrFormat("the KV store is full: %d tokens are wanted and %d of %d are free%s; try again later",
                      blocks * kKvBlockTokens, free * kKvBlockTokens, arena_.blocks() * kKvBlockTokens, why));
}

void KvStore::Count(KvLease& lease, int64_t tokens) {
  lease.counted_tokens = std::max(lease.counted_tokens, tokens);
  const auto has = static_cast<int64_t>(lease.blocks.size());
  leases_.Promise(lease, std::max<int64_t>(0, KvBlocksFor(lease.counted_tokens) - has));
}

absl::StatusOr<std::vector<int32_t>> KvStore::GrowLease(uint64_t number, int64_t tokens, int64_t leave) {
  MutexLock lock(mu_);
  KvLease& lease = leases_.at(number);
  RUNAHEAD_CHECK(lease.open && tokens <= lease.total_tokens);
  const auto has = static_cast<int64_t>(lease.blocks.size());
  const int64_t more = KvBlocksFor(tokens) - has;
  if (more + leave > pool_.free()) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the KV store is full: %d blocks more are wanted, and %d beside them left to others, of %d that are free", more,
        leave, pool_.free()));
  }
  const std::vector<int32_t> fresh = TakeBlocks(more);
  lease.blocks.insert(lease.blocks.end(), fresh.begin(), fresh.end());
  Count(lease, tokens);
  return lease.blocks;
}

// A write that is under way into a complete lease has nothing to write (already_covered), so it has no rows that go.
// Afterwards all rows are computed again, those too that it began with: of the prompt, whoever's answer they were, by
// prefill's arithmetic, and in all layers.
void KvStore::ParkLease(uint64_t number, int64_t tokens) {
  MutexLock lock(mu_);
  KvLease& lease = leases_.at(number);
  RUNAHEAD_CHECK(lease.open && lease.grows && tokens <= lease.total_tokens);
  lease.was_parked = true;
  std::vector<int32_t> blocks = std::exchange(lease.blocks, {});
  if (lease.copied_from.has_value()) blocks.push_back(*std::exchange(lease.copied_from, std::nullopt));
  lease.known_answers.clear();
  lease.hole = 0;
  Count(lease, tokens);
  GiveBack(blocks);
}

void KvStore::LendBlocks(absl::Span<const int32_t> blocks) {
  MutexLock lock(mu_);
  pool_.Share(blocks);
}

void KvStore::EndLending(absl::Span<const int32_t> blocks) {
  MutexLock lock(mu_);
  GiveBack(blocks);
}

void KvStore::GiveBack(absl::Span<const int32_t> blocks) {
  const int64_t before = pool_.free();
  pool_.Return(blocks);
  if (freed_ && pool_.free() > before) freed_();
}

void KvStore::OnFreed(std::function<void()> freed) {
  MutexLock lock(mu_);
  freed_ = std::move(freed);
}

}  // namespace runahead
