// Sequences that end and are kept, and those that begin with them, against a model of the store: every row that one
// reads is what it wrote itself, or what one with the same ids up to there did; and memory is counted as it should be.
#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/worker/kv/known_fixture.h"

namespace runahead {
namespace {

constexpr int64_t kManyBlocks = 24;
// Where rows are marked and read, beside the first and the last of each block: reading all would take minutes.
constexpr int64_t kStride = 37;

struct Runner {
  LeaseId id;
  std::string salt;
  TokenIds ids;  // prompt and output, as far as it may go
  int64_t prompt = 0, known = 0, computed = 0, expected = 0;
  bool grows = false, not_kept = false, complete = false, dead = false, copied = true;
  bool parked = false;
  int64_t has = 0;       // blocks
  int64_t came = 0;      // tokens, the known ones included, where some came
  int64_t arriving = 0;  // of one that ran elsewhere, tokens whose KV may come from there
  bool rest_handed = false;
  std::optional<KvStore::Sequence> open;
};

// Rows of one that may have ended since.
struct Loan {
  TokenIds ids;
  KvStore::Lent rows;
};

enum class Beginning { kNone, kKnown, kRestHanded, kMoved };

// How the store has rows, and how long the walk is: each row that arrives is quantised.
struct Walk {
  std::string name;
  bool quantises = false;
  int steps = 0;
};

class RandomisedKnown : public KvStoreKnown, public ::testing::WithParamInterface<Walk> {
 protected:
  RandomisedKnown() {
    KvStoreOptions options{kLayers, kRowBytes, kManyBlocks * kKvBlockTokens, 99};
    if (GetParam().quantises) {
      options.row_bytes = 32 * sizeof(float);
      options.quantisation = KvQuantisation{{.bits = 8, .group = 32}, DType::kF32, host_.get()};
    }
    store_ = *KvStore::Create(options, device_, clock_);
  }
  ~RandomisedKnown() override {
    loans_.clear();
    runners_.clear();
    store_.reset();  // before what it quantises by
  }

  int64_t Pick(int64_t below) { return static_cast<int64_t>(random_() % below); }

  // Of a tree of texts that begin alike: at each of a few places it goes one of two ways.
  TokenIds PickIds(int64_t count) {
    TokenIds ids(count);
    const int64_t places[] = {0, 100, 256, 300, 511, 700};
    int32_t way = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (std::find(std::begin(places), std::end(places), i) != std::end(places)) {
        way = 2 * way + (Pick(4) == 0 ? 1 : 0);
      }
      ids[i] = static_cast<int32_t>(1000 * way + i % 7);
    }
    return ids;
  }

