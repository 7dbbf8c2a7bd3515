// The store against a simple model of it, and under many threads.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/kv/sequence_rows.h"
#include "tests/worker/kv/store_fixture.h"
#include "worker/kv/lease_reaper.h"

namespace runahead {
namespace {

// What the store should believe, in the simplest words.
struct ModelLease {
  uint64_t number = 0;
  int64_t prompt = 0, total = 0;
  absl::Time expires;
  bool dead = false, awaited = false;
  std::vector<int64_t> blocks;  // each has a name of its own, and lies in as many leases as share it
  int64_t shared = 0;           // tokens that nobody writes again
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
    std::set<int64_t> blocks;
    for (const auto& [index, lease] : leases_) {
      if (!lease.dead || lease.open.has_value() || !lease.writes.empty()) {
        blocks.insert(lease.blocks.begin(), lease.blocks.end());
      }
    }
    return static_cast<int64_t>(blocks.size());
  }
  // How many of the first tokens have come in every layer, and are not being written.
  static int64_t Settled(const ModelLease& lease) {
    for (int64_t t = 0; t < lease.prompt; ++t) {
      for (const auto& layer : lease.covered) {
        if (!layer[t]) return t;
      }
      for (const auto& [range, write] : lease.writes) {
        if (!write.already_covered() && std::get<1>(range) == t) return t;
      }
    }
    return lease.prompt;
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

  // Mostly one that has whole blocks to share; now and then any. Null: there is none.
  ModelLease* PickToShare() {
    if (leases_.empty()) return nullptr;
    if (Pick(10) == 0) return &PickLease()->second;
    std::vector<ModelLease*> candidates;
    for (auto& [index, lease] : leases_) {
      if (Alive(lease) && Settled(lease) >= kKvBlockTokens) candidates.push_back(&lease);
    }
    return candidates.empty() ? nullptr : candidates[Pick(candidates.size())];
  }

  void ReserveOne() {
    ModelLease* const from = Pick(4) == 0 ? nullptr : PickToShare();
    const int64_t prompt = from == nullptr ? 1 + Pick(600) : 200 + Pick(400), total = prompt + Pick(300);
    const int64_t wish = from == nullptr ? 0 : 1 + Pick(600);
    const int64_t free = kBlocks - BlocksInUse();
    absl::StatusOr<LeaseId> id = store_->Reserve(
        {.prompt_tokens = prompt, .total_tokens = total, .share = {{99, from == nullptr ? 0 : from->number}, wish}});
    if (Blocks(total) > free) {  // Reserve reaps when it may find no room
      for (auto& [index, lease] : leases_) lease.dead = lease.dead || !Alive(lease);
    }
    if (from != nullptr && !Alive(*from)) {
      ASSERT_EQ(id.status().code(), absl::StatusCode::kNotFound);
      return;
    }
    const int64_t shared = from == nullptr ? 0 : std::min({prompt, wish, Settled(*from)}) / kKvBlockTokens;
    if (Blocks(total) - shared > kBlocks - BlocksInUse()) {
      ASSERT_EQ(id.status().code(), absl::StatusCode::kResourceExhausted);
      return;
    }
    ASSERT_TRUE(id.ok()) << id.status();
    ASSERT_EQ(store_->SizeOf(*id)->shared_tokens, shared * kKvBlockTokens);
    shares_ += shared > 0;
    ASSERT_TRUE(numbers_.insert(id->number).second);
    ModelLease& lease = leases_[numbers_.size()];
    lease.number = id->number;
    lease.prompt = prompt;
    lease.total = total;
    lease.expires = clock_.Now() + kLeaseLife;
    for (int64_t block = 0; block < Blocks(total); ++block) {
      lease.blocks.push_back(block < shared ? from->blocks[block] : next_block_++);
    }
    lease.shared = shared * kKvBlockTokens;
    if (from != nullptr) from->shared = std::max(from->shared, lease.shared);
    for (auto& layer : lease.covered) {
      layer.resize(prompt);
      std::fill_n(layer.begin(), lease.shared, true);
    }
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
    } else if (!covered && begin < lease.shared) {
      ASSERT_EQ(write.status().code(), absl::StatusCode::kOutOfRange);
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
      ASSERT_EQ(it->second.Commit().Wait().code(), alive ? absl::StatusCode::kOk : absl::StatusCode::kNotFound);
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

  // A few of those that are gone stay, to be asked for in vain.
  void ForgetOld() {
    while (leases_.size() > 40) {
      const auto gone = std::find_if(leases_.begin(), leases_.end(), [](const auto& entry) {
        return entry.second.dead && !entry.second.open.has_value() && entry.second.writes.empty();
      });
      if (gone == leases_.end()) return;
      leases_.erase(gone);
    }
  }

  void CheckMemory() {
    std::map<const std::byte*, int64_t> owner;  // first byte of a block of layer 0 -> its name
    const auto check = [&owner](const ModelLease& lease, int64_t token, const std::byte* row) {
      const auto [it, fresh] =
          owner.emplace(row - token % kKvBlockTokens * kRowBytes, lease.blocks[token / kKvBlockTokens]);
      ASSERT_EQ(it->second, lease.blocks[token / kKvBlockTokens]) << "a row in two leases that do not share it";
    };
    int64_t living = 0;
    for (auto& [index, lease] : leases_) {
      living += !lease.dead;
      if (lease.open.has_value()) {
        for (int64_t t = 0; t < lease.total; t += 64) check(lease, t, RowOf(*store_, *lease.open, 0, t).data());
      }
      for (const auto& [range, write] : lease.writes) {
        if (std::get<0>(range) != 0) continue;
        int64_t token = std::get<1>(range);
        for (const BufferRef& ref : write.destination()) {
          check(lease, token, ref.data());
          token += static_cast<int64_t>(ref.size) / kRowBytes;
        }
      }
    }
    ASSERT_EQ(store_->stats().used_bytes, BlocksInUse() * kKvBlockTokens * kRowBytes * kLayers);
    ASSERT_EQ(store_->stats().leases, living);
  }

  std::mt19937 random_{42};
  std::map<size_t, ModelLease> leases_;  // in their order, for numbers are random, and the walk is not
  std::set<uint64_t> numbers_;
  int64_t next_block_ = 0;
  int opened_ = 0, shares_ = 0;
};

TEST_F(RandomisedStore, AgreesWithASimpleModelAndReturnsEverything) {
  for (int step = 0; step < 60000; ++step) {
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
    ForgetOld();
    CheckMemory();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(opened_, 30);  // or the walk does not get far enough to mean something
  EXPECT_GT(store_->stats().expired, 15);
  EXPECT_GT(shares_, 20);
  for (auto& [index, lease] : leases_) {
    lease.writes.clear();
    lease.open.reset();
    store_->Release({99, lease.number});
  }
  EXPECT_EQ(store_->stats().used_bytes, 0);
  EXPECT_EQ(store_->stats().leases, 0);
}

// Threads write marks into what they hold; a block in two leases would mix the marks.
TEST_F(RandomisedStore, ThreadsNeverShareABlock) {
  LeaseReaper reaper(*store_, RealClock(), nullptr, absl::Milliseconds(1));
  std::vector<std::thread> threads;
  for (int mark = 1; mark <= 4; ++mark) {
    threads.emplace_back([this, mark] {
      for (int round = 0; round < 60; ++round) {
        absl::StatusOr<LeaseId> lease = store_->Reserve({.prompt_tokens = 300, .total_tokens = 700});
        if (!lease.ok()) continue;  // full: another thread's turn
        for (int64_t layer = 0; layer < kLayers; ++layer) {
          absl::StatusOr<KvStore::Write> write = store_->BeginWrite(*lease, layer, 0, 300);
          ASSERT_TRUE(write.ok());
          for (const BufferRef& ref : write->destination()) std::memset(ref.data(), mark, ref.size);
          ASSERT_TRUE(write->Commit().Wait().ok());
        }
        absl::StatusOr<KvStore::Sequence> sequence = store_->Open(*lease);
        ASSERT_TRUE(sequence.ok());
        for (int64_t t = 0; t < 300; ++t) {
          const BufferRef row = RowOf(*store_, *sequence, round % kLayers, t);
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
