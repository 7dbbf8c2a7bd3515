#include "worker/kv/store.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_device.h"
#include "worker/kv/lease_reaper.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using testing::FakeClock;
using testing::FakeDevice;
using ::testing::HasSubstr;

constexpr int64_t kLayers = 3;
constexpr int64_t kRowBytes = 24;
constexpr int64_t kBlocks = 8;

class KvStoreTest : public ::testing::Test {
 protected:
  KvStoreTest() {
    absl::StatusOr<std::unique_ptr<KvStore>> store =
        KvStore::Create({kLayers, kRowBytes, kBlocks * kKvBlockTokens + 17, 99}, device_, clock_);
    RUNAHEAD_CHECK(store.ok());
    store_ = *std::move(store);
  }

  LeaseId Reserve(int64_t prompt, int64_t total) {
    absl::StatusOr<LeaseId> lease = store_->Reserve(prompt, total);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.value_or(LeaseId{});
  }

  absl::Status Fill(const LeaseId& lease, int64_t layer, int64_t begin, int64_t end) {
    RUNAHEAD_ASSIGN_OR_RETURN(KvStore::Write write, store_->BeginWrite(lease, layer, begin, end));
    return write.Commit();
  }

  void FillAll(const LeaseId& lease, int64_t prompt) {
    for (int64_t layer = 0; layer < kLayers; ++layer) EXPECT_TRUE(Fill(lease, layer, 0, prompt).ok());
  }

  FakeDevice device_;
  FakeClock clock_;
  std::unique_ptr<KvStore> store_;
};