  template <typename Do>
  static void ForMarks(int64_t begin, int64_t end, const Do& act) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t in_block = t % kKvBlockTokens;
      if (in_block == 0 || in_block == kKvBlockTokens - 1 || t % kStride == 0) act(t);
    }
  }
  std::byte* Row(const Runner& runner, int64_t layer, int64_t token) {
    const int64_t row = KvArena::RowOf(runner.open->blocks(), token);
    return store_->arena().Layer(layer).data() + row * store_->options().stored_row_bytes();
  }
  void Compute(Runner& runner, int64_t end) {
    const std::vector<uint64_t> hashes = Hashes(runner.ids);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      ForMarks(runner.computed, end, [&](int64_t t) {
        const Mark mark{layer, hashes[t], t};
        std::memcpy(Row(runner, layer, t), &mark, sizeof(mark));
      });
    }
    runner.computed = end;
  }
  void Verify(const Runner& runner) {
    const std::vector<uint64_t> hashes = Hashes(runner.ids);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      ForMarks(0, runner.computed, [&](int64_t t) {
        Mark mark;
        std::memcpy(&mark, Row(runner, layer, t), sizeof(mark));
        ASSERT_EQ(mark, (Mark{layer, hashes[t], t})) << "token " << t << " of " << runner.computed;
      });
    }
  }

  void Reserve(Beginning beginning) {
    const bool from_known = beginning == Beginning::kKnown || beginning == Beginning::kRestHanded;
    Runner runner;
    runner.prompt = 2 + Pick(900);
    runner.ids = PickIds(runner.prompt + Pick(300));
    runner.salt = Pick(5) == 0 ? "a" : "";
    runner.not_kept = Pick(8) == 0;
    runner.grows = Pick(2) == 0;
    const auto total = static_cast<int64_t>(runner.ids.size());
    runner.expected = runner.grows ? runner.prompt + Pick(total - runner.prompt + 1) : total;
    LeaseRequest request{.prompt_tokens = runner.prompt, .total_tokens = total};
    if (runner.grows) request.expected_tokens = runner.expected;
    if (from_known) {
      request.least_known_tokens = 1 + Pick(Pick(2) == 0 ? 1 : runner.prompt - 1);
      request.prompt_ids = absl::MakeSpan(runner.ids).first(runner.prompt);
    }
    if (beginning == Beginning::kRestHanded) {
      const int64_t blocks = (runner.prompt - 1) / kKvBlockTokens;
      const bool whole = blocks > 0 && Pick(2) == 0;
      request.least_known_tokens = whole ? (1 + Pick(blocks)) * kKvBlockTokens : 1 + Pick(runner.prompt - 1);
      request.rest_handed = runner.rest_handed = true;
    }
    if (beginning == Beginning::kMoved) {
      runner.arriving = runner.prompt + Pick(runner.expected - runner.prompt + 1);
      request.arriving_tokens = runner.arriving;
    }
    request.salt = runner.salt;
    request.not_kept = runner.not_kept;
    const KvStore::Stats before = store_->stats();
    const absl::StatusOr<LeaseId> id = store_->Reserve(request);
    if (!id.ok()) {
      const KvStore::Stats after = store_->stats();
      ASSERT_TRUE(absl::IsResourceExhausted(id.status()) || (from_known && absl::IsNotFound(id.status())))
          << id.status();
      ASSERT_EQ(after.used_bytes, before.used_bytes);
      ASSERT_EQ(after.kept_bytes, before.kept_bytes);
      ++refused_;
      return;
    }
    runner.id = *id;
    const int64_t comes = std::max(runner.prompt, runner.arriving);
    runner.has = KvBlocksFor(runner.grows ? std::min(runner.expected, comes + kFirstPortion) : total);
    if (from_known) {
      runner.known = store_->SizeOf(*id)->known_tokens;
      ASSERT_GE(runner.known, *request.least_known_tokens);
      ASSERT_LT(runner.known, runner.prompt);
      ASSERT_TRUE(!runner.rest_handed || runner.known == *request.least_known_tokens);
      runner.complete = !runner.rest_handed;
      runner.copied = runner.known % kKvBlockTokens == 0;
      ++hits_;
    }
    runners_.push_back(std::move(runner));
  }

  // As a hand-off and the engine would: opened, copied, and its rows filled.
  void GetOn(Runner& runner) {
    if (!runner.complete) {
      if (runner.dead) return;
      const int64_t end =
          runner.arriving == 0 ? runner.prompt : runner.prompt + Pick(runner.arriving - runner.prompt + 1);
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        ASSERT_TRUE(Fill(runner.id, layer, runner.known, end).ok());
      }
      if (runner.arriving > 0) {
        ASSERT_EQ(store_->EndArrival(runner.id, end), absl::OkStatus());
        ++moved_;
      }
      runner.came = end;
      ASSERT_TRUE(store_->Complete(runner.id).fired());
      runner.complete = true;
      return;
    }
    if (!runner.open.has_value()) {
      absl::StatusOr<KvStore::Sequence> open = store_->Open(runner.id);
      ASSERT_EQ(open.ok(), !runner.dead) << open.status();
      if (!open.ok()) return;
      runner.open = *std::move(open);
      ASSERT_EQ(static_cast<int64_t>(runner.open->blocks().size()), runner.has);
      MakeCopies(*runner.open);
      runner.copied = true;
      runner.computed = runner.known;
      if (runner.came > 0) Compute(runner, runner.came);
      return;
    }
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(runner.ids.size()), runner.computed + 1 + Pick(300));
    if (runner.grows && KvBlocksFor(end) > runner.has) {
      const int64_t more = KvBlocksFor(end) - runner.has;
      const bool fits = more <= kManyBlocks - InUse();
      ASSERT_EQ(runner.open->Grow(end).ok(), fits);
      if (!fits) return;
      runner.has += more;
    }
    Compute(runner, end);
  }
  // All of what it began with, or some of it; of one that has ended or was parked nothing.
  void Lend(const Runner& runner) {
    const int64_t tokens = runner.known == 0 ? 1 : 1 + Pick(runner.known);
    absl::StatusOr<KvStore::Lent> lent = store_->LendKnown(runner.id, tokens);
    ASSERT_EQ(lent.ok(), runner.known > 0 && !runner.dead) << lent.status();
    if (lent.ok()) loans_.push_back({runner.ids, *std::move(lent)});
  }
  void EndLoan(std::list<Loan>::iterator loan) {
    const std::vector<uint64_t> hashes = Hashes(loan->ids);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      int64_t begin = 0;
      for (const KvSpan& span : loan->rows.Spans(layer, 0)) {
        ForMarks(begin, begin + span.tokens, [&](int64_t t) {
          Mark mark;
          std::memcpy(&mark, span.rows.data() + (t - begin) * store_->options().stored_row_bytes(), sizeof(mark));
          ASSERT_EQ(mark, (Mark{layer, hashes[t], t})) << "token " << t << " that was lent";
        });
        begin += span.tokens;
      }
    }
    loans_.erase(loan);
    ++lent_;
  }
  void Park(Runner& runner) {
    if (!runner.open.has_value() || !runner.grows) return;
    runner.open->Park(runner.prompt);
    runner.computed = 0;
    runner.known = 0;
    runner.has = 0;
    runner.parked = true;
    ++parked_;
  }
  void Forget() {
    const KvStore::Stats before = store_->stats();
    const char* const salts[] = {"", "a"};
    const int64_t which = Pick(3);
    const int64_t freed = store_->Forget(which < 2 ? std::optional<absl::string_view>(salts[which]) : std::nullopt);
    const KvStore::Stats after = store_->stats();
    ASSERT_EQ(before.kept_bytes - after.kept_bytes, freed);
    ASSERT_EQ(after.used_bytes, before.used_bytes);
    ASSERT_TRUE(which < 2 || after.kept_bytes == 0);
    if (freed > 0) ++forgotten_;
  }
  void Close(std::list<Runner>::iterator runner) {
    if (runner->open.has_value()) {
      Verify(*runner);
      if (Pick(5) != 0) {
        runner->open->Keep(absl::MakeSpan(runner->ids).first(runner->computed));
        ++kept_;
      }
    } else if (!runner->dead) {
      store_->Release(runner->id);
    }
    runners_.erase(runner);
  }
  void Act(std::list<Runner>::iterator runner) {
    switch (Pick(10)) {
      case 0:
        store_->Release(runner->id);
        runner->dead = true;
        if (!runner->open.has_value()) runners_.erase(runner);
        return;
      case 1:
        return Park(*runner);
      case 2:
      case 3:
        return Close(runner);
      case 4:
        if (runner->open.has_value()) Verify(*runner);
        return;
      case 5:
        if (loans_.size() < 4) return Lend(*runner);
        return EndLoan(std::next(loans_.begin(), Pick(static_cast<int64_t>(loans_.size()))));
      default:
        return GetOn(*runner);
    }
  }

  // What of the store the living ones have: what is shared, as their own blocks say it, counts once.
  int64_t InUse() const {
    std::set<int32_t> of_open;
    for (const Runner& runner : runners_) {
      if (runner.open.has_value()) of_open.insert(runner.open->blocks().begin(), runner.open->blocks().end());
    }
    const int64_t used = store_->stats().used_bytes / BlockBytes();
    // Blocks of those that are not open are not to be seen: none of them where all are.
    const bool all_open =
        std::all_of(runners_.begin(), runners_.end(), [](const Runner& runner) { return runner.open.has_value(); });
    const auto seen = static_cast<int64_t>(of_open.size());
    EXPECT_TRUE(all_open && loans_.empty() ? used == seen : used >= seen)
        << used << " in use, and " << seen << " of open ones";
    return used;
  }
  void Check() {
    InUse();
    const KvStore::Stats stats = store_->stats();
    ASSERT_LE(stats.used_bytes + stats.kept_bytes, stats.capacity_bytes);
    ASSERT_EQ(stats.leases, std::count_if(runners_.begin(), runners_.end(), [](const Runner& r) { return !r.dead; }));
    int64_t most = 0;  // without sharing
    for (const Runner& runner : runners_) most += runner.has + (runner.copied ? 0 : 1);
    for (const Loan& loan : loans_) most += KvBlocksFor(loan.rows.end());
    ASSERT_LE(stats.used_bytes / BlockBytes(), most);
  }

  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  std::mt19937 random_{11};
  int moved_ = 0;
  std::list<Runner> runners_;
  std::list<Loan> loans_;
  int refused_ = 0, hits_ = 0, parked_ = 0, kept_ = 0, lent_ = 0, forgotten_ = 0;
};

