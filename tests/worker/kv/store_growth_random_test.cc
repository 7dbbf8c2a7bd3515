// Leases that grow and are parked against a simple model of the store.
#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "gtest/gtest.h"
#include "tests/worker/kv/growth_fixture.h"

namespace runahead {
namespace {

// What the store should believe, in the simplest words.
struct Grown {
  LeaseId id;
  int64_t prompt = 0, total = 0, counted = 0;
  bool grows = false, filled = false, dead = false;
  int64_t has = 0;  // blocks
  absl::Time expires;
  std::optional<KvStore::Sequence> open;
  std::optional<KvStore::Write> write;
  bool pinned() const { return open.has_value() || write.has_value(); }
};

// Of stores that leave nothing, one block and two to growth.
class RandomisedGrowth : public KvStoreGrowth, public ::testing::WithParamInterface<int64_t> {
 protected:
  RandomisedGrowth() {
    store_ = *KvStore::Create({kLayers, kRowBytes, GetParam() * kKvBlockTokens, 99}, device_, clock_);
  }

  int64_t Pick(int64_t below) { return static_cast<int64_t>(random_() % below); }
  bool Alive(const Grown& lease) const { return !lease.dead && (lease.pinned() || lease.expires >= clock_.Now()); }
  int64_t InUse() const {
    int64_t blocks = 0;
    for (const auto& [number, lease] : leases_) blocks += lease.dead && !lease.pinned() ? 0 : lease.has;
    return blocks;
  }
  int64_t PromisedBeside() const {
    int64_t blocks = 0;
    for (const auto& [number, lease] : leases_) {
      if (!lease.dead) blocks += std::max<int64_t>(0, KvBlocksFor(lease.counted) - lease.has);
    }
    return blocks;
  }
  int64_t Living() const {
    return std::count_if(leases_.begin(), leases_.end(), [](const auto& entry) { return !entry.second.dead; });
  }
  int64_t Growing() const {
    return std::count_if(leases_.begin(), leases_.end(),
                         [](const auto& entry) { return !entry.second.dead && entry.second.grows; });
  }
  int64_t Room(bool grows) const {
    const int64_t left = GetParam() < 8 ? 0 : std::max<int64_t>(1, GetParam() / 32);
    return GetParam() - InUse() - PromisedBeside() - (grows && Growing() > 0 ? left : 0);
  }
  void KillExpired() {
    for (auto& [number, lease] : leases_) lease.dead = lease.dead || !Alive(lease);
  }

  void ReserveOne() {
    const int64_t prompt = 1 + Pick(600), total = prompt + Pick(900);
    const bool grows = Pick(5) != 0;
    const int64_t expected = grows ? prompt + Pick(total - prompt + 1) : total;
    const int64_t first = grows ? std::min(expected, prompt + 64) : total;
    LeaseRequest request{.prompt_tokens = prompt, .total_tokens = total};
    if (grows) request.expected_tokens = expected;
    const absl::StatusOr<LeaseId> id = store_->Reserve(request);
    if (total > GetParam() * kKvBlockTokens) {
      ASSERT_EQ(id.status().code(), absl::StatusCode::kOutOfRange);
      return;
    }
    if (KvBlocksFor(expected) > Room(grows)) KillExpired();
    if (KvBlocksFor(expected) > Room(grows)) {
      ++refused_;
      ASSERT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
      return;
    }
    ASSERT_TRUE(id.ok()) << id.status();
    Grown& lease = leases_[next_++];
    lease.id = *id;
    lease.prompt = prompt, lease.total = total, lease.counted = expected, lease.grows = grows;
    lease.has = KvBlocksFor(first);
    lease.expires = clock_.Now() + kLeaseLife;
  }

