// Sequences that end and are kept, and those that begin with them, against a model of the store: which requests it
// takes, how much of each is known, what goes first where memory is needed, and how memory is counted. Every row that
// one reads is what it wrote itself, or what one with the same ids up to there did.
#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/worker/kv/kept_model.h"
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
  bool grows = false, not_kept = false, complete = false, dead = false;
  KeptModel::Lease model;
  int64_t came = 0;      // tokens, the known ones included, where some came
  int64_t arriving = 0;  // of one that ran elsewhere, tokens whose KV may come from there
  bool rest_handed = false;
  std::optional<KvStore::Sequence> open;
};

// Rows of one that may have ended since.
struct Loan {
  TokenIds ids;
  KvStore::Lent rows;
  std::vector<int> blocks;  // of the model
};

enum class Beginning { kNone, kKnown, kRestHanded, kMoved };

// What the store has, and how long the walk is: each row that arrives is quantised.
struct Walk {
  std::string name;
  bool quantises = false, has_x = false;
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
    if (GetParam().has_x) options.x_row_bytes = kRowBytes;
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
  // Calls `act(row, mark)` for KV of each of the tokens, and for X where it has some: of that the mark is another.
  template <typename Do>
  void ForRows(const Runner& runner, int64_t begin, int64_t end, const Do& act) {
    const std::vector<uint64_t> hashes = Hashes(runner.ids);
    const auto of_kind = [&](const KvArena& arena, int64_t row_bytes, int64_t layers_before) {
      for (int64_t layer = 0; layer < kLayers; ++layer) {
        ForMarks(begin, end, [&](int64_t t) {
          std::byte* const row = arena.Layer(layer).data() + KvArena::RowOf(runner.open->blocks(), t) * row_bytes;
          act(row, Mark{layer + layers_before, hashes[t], t});
        });
      }
    };
    of_kind(store_->arena(), store_->options().stored_row_bytes(), 0);
    if (runner.open->has_x()) of_kind(*store_->x_arena(), kRowBytes, kLayers);
  }
  void Compute(Runner& runner, int64_t end) {
    ForRows(runner, runner.computed, end,
            [](std::byte* row, const Mark& mark) { std::memcpy(row, &mark, sizeof(mark)); });
    runner.computed = end;
  }
  void Verify(const Runner& runner) {
    ForRows(runner, 0, runner.computed, [&](const std::byte* row, const Mark& right) {
      Mark mark;
      std::memcpy(&mark, row, sizeof(mark));
      ASSERT_EQ(mark, right) << "token " << right.position << " of " << runner.computed;
    });
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
    if (GetParam().has_x && (beginning == Beginning::kNone || beginning == Beginning::kRestHanded)) {
      request.with_x = Pick(3) != 0;
      if (request.with_x && !from_known) request.kv_from = Pick(2) == 0 ? 0 : Pick(runner.prompt + 1);
    }
    request.salt = runner.salt;
    request.not_kept = runner.not_kept;
    const absl::StatusCode expected = model_.Reserve(request, runner.model);
    const absl::StatusOr<LeaseId> id = store_->Reserve(request);
    ASSERT_EQ(id.status().code(), expected) << id.status();
    if (!id.ok()) {
      absl::IsNotFound(id.status()) ? ++unknown_ : ++refused_;
      return;
    }
    runner.id = *id;
    if (from_known) {
      const KvStore::Size size = *store_->SizeOf(*id);
      const std::vector<bool>& known = runner.model.known_answers;
      runner.known = size.known_tokens;
      ASSERT_EQ(runner.known, static_cast<int64_t>(known.size()));
      ASSERT_EQ(size.known_answer_tokens, std::count(known.begin(), known.end(), true));
      ASSERT_EQ(size.with_x, runner.model.has_x);
      ASSERT_LT(runner.known, runner.prompt);
      ASSERT_TRUE(!runner.rest_handed || runner.known == *request.least_known_tokens);
      runner.complete = !runner.rest_handed;
      ++hits_;
      hits_with_x_ += size.with_x ? 1 : 0;
    }
    x_instead_ += request.kv_from > 0 ? 1 : 0;
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
        if (!runner.model.has_x) continue;
        absl::StatusOr<KvStore::Write> x = store_->BeginWrite(runner.id, layer, runner.known, end, SliceKind::kX);
        ASSERT_TRUE(x.ok() && x->Commit().Wait().ok());
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
      runner.model.open = true;
      ASSERT_EQ(runner.open->blocks().size(), runner.model.blocks.size());
      MakeCopies(*runner.open);
      model_.EndCopies(runner.model);
      runner.computed = runner.known;
      if (runner.came > 0) Compute(runner, runner.came);
      return;
    }
    const int64_t end = std::min<int64_t>(static_cast<int64_t>(runner.ids.size()), runner.computed + 1 + Pick(300));
    if (runner.grows && KvBlocksFor(end) > static_cast<int64_t>(runner.model.blocks.size())) {
      const bool fits = model_.Grow(runner.model, end);
      ASSERT_EQ(runner.open->Grow(end).ok(), fits);
      if (!fits) return;
    }
    Compute(runner, end);
    if (runner.computed < runner.prompt || Pick(4) != 0) return;
    Keep(runner, runner.prompt);  // while it goes on
  }
  // All of what it began with, or some of it; of one that has ended or was parked nothing.
  void Lend(const Runner& runner) {
    const int64_t tokens = runner.known == 0 ? 1 : 1 + Pick(runner.known);
    absl::StatusOr<KvStore::Lent> lent = store_->LendKnown(runner.id, tokens);
    ASSERT_EQ(lent.ok(), runner.known > 0 && !runner.dead) << lent.status();
    if (lent.ok()) loans_.push_back({runner.ids, *std::move(lent), model_.Lend(runner.model, tokens)});
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
    model_.Return(loan->blocks);
    loans_.erase(loan);
    ++lent_;
  }
  void Park(Runner& runner) {
    if (!runner.open.has_value() || !runner.grows) return;
    runner.open->Park(runner.prompt);
    model_.Park(runner.model, runner.prompt);
    runner.computed = 0;
    runner.known = 0;
    ++parked_;
  }
  void Forget() {
    const KvStore::Stats before = store_->stats();
    const char* const salts[] = {"", "a"};
    const int64_t which = Pick(3);
    const auto salt = which < 2 ? std::optional<absl::string_view>(salts[which]) : std::nullopt;
    const int64_t freed = store_->Forget(salt);
    model_.Forget(salt);
    const KvStore::Stats after = store_->stats();
    ASSERT_EQ(before.kept_bytes - after.kept_bytes, freed);
    ASSERT_EQ(after.used_bytes, before.used_bytes);
    ASSERT_TRUE(which < 2 || after.kept_bytes == 0);
    if (freed > 0) ++forgotten_;
  }
  void Keep(Runner& runner, int64_t tokens) {
    const absl::Span<const int32_t> ids = absl::MakeSpan(runner.ids).first(tokens);
    runner.open->Keep(ids);
    model_.Keep(runner.model, ids);
    ++kept_;
  }
  void Close(std::list<Runner>::iterator runner) {
    if (runner->open.has_value()) {
      Verify(*runner);
      if (Pick(5) != 0) Keep(*runner, runner->computed);
    } else if (!runner->dead) {
      store_->Release(runner->id);
    }
    model_.Close(runner->model);
    runners_.erase(runner);
  }
  void Act(std::list<Runner>::iterator runner) {
    switch (Pick(10)) {
      case 0:
        store_->Release(runner->id);
        model_.Release(runner->model);
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

  void Check() {
    const KvStore::Stats stats = store_->stats();
    ASSERT_EQ(Used(), model_.used());
    ASSERT_EQ(Kept(), model_.kept());
    ASSERT_EQ(Evicted(), model_.evicted());
    ASSERT_EQ(Promised(), model_.promised());
    ASSERT_LE(stats.used_bytes + stats.kept_bytes, stats.capacity_bytes);
    ASSERT_EQ(stats.leases, std::count_if(runners_.begin(), runners_.end(), [](const Runner& r) { return !r.dead; }));
  }

  // As a router's pings do: exactly what went since the last ones is told, unless it is there again.
  void HearNews() {
    std::vector<uint64_t> hashes;
    EvictionNews::Some some;
    do {
      some = store_->EvictedSince(heard_, 3);
      hashes.insert(hashes.end(), some.hashes.begin(), some.hashes.end());
      heard_ = some.serial;
    } while (!some.hashes.empty());
    ASSERT_EQ(hashes, model_.TakeNews());
    heard_hashes_ += static_cast<int64_t>(hashes.size());
  }

  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  std::mt19937 random_{11};
  uint64_t heard_ = 0;
  int64_t heard_hashes_ = 0;
  int moved_ = 0;
  KeptModel model_{kManyBlocks};
  std::list<Runner> runners_;
  std::list<Loan> loans_;
  int unknown_ = 0, hits_with_x_ = 0, x_instead_ = 0, refused_ = 0, hits_ = 0, parked_ = 0, kept_ = 0, lent_ = 0,
      forgotten_ = 0;
};

TEST_P(RandomisedKnown, IsKnownForAsLongAsItsTurnToGoHasNotComeAndReadAsItWasWritten) {
  for (int step = 0; step < GetParam().steps; ++step) {
    const int64_t action = Pick(12);
    if (action < 4) {
      const Beginning beginnings[] = {Beginning::kNone, Beginning::kMoved, Beginning::kKnown, Beginning::kRestHanded};
      if (runners_.size() < 12) Reserve(beginnings[action]);
    } else if (action == 4 && Pick(2000) == 0) {
      store_->BeginEpoch(store_->epoch() + 1);
      for (Runner& runner : runners_) {
        runner.dead = true;
        model_.Release(runner.model);
      }
      model_.Forget(std::nullopt);
      model_.TakeNews();
      heard_ = 0;
      std::erase_if(runners_, [](const Runner& runner) { return !runner.open.has_value(); });
      ASSERT_EQ(store_->stats().kept_bytes, 0);
    } else if (action == 5 && Pick(300) == 0) {
      Forget();
    } else if (!runners_.empty()) {
      Act(std::next(runners_.begin(), Pick(static_cast<int64_t>(runners_.size()))));
    }
    Check();
    if (step % 7 == 0) HearNews();
    if (HasFailure()) FAIL() << "at step " << step;
  }
  const int share = GetParam().steps / 2000;  // or the walk does not get far enough to mean something
  EXPECT_GT(unknown_, 10 * share);
  EXPECT_GT(refused_, share);
  EXPECT_EQ(hits_with_x_ > 10 * share, GetParam().has_x);
  EXPECT_EQ(x_instead_ > 10 * share, GetParam().has_x);
  EXPECT_GT(moved_, 10 * share);
  EXPECT_GT(hits_, 50 * share);
  EXPECT_GT(parked_, 5 * share);
  EXPECT_GT(kept_, 50 * share);
  EXPECT_GT(lent_, 10 * share);
  EXPECT_GT(forgotten_, share / 10);
  EXPECT_GT(Evicted(), 10 * share);
  EXPECT_GT(heard_hashes_, 10 * share);
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
                         ::testing::Values(Walk{"OfRowsAsTheyCome", false, false, 200'000},
                                           Walk{"OfKvAndX", false, true, 100'000},
                                           Walk{"OfRowsInEightBits", true, false, 20'000}),
                         [](const auto& walk) { return walk.param.name; });

}  // namespace
}  // namespace runahead