TEST_P(RandomisedKnown, EveryoneReadsItsOwnAndNothingLeaks) {
  for (int step = 0; step < GetParam().steps; ++step) {
    const int64_t action = Pick(12);
    if (action < 4) {
      const Beginning beginnings[] = {Beginning::kNone, Beginning::kMoved, Beginning::kKnown, Beginning::kRestHanded};
      if (runners_.size() < 12) Reserve(beginnings[action]);
    } else if (action == 4 && Pick(2000) == 0) {
      store_->BeginEpoch(store_->epoch() + 1);
      for (Runner& runner : runners_) runner.dead = true;
      std::erase_if(runners_, [](const Runner& runner) { return !runner.open.has_value(); });
      ASSERT_EQ(store_->stats().kept_bytes, 0);
    } else if (action == 5 && Pick(300) == 0) {
      Forget();
    } else if (!runners_.empty()) {
      Act(std::next(runners_.begin(), Pick(static_cast<int64_t>(runners_.size()))));
    }
    Check();
    if (HasFailure()) FAIL() << "at step " << step;
  }
  const int share = GetParam().steps / 2000;  // or the walk does not get far enough to mean something
  EXPECT_GT(refused_, share);
  EXPECT_GT(moved_, 10 * share);
  EXPECT_GT(hits_, 50 * share);
  EXPECT_GT(parked_, 5 * share);
  EXPECT_GT(kept_, 50 * share);
  EXPECT_GT(lent_, 10 * share);
  EXPECT_GT(forgotten_, share / 10);
  EXPECT_GT(Evicted(), 10 * share);
  while (!loans_.empty()) EndLoan(loans_.begin());
  while (!runners_.empty()) Close(runners_.begin());
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Promised(), 0);
  EXPECT_TRUE(store_->Reserve({.prompt_tokens = 1, .total_tokens = kManyBlocks * kKvBlockTokens}).ok());
  EXPECT_EQ(Kept(), 0);
  store_->BeginEpoch(store_->epoch() + 1);
  EXPECT_EQ(Used(), 0);
}

INSTANTIATE_TEST_SUITE_P(Stores, RandomisedKnown,
                         ::testing::Values(Walk{"OfRowsAsTheyCome", false, 200'000},
                                           Walk{"OfRowsInEightBits", true, 20'000}),
                         [](const auto& walk) { return walk.param.name; });

}  // namespace
}  // namespace runahead