TEST_F(KvStoreTest, RefusesAStoreOfNoBlocks) {
  EXPECT_EQ(KvStore::Create({kLayers, kRowBytes, kKvBlockTokens - 1, 1}, device_, clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(KvStoreTest, RoundsCapacityDownToBlocks) {
  EXPECT_EQ(store_->stats().capacity_bytes, kBlocks * kKvBlockTokens * kRowBytes * kLayers);
  EXPECT_EQ(static_cast<int64_t>(store_->arena()->size()), store_->stats().capacity_bytes);
}

TEST_F(KvStoreTest, ReserveTellsFullFromImpossible) {
  const LeaseId lease = Reserve(1, 7 * kKvBlockTokens);
  EXPECT_THAT(store_->Reserve(1, kKvBlockTokens + 1).status().ToString(),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("256 of 2048 are free")));
  EXPECT_THAT(store_->Reserve(1, 8 * kKvBlockTokens + 1).status().ToString(),
              AllOf(HasSubstr("OUT_OF_RANGE"), HasSubstr("2049"), HasSubstr("2048")));
  EXPECT_EQ(store_->Reserve(0, 5).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Reserve(6, 5).status().code(), absl::StatusCode::kInvalidArgument);
  store_->Release(lease);
  Reserve(1, 8 * kKvBlockTokens);
}

TEST_F(KvStoreTest, CompleteFiresWhenEveryLayerCoversThePrompt) {
  const LeaseId lease = Reserve(300, 400);
  const Event complete = store_->Complete(lease);
  EXPECT_TRUE(Fill(lease, 0, 0, 300).ok());
  EXPECT_TRUE(Fill(lease, 1, 100, 300).ok());
  EXPECT_TRUE(Fill(lease, 2, 0, 300).ok());
  EXPECT_FALSE(complete.fired());
  EXPECT_EQ(store_->Open(lease).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Fill(lease, 1, 0, 120).ok());
  EXPECT_EQ(complete.status(), absl::OkStatus());
  EXPECT_EQ(store_->Complete(lease).status(), absl::OkStatus());
}

TEST_F(KvStoreTest, AWriteWithoutCommitCoversNothing) {
  const LeaseId lease = Reserve(10, 10);
  FillAll(lease, 9);
  { ASSERT_TRUE(store_->BeginWrite(lease, 0, 0, 10).ok()); }
  EXPECT_TRUE(Fill(lease, 1, 9, 10).ok());
  EXPECT_TRUE(Fill(lease, 2, 9, 10).ok());
  EXPECT_FALSE(store_->Complete(lease).fired());
  EXPECT_TRUE(Fill(lease, 0, 9, 10).ok());
  EXPECT_TRUE(store_->Complete(lease).fired());
}

TEST_F(KvStoreTest, OneLeasesNumberTellsNothingOfTheNext) {
  // 64 random bits: of four of them each half of the bits is 0 in all with a chance of 2^-128.
  uint64_t low = 0, high = 0;
  for (int i = 0; i < 4; ++i) {
    const LeaseId lease = Reserve(1, 2);
    low |= lease.number & 0xffffffff;
    high |= lease.number >> 32;
    store_->Release(lease);
  }
  EXPECT_GT(low, 0xffff);
  EXPECT_GT(high, 0xffff);
  const LeaseId first = Reserve(1, 2), second = Reserve(1, 2);
  EXPECT_GT(first.number > second.number ? first.number - second.number : second.number - first.number, 0xffff);
}

TEST_F(KvStoreTest, BeginWriteChecksLeaseRangeAndOverlap) {
  const LeaseId lease = Reserve(300, 400);
  EXPECT_EQ(store_->BeginWrite({98, lease.number}, 0, 0, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->BeginWrite({99, 1234}, 0, 0, 1).status().code(), absl::StatusCode::kNotFound);
  for (const auto& [layer, begin, end] :
       std::vector<std::tuple<int, int, int>>{{-1, 0, 1}, {3, 0, 1}, {0, -1, 1}, {0, 5, 5}, {0, 6, 5}, {0, 0, 301}}) {
    EXPECT_EQ(store_->BeginWrite(lease, layer, begin, end).status().code(), absl::StatusCode::kOutOfRange);
  }
  absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, 0, 100, 200);
  ASSERT_TRUE(write.ok());
  EXPECT_EQ(store_->BeginWrite(lease, 0, 199, 201).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(store_->BeginWrite(lease, 0, 200, 201).ok());
  EXPECT_TRUE(store_->BeginWrite(lease, 1, 199, 201).ok());
  EXPECT_TRUE(write->Commit().ok());
  absl::StatusOr<KvStore::Write> again = store_->BeginWrite(lease, 0, 120, 180);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->already_covered());
  EXPECT_TRUE(again->destination().empty());
  EXPECT_TRUE(again->Commit().ok());
}

TEST_F(KvStoreTest, BytesWrittenAreTheBytesReadInEveryLayer) {
  // Fragments the free list first, so that the lease's blocks do not all follow each other.
  std::vector<LeaseId> small;
  for (int i = 0; i < kBlocks; ++i) small.push_back(Reserve(1, 1));
  for (const int i : {1, 2, 4, 6}) store_->Release(small[i]);
  const int64_t prompt = 900;
  const LeaseId lease = Reserve(prompt, 1000);
  const auto value = [](int64_t layer, int64_t token, int64_t byte) {
    return static_cast<std::byte>((layer * 131 + token * 7 + byte) % 251);
  };
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 700}, {700, prompt}}) {
      absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, layer, begin, end);
      ASSERT_TRUE(write.ok());
      int64_t index = begin * kRowBytes;
      for (const BufferRef& ref : write->destination()) {
        for (size_t i = 0; i < ref.size; ++i, ++index) {
          ref.data()[i] = value(layer, index / kRowBytes, index % kRowBytes);
        }
      }
      EXPECT_EQ(index, end * kRowBytes);
      ASSERT_TRUE(write->Commit().ok());
    }
  }
  absl::StatusOr<KvStore::Sequence> sequence = store_->Open(lease);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(store_->SizeOf(lease)->prompt_tokens, prompt);
  EXPECT_EQ(store_->SizeOf(lease)->total_tokens, 1000);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(sequence->Spans(layer).size(), 3u);
    int64_t token = 0;
    for (const KvSpan& span : sequence->Spans(layer)) {
      ASSERT_EQ(static_cast<int64_t>(span.rows.size), span.tokens * kRowBytes);
      for (int64_t t = 0; t < span.tokens; ++t, ++token) {
        if (token >= prompt) continue;
        const KvSpan row = sequence->Row(layer, token);
        ASSERT_EQ(row.tokens, 1);
        ASSERT_EQ(row.rows.data(), span.rows.data() + t * kRowBytes);
        for (int64_t byte = 0; byte < kRowBytes; ++byte) {
          ASSERT_EQ(row.rows.data()[byte], value(layer, token, byte)) << layer << " " << token;
        }
      }
    }
    EXPECT_EQ(token, 4 * kKvBlockTokens);
  }
}