  void WriteSome(Grown& lease) {
    if (lease.write.has_value()) {  // gone, and its bytes with it
      lease.write.reset();
      lease.expires = clock_.Now() + kLeaseLife;
      return;
    }
    absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease.id, 0, 0, lease.prompt);
    ASSERT_EQ(write.ok(), Alive(lease)) << write.status();
    if (!write.ok()) return;
    ASSERT_EQ(write->already_covered(), lease.filled);
    ASSERT_EQ(write->destination().empty(), lease.filled);
    lease.write = *std::move(write);
  }
  void FillOne(Grown& lease) {
    if (lease.filled || lease.write.has_value() || !Alive(lease)) return;
    FillAll(lease.id, lease.prompt);
    lease.filled = true;
    lease.expires = clock_.Now() + kLeaseLife;
  }
  void OpenOrClose(Grown& lease) {
    if (lease.open.has_value()) {
      if (Pick(4) != 0) return;
      lease.open.reset();
      lease.dead = true;
      return;
    }
    absl::StatusOr<KvStore::Sequence> sequence = store_->Open(lease.id);
    ASSERT_EQ(sequence.ok(), Alive(lease) && lease.filled) << sequence.status();
    if (sequence.ok()) lease.open = *std::move(sequence);
  }
  void GrowOne(Grown& lease) {
    if (!lease.open.has_value()) return;
    const int64_t tokens = 1 + Pick(lease.total), more = KvBlocksFor(tokens) - lease.has;
    const bool fits = more <= GetParam() - InUse();
    ASSERT_EQ(lease.open->Grow(tokens).code(), fits ? absl::StatusCode::kOk : absl::StatusCode::kResourceExhausted);
    if (!fits || more <= 0) return;
    ++grown_;
    lease.has += more;
    lease.counted = std::max(lease.counted, tokens);
  }
  void ParkOne(Grown& lease) {
    if (!lease.open.has_value() || !lease.grows) return;
    const int64_t tokens = 1 + Pick(lease.total);
    lease.open->Park(tokens);
    ++parked_;
    lease.has = 0;
    lease.counted = std::max(lease.counted, tokens);
  }

  void Act(Grown& lease) {
    switch (Pick(9)) {
      case 0:
        store_->Release(lease.id);
        lease.dead = true;
        return;
      case 1:
        return WriteSome(lease);
      case 2:
      case 3:
        return FillOne(lease);
      case 4:
      case 5:
        return OpenOrClose(lease);
      case 6:
      case 7:
        return GrowOne(lease);
      default:
        return ParkOne(lease);
    }
  }
  void Check() {
    std::set<int32_t> blocks;
    int64_t open = 0;
    for (const auto& [number, lease] : leases_) {
      if (!lease.open.has_value()) continue;
      ASSERT_EQ(static_cast<int64_t>(lease.open->blocks().size()), lease.has);
      blocks.insert(lease.open->blocks().begin(), lease.open->blocks().end());
      open += lease.has;
    }
    ASSERT_EQ(static_cast<int64_t>(blocks.size()), open) << "a block in two leases";
    ASSERT_EQ(Used(), InUse());
    ASSERT_EQ(Promised(), std::min(GetParam(), InUse() + PromisedBeside()));
    ASSERT_EQ(Growable(), std::max<int64_t>(0, Room(/*grows=*/true)));
    ASSERT_EQ(store_->stats().leases, Living());
    std::erase_if(leases_, [](const auto& entry) { return entry.second.dead && !entry.second.pinned(); });
  }

  std::mt19937 random_{42};
  std::map<int64_t, Grown> leases_;  // in their order
  int64_t next_ = 0;
  int refused_ = 0, grown_ = 0, parked_ = 0;
};

TEST_P(RandomisedGrowth, AgreesWithASimpleModel) {
  for (int step = 0; step < 10'000; ++step) {
    const int64_t action = Pick(8);
    if (action == 0) {
      ReserveOne();
    } else if (action == 1) {
      clock_.Advance(absl::Seconds(Pick(40) == 0 ? 31 : Pick(2)));
    } else if (action == 2 && Pick(4) == 0) {
      store_->ReapExpired();
      KillExpired();
    } else if (!leases_.empty()) {
      Act(std::next(leases_.begin(), Pick(static_cast<int64_t>(leases_.size())))->second);
    }
    Check();
    if (HasFatalFailure()) FAIL() << "at step " << step;
  }
  EXPECT_GT(refused_, 30);  // or the walk does not get far enough to mean something
  EXPECT_GT(grown_, 100);
  EXPECT_GT(parked_, 100);
  leases_.clear();
  store_->BeginEpoch(1);
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Promised(), 0);
}

INSTANTIATE_TEST_SUITE_P(Blocks, RandomisedGrowth, ::testing::Values(7, 12, 70));

}  // namespace
}  // namespace runahead