TEST_F(KvStoreTest, ReleaseCancelsAndFreesWhenUnpinned) {
  const LeaseId lease = Reserve(10, 8 * kKvBlockTokens);
  const Event complete = store_->Complete(lease);
  absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, 0, 0, 10);
  ASSERT_TRUE(write.ok());
  store_->Release(lease);
  store_->Release(lease);
  EXPECT_EQ(complete.status()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->stats().used_bytes, store_->stats().capacity_bytes);
  EXPECT_EQ(store_->Reserve(1, 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(write->Commit().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->Renew(lease).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Complete(lease).status()->code(), absl::StatusCode::kNotFound);
}

TEST_F(KvStoreTest, ASequenceHoldsTheMemoryAndReleasesTheLease) {
  const LeaseId lease = Reserve(10, 20);
  FillAll(lease, 10);
  {
    absl::StatusOr<KvStore::Sequence> opened = store_->Open(lease);
    ASSERT_TRUE(opened.ok());
    KvStore::Sequence sequence = *std::move(opened);
    EXPECT_EQ(store_->Open(lease).status().code(), absl::StatusCode::kFailedPrecondition);
    clock_.Advance(absl::Hours(1));
    EXPECT_EQ(store_->ReapExpired(), 0);
    EXPECT_EQ(store_->stats().leases, 1);
    store_->Release(lease);
    EXPECT_EQ(store_->stats().leases, 0);
    EXPECT_GT(store_->stats().used_bytes, 0);
  }
  EXPECT_EQ(store_->stats().used_bytes, 0);
  const LeaseId other = Reserve(10, 20);
  FillAll(other, 10);
  { ASSERT_TRUE(store_->Open(other).ok()); }
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->stats().expired, 0);
}

TEST_F(KvStoreTest, AnEpochsLeasesEndWithItAndTheirMemoryWhenNothingPinsIt) {
  const LeaseId idle = Reserve(10, 20), written = Reserve(10, 20);
  const Event complete = store_->Complete(idle);
  absl::StatusOr<KvStore::Write> write = store_->BeginWrite(written, 0, 0, 10);
  ASSERT_TRUE(write.ok());
  store_->BeginEpoch(7);
  EXPECT_TRUE(absl::IsCancelled(complete.Wait(absl::Seconds(60))));
  EXPECT_TRUE(absl::IsNotFound(store_->Renew(idle)));
  EXPECT_EQ(store_->stats().leases, 0);
  EXPECT_GT(store_->stats().used_bytes, 0) << "the write pins its memory";
  EXPECT_TRUE(absl::IsNotFound(write->Commit()));
  EXPECT_EQ(store_->stats().used_bytes, 0);
  const LeaseId next = Reserve(10, 20);
  EXPECT_EQ(next.epoch, 7u);
  store_->Release({next.incarnation, next.number, 6});
  EXPECT_TRUE(store_->Renew(next).ok()) << "a release that came too late is of another epoch";
}

TEST_F(KvStoreTest, LivesThirtySecondsPastTheLastSign) {
  const LeaseId lease = Reserve(10, 20);
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(Fill(lease, 0, 0, 5).ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(store_->Renew(lease).ok());
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(store_->ReapExpired(), 0);
  clock_.Advance(absl::Milliseconds(1));
  // Over, though nobody has reaped yet.
  EXPECT_EQ(store_->Renew(lease).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->BeginWrite(lease, 0, 5, 6).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->Complete(lease).status()->code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->ReapExpired(), 1);
  EXPECT_EQ(store_->stats().expired, 1);
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

TEST_F(KvStoreTest, BytesThatAreUnderWayKeepALeaseAlive) {
  const LeaseId lease = Reserve(10, 20);
  absl::StatusOr<KvStore::Write> slow = store_->BeginWrite(lease, 0, 0, 10);
  absl::StatusOr<KvStore::Write> lost = store_->BeginWrite(lease, 1, 0, 10);
  ASSERT_TRUE(slow.ok() && lost.ok());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0);
  EXPECT_TRUE(Fill(lease, 2, 0, 5).ok()) << "others write on";
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(slow->Commit(), absl::OkStatus());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0) << "the other write is open still";
  { const KvStore::Write ended = *std::move(lost); }  // its sender is gone
  clock_.Advance(absl::Seconds(30));
  EXPECT_EQ(store_->ReapExpired(), 0) << "bytes that were lost are sent again";
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(store_->ReapExpired(), 1);
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

TEST_F(KvStoreTest, WhoWaitsForItsKvHoldsALease) {
  const LeaseId filled = Reserve(10, 20), released = Reserve(10, 20);
  const Event complete = store_->Complete(filled), cancelled = store_->Complete(released);
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0);
  FillAll(filled, 10);
  EXPECT_EQ(complete.status(), absl::OkStatus());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(store_->ReapExpired(), 0) << "it is opened when its owner comes to it";
  EXPECT_TRUE(store_->Open(filled).ok());
  EXPECT_FALSE(cancelled.fired());
  store_->Release(released);
  EXPECT_EQ(cancelled.status()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->stats().expired, 0);
}

TEST_F(KvStoreTest, ReserveReapsWhenFull) {
  Reserve(1, 8 * kKvBlockTokens);
  clock_.Advance(absl::Seconds(31));
  Reserve(1, 8 * kKvBlockTokens);
  EXPECT_EQ(store_->stats().expired, 1);
}

TEST_F(KvStoreTest, EventsFireOutsideTheLock) {
  const LeaseId first = Reserve(10, 20), second = Reserve(10, 20), third = Reserve(10, 20);
  int calls = 0;
  for (const LeaseId& lease : {first, second, third}) {
    store_->Complete(lease).OnFire(
        [&](const absl::Status&) { calls += store_ == nullptr || store_->stats().leases >= 0; });
  }
  FillAll(first, 10);
  store_->Release(second);
  store_.reset();
  EXPECT_EQ(calls, 3);
}

TEST_F(KvStoreTest, ALeaseIsReapedUnderAFakeClockWithoutAnyRequest) {
  Reserve(10, 20);
  EventSource reaped;
  LeaseReaper reaper(*store_, clock_, [&reaped](int expired) {
    if (expired > 0) reaped.Fire(absl::OkStatus());
  });
  for (int second = 0; second < 32; ++second) {
    clock_.AwaitWaiters(1);
    EXPECT_FALSE(reaped.event().fired() && second <= 30);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(reaped.event().Wait(absl::Seconds(60)), absl::OkStatus());
  EXPECT_EQ(store_->stats().leases, 0);
}

// What the store should believe, in the simplest words.
struct ModelLease {
  uint64_t number = 0;
  int64_t prompt = 0, total = 0;
  absl::Time expires;
  bool dead = false, awaited = false;
  std::vector<std::vector<bool>> covered = std::vector<std::vector<bool>>(kLayers);
  std::optional<KvStore::Sequence> open;
  std::vector<std::pair<std::tuple<int64_t, int64_t, int64_t>, KvStore::Write>> writes;
  bool complete() const {
    for (const auto& layer : covered) {
      for (const bool token : layer) {
        if (!token) return false;
      }
    }
    return true;
  }
};

class RandomisedStore : public KvStoreTest {
 protected:
  bool Alive(const ModelLease& lease) const {
    return !lease.dead &&
           (lease.open.has_value() || lease.awaited || !lease.writes.empty() || lease.expires >= clock_.Now());
  }
  static int64_t Blocks(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }
  int64_t BlocksInUse() const {
    int64_t blocks = 0;
    for (const auto& [index, lease] : leases_) {
      if (!lease.dead || lease.open.has_value() || !lease.writes.empty()) blocks += Blocks(lease.total);
    }
    return blocks;
  }
  int64_t Pick(int64_t below) { return static_cast<int64_t>(random_() % below); }

  // Mostly one that lives or is pinned; now and then any.
  std::map<size_t, ModelLease>::iterator PickLease() {
    const bool any = Pick(10) == 0;
    std::vector<std::map<size_t, ModelLease>::iterator> candidates;
    for (auto it = leases_.begin(); it != leases_.end(); ++it) {
      if (any || Alive(it->second) || !it->second.writes.empty()) candidates.push_back(it);
    }
    return candidates.empty() ? leases_.begin() : candidates[Pick(candidates.size())];
  }

  void ReserveOne() {
    const int64_t prompt = 1 + Pick(600), total = prompt + Pick(300);
    const int64_t free = kBlocks - BlocksInUse();
    absl::StatusOr<LeaseId> id = store_->Reserve(prompt, total);
    if (Blocks(total) > free) {  // Reserve reaps when it finds no room
      for (auto& [index, lease] : leases_) lease.dead = lease.dead || !Alive(lease);
    }
    if (!id.ok()) {
      ASSERT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
      return;
    }
    ASSERT_TRUE(numbers_.insert(id->number).second);
    ModelLease& lease = leases_[leases_.size()];
    lease.number = id->number;
    lease.prompt = prompt;
    lease.total = total;
    lease.expires = clock_.Now() + kLeaseLife;
    for (auto& layer : lease.covered) layer.resize(prompt);
  }

  void StartWrite(ModelLease& lease) {
    const int64_t layer = Pick(kLayers), begin = Pick(4) ? 0 : Pick(lease.prompt);
    const int64_t end = Pick(3) ? lease.prompt : begin + 1 + Pick(lease.prompt - begin);
    absl::StatusOr<KvStore::Write> write = store_->BeginWrite({99, lease.number}, layer, begin, end);
    bool covered = true, overlaps = false;
    for (int64_t t = begin; t < end; ++t) covered = covered && lease.covered[layer][t];
    for (const auto& [range, other] : lease.writes) {
      const auto& [l, b, e] = range;
      overlaps = overlaps || (!other.already_covered() && l == layer && b < end && begin < e);
    }
    if (!Alive(lease)) {
      ASSERT_EQ(write.status().code(), absl::StatusCode::kNotFound);
    } else if (!covered && overlaps) {
      ASSERT_EQ(write.status().code(), absl::StatusCode::kAborted);
    } else {
      ASSERT_TRUE(write.ok()) << write.status();
      ASSERT_EQ(write->already_covered(), covered);
      lease.writes.emplace_back(std::make_tuple(layer, begin, end), *std::move(write));
    }
  }

  void EndWrite(ModelLease& lease) {
    if (lease.writes.empty()) return;
    const auto it = lease.writes.begin() + Pick(lease.writes.size());
    const bool alive = Alive(lease);
    if (Pick(4) != 0) {
      const auto [layer, begin, end] = it->first;
      ASSERT_EQ(it->second.Commit().code(), alive ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
      for (int64_t t = begin; alive && t < end; ++t) lease.covered[layer][t] = true;
    }
    lease.writes.erase(it);
    lease.expires = clock_.Now() + kLeaseLife;
  }

  void OpenOrClose(ModelLease& lease) {
    if (lease.open.has_value() && Pick(3) == 0) {
      lease.open.reset();
      lease.dead = true;
      return;
    }
    absl::StatusOr<KvStore::Sequence> sequence = store_->Open({99, lease.number});
    if (!Alive(lease)) {
      ASSERT_EQ(sequence.status().code(), absl::StatusCode::kNotFound);
    } else if (lease.open.has_value() || !lease.complete()) {
      ASSERT_EQ(sequence.status().code(), absl::StatusCode::kFailedPrecondition);
    } else {
      ASSERT_TRUE(sequence.ok());
      lease.open = *std::move(sequence);
      ++opened_;
    }
  }

  void CheckMemory() {
    std::map<const std::byte*, size_t> owner;  // first byte of a row of layer 0 -> lease
    int64_t living = 0;
    for (auto& [index, lease] : leases_) {
      living += !lease.dead;
      if (lease.open.has_value()) {
        for (int64_t t = 0; t < lease.total; t += 64) {
          ASSERT_TRUE(owner.emplace(lease.open->Row(0, t).rows.data(), index).second);
        }
      }
      for (const auto& [range, write] : lease.writes) {
        if (std::get<0>(range) != 0) continue;
        for (const BufferRef& ref : write.destination()) {
          const auto [it, fresh] = owner.emplace(ref.data(), index);
          ASSERT_TRUE(fresh || it->second == index) << "a row in two leases";
        }
      }
    }
    ASSERT_EQ(store_->stats().used_bytes, BlocksInUse() * kKvBlockTokens * kRowBytes * kLayers);
    ASSERT_EQ(store_->stats().leases, living);
  }

  std::mt19937 random_{42};
  std::map<size_t, ModelLease> leases_;  // in their order, for numbers are random, and the walk is not
  std::set<uint64_t> numbers_;
  int opened_ = 0;
};

TEST_F(RandomisedStore, AgreesWithASimpleModelAndReturnsEverything) {
  for (int step = 0; step < 20000; ++step) {
    const int64_t action = Pick(20);
    if (action < 3) {
      ReserveOne();
    } else if (action == 3) {
      clock_.Advance(absl::Seconds(Pick(15) == 0 ? 31 : Pick(3)));
    } else if (action == 4) {
      int over = 0;
      for (auto& [index, lease] : leases_) {
        if (!lease.dead && !Alive(lease)) ++over, lease.dead = true;
      }
      ASSERT_EQ(store_->ReapExpired(), over);
    } else if (!leases_.empty()) {
      auto it = PickLease();
      if (action == 5) {
        if (Pick(3) != 0) continue;
        store_->Release({99, it->second.number});
        it->second.dead = true;
      } else if (action < 11) {
        StartWrite(it->second);
      } else if (action < 17) {
        EndWrite(it->second);
      } else if (action == 17) {
        if (Pick(20) != 0) continue;
        const Event complete = store_->Complete({99, it->second.number});
        ASSERT_EQ(complete.fired(), !Alive(it->second) || it->second.complete());
        it->second.awaited = it->second.awaited || Alive(it->second);
      } else {
        OpenOrClose(it->second);
      }
    }
    CheckMemory();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(opened_, 30);  // or the walk does not get far enough to mean something
  EXPECT_GT(store_->stats().expired, 15);
  for (auto& [index, lease] : leases_) {
    lease.writes.clear();
    lease.open.reset();
    store_->Release({99, lease.number});
  }
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->stats().leases, 0);
}

// Threads write marks into what they hold; a block in two leases would mix the marks.
TEST_F(KvStoreTest, ThreadsNeverShareABlock) {
  LeaseReaper reaper(*store_, RealClock(), nullptr, absl::Milliseconds(1));
  std::vector<std::thread> threads;
  for (int mark = 1; mark <= 4; ++mark) {
    threads.emplace_back([this, mark] {
      for (int round = 0; round < 60; ++round) {
        absl::StatusOr<LeaseId> lease = store_->Reserve(300, 700);
        if (!lease.ok()) continue;  // full: another thread's turn
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          absl::StatusOr<KvStore::Write> write = store_->BeginWrite(*lease, layer, 0, 300);
          ASSERT_TRUE(write.ok());
          for (const BufferRef& ref : write->destination()) std::memset(ref.data(), mark, ref.size);
          ASSERT_TRUE(write->Commit().ok());
        }
        absl::StatusOr<KvStore::Sequence> sequence = store_->Open(*lease);
        ASSERT_TRUE(sequence.ok());
        for (int64_t t = 0; t < 300; ++t) {
          const BufferRef row = sequence->Row(round % kLayers, t).rows;
          for (size_t i = 0; i < row.size; ++i) ASSERT_EQ(static_cast<int>(row.data()[i]), mark);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_->stats().used_bytes, 0);
}

}  // namespace
}  // namespace runahead
