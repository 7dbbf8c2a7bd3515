// Leases that begin with what is known, and whose rest a chain computes behind it and hands off.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/kv/known_fixture.h"

namespace runahead {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kBlock = kKvBlockTokens;

class KvStoreRestHanded : public KvStoreKnown {
 protected:
  static LeaseRequest ForRest(const TokenIds& prompt, int64_t total, int64_t known) {
    LeaseRequest request = ForKnown(prompt, total, known);
    request.rest_handed = true;
    return request;
  }
  void FillRest(const LeaseId& lease, int64_t begin, int64_t end) {
    for (int64_t layer = 0; layer < kLayers; ++layer) EXPECT_EQ(Fill(lease, layer, begin, end), absl::OkStatus());
  }
  absl::StatusCode Code(const LeaseRequest& request) { return store_->Reserve(request).status().code(); }
  // The first of the tokens that is lent with another's row in some layer; all of them: there is none.
  int64_t FirstWrongOf(const KvStore::Lent& lent, const TokenIds& ids) {
    const std::vector<uint64_t> hashes = Hashes(ids);
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      int64_t t = lent.begin();
      for (const KvSpan& span : lent.Spans(layer, lent.begin())) {
        for (int64_t i = 0; i < span.tokens; ++i, ++t) {
          Mark mark;
          std::memcpy(&mark, span.rows.data() + i * kRowBytes, sizeof(mark));
          if (!(mark == Mark{layer, hashes[t], t})) return t;
        }
      }
      EXPECT_EQ(t, lent.end());
    }
    return lent.end();
  }
};

TEST_F(KvStoreRestHanded, ItHasExactlyWhatItAskedForAndWaitsForTheRest) {
  Leave(SomeIds(600), 400);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 900, kBlock));
  const KvStore::Size size = *store_->SizeOf(lease);
  EXPECT_EQ(size.known_tokens, kBlock) << "though 600 are known";
  EXPECT_EQ(size.known_answer_tokens, 0);
  EXPECT_EQ(size.handed_tokens, 800);
  EXPECT_EQ(Used(), 4) << "and nothing is copied";
  EXPECT_FALSE(store_->Complete(lease).fired());
  EXPECT_EQ(store_->Open(lease).status().code(), absl::StatusCode::kFailedPrecondition);
  FillRest(lease, kBlock, 500);
  EXPECT_FALSE(store_->Complete(lease).fired());
  FillRest(lease, 500, 800);
  EXPECT_TRUE(store_->Complete(lease).fired());
  KvStore::Sequence sequence = *store_->Open(lease);
  EXPECT_EQ(sequence.handed_tokens(), 800);
  EXPECT_THAT(sequence.Copies(), IsEmpty());
  EXPECT_EQ(FirstWrong(sequence, prompt, kBlock), kBlock);
}

TEST_F(KvStoreRestHanded, OnlyTheRestCountsAsHandedOff) {
  Leave(SomeIds(600), 400);
  const int64_t before = store_->stats().kv.expected_bytes;
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 900, 2 * kBlock));
  EXPECT_EQ(store_->stats().kv.expected_bytes - before, (800 - 2 * kBlock) * kLayers * kRowBytes);
  FillRest(lease, 2 * kBlock, 800);
  EXPECT_EQ(store_->stats().kv.received_bytes, store_->stats().kv.expected_bytes);
}

TEST_F(KvStoreRestHanded, FewerAreNotFoundAndTakeNothing) {
  Leave(SomeIds(600), 400);
  TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  EXPECT_EQ(Code(ForRest(prompt, 900, 3 * kBlock)), absl::StatusCode::kNotFound);
  prompt[300] = 7000;
  EXPECT_EQ(Code(ForRest(prompt, 900, 2 * kBlock)), absl::StatusCode::kNotFound);
  EXPECT_EQ(Used(), 0);
  EXPECT_TRUE(store_->Reserve(ForRest(prompt, 900, kBlock)).ok());
}

TEST_F(KvStoreRestHanded, FieldsThatDoNotGoTogetherAreRefused) {
  Leave(SomeIds(600), 400);
  const TokenIds prompt = SomeIds(600);
  LeaseRequest alone = ForRest(prompt, 900, kBlock);
  alone.least_known_tokens.reset();
  EXPECT_EQ(Code(alone), absl::StatusCode::kInvalidArgument);
  const TokenIds two_blocks = SomeIds(2 * kBlock);
  EXPECT_EQ(Code(ForRest(two_blocks, 900, 2 * kBlock)), absl::StatusCode::kInvalidArgument)
      << "nothing is left to hand off";
}

TEST_F(KvStoreRestHanded, WhatIsKnownIsWrittenByNobody) {
  Leave(SomeIds(600), 400);
  const TokenIds prompt = SomeIds(600);
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 700, kBlock));
  EXPECT_TRUE(store_->BeginWrite(lease, 0, 0, kBlock)->already_covered());
  EXPECT_EQ(store_->BeginWrite(lease, 0, kBlock - 1, 600).status().code(), absl::StatusCode::kOutOfRange);
}

// What of it was an answer's stays said, and so does what is a prompt's again.
TEST_F(KvStoreRestHanded, ItIsKeptAsAnyOther) {
  Leave(SomeIds(600), 400);
  const TokenIds ids = Joined(SomeIds(600), SomeIds(300, 1));
  const TokenIds prompt(ids.begin(), ids.begin() + 800);
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 900, 2 * kBlock));
  EXPECT_EQ(store_->SizeOf(lease)->known_answer_tokens, 2 * kBlock - 400);
  FillRest(lease, 2 * kBlock, 800);
  {
    KvStore::Sequence sequence = *store_->Open(lease);
    FillRows(sequence, ids, 2 * kBlock, 900);
    sequence.Keep(ids);
  }
  const TokenIds next = Joined(ids, {1});
  const LeaseId follows = *store_->Reserve(ForKnown(next, 1000));
  EXPECT_EQ(store_->SizeOf(follows)->known_tokens, 900);
  EXPECT_EQ(store_->SizeOf(follows)->known_answer_tokens, 2 * kBlock - 400 + 100);
  KvStore::Sequence sequence = *store_->Open(follows);
  MakeCopies(sequence);
  EXPECT_EQ(FirstWrong(sequence, ids, 900), 900);
}

TEST_F(KvStoreRestHanded, KnownRowsAreLentBeforeTheRestIsThere) {
  Leave(SomeIds(600), 400);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 900, 2 * kBlock));
  const absl::StatusOr<KvStore::Lent> lent = store_->LendKnown(lease, 2 * kBlock);
  ASSERT_TRUE(lent.ok()) << lent.status();
  EXPECT_EQ(lent->begin(), 0);
  EXPECT_EQ(lent->end(), 2 * kBlock);
  EXPECT_EQ(FirstWrongOf(*lent, prompt), 2 * kBlock);
  EXPECT_EQ(store_->LendKnown(lease, 100)->end(), 100);
}

TEST_F(KvStoreRestHanded, NoMoreIsLentThanWasKnown) {
  Leave(SomeIds(600), 400);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 900, kBlock));
  const auto code = [&](const LeaseId& of, int64_t tokens) { return store_->LendKnown(of, tokens).status().code(); };
  EXPECT_EQ(code(lease, kBlock + 1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(lease, 0), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(lease, -1), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(code(Reserve(600, 700), kBlock), absl::StatusCode::kOutOfRange) << "it began with nothing";
  store_->Release(lease);
  EXPECT_EQ(code(lease, kBlock), absl::StatusCode::kNotFound);
}

// Its rows are in the source until the engine has copied them: the rest is handed off beside them.
TEST_F(KvStoreRestHanded, OfABegunBlockRowsAreLentFromWhereTheyLie) {
  Leave(SomeIds(600), 400);
  const TokenIds ids = Joined(SomeIds(550), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRest(ids, 900, 550));
  EXPECT_EQ(store_->SizeOf(lease)->known_tokens, 550) << "though more is";
  EXPECT_EQ(Used(), 5) << "two shared blocks, two of its own, and the source";
  std::optional<KvStore::Lent> lent = *store_->LendKnown(lease, 550);
  EXPECT_EQ(FirstWrongOf(*lent, ids), 550);
  lent.reset();
  FillRest(lease, 550, 750);
  ASSERT_TRUE(store_->Complete(lease).fired());
  KvStore::Sequence sequence = *store_->Open(lease);
  FillRows(sequence, ids, 550, 750);
  MakeCopies(sequence);
  EXPECT_EQ(Used(), 4);
  EXPECT_EQ(FirstWrong(sequence, ids, 750), 750);
  EXPECT_EQ(FirstWrongOf(*store_->LendKnown(lease, 550), ids), 550) << "its own by now";
}

TEST_F(KvStoreRestHanded, WithoutMemoryForACopyOfABegunBlockItIsRefusedThoughItIsThere) {
  Leave(SomeIds(600), 400);
  const TokenIds ids = Joined(SomeIds(550), SomeIds(200, 1));
  EXPECT_EQ(Code(ForRest(ids, kBlocks * kBlock, 550)), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Code(ForRest(ids, kBlocks * kBlock, 2 * kBlock)), absl::StatusCode::kOk);
}

TEST_F(KvStoreRestHanded, WhatIsLentIsNobodyElsesWhateverBecomesOfTheLease) {
  Leave(SomeIds(600), 400);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 900, 2 * kBlock));
  std::optional<KvStore::Lent> lent = *store_->LendKnown(lease, 2 * kBlock);
  store_->Release(lease);
  store_->BeginEpoch(1);
  EXPECT_EQ(Used(), 2);
  const LeaseId other = *store_->Reserve({.prompt_tokens = 1, .total_tokens = (kBlocks - 2) * kBlock});
  EXPECT_EQ(FirstWrongOf(*lent, prompt), 2 * kBlock);
  lent.reset();
  store_->Release(other);
  EXPECT_EQ(Used(), 0);
}

TEST_F(KvStoreRestHanded, WindowsHideOfTheRestWhatTheyHideOfAnyPrompt) {
  KvStoreOptions options{kLayers, kRowBytes, kBlocks * kBlock, 99};
  options.windows = {0, 100, 0};
  store_ = *KvStore::Create(options, device_, clock_);
  Leave(SomeIds(3 * kBlock), 500);
  const TokenIds ids = Joined(SomeIds(3 * kBlock), SomeIds(400, 1));
  const TokenIds prompt(ids.begin(), ids.begin() + 3 * kBlock + 200);
  EXPECT_EQ(Code(ForRest(prompt, 1000, kBlock)), absl::StatusCode::kNotFound)
      << "the first query sees token 157, and the window of a prompt of 500 hid it";
  EXPECT_EQ(Code(ForRest(prompt, 1000, 2 * kBlock)), absl::StatusCode::kOk);
  const LeaseId lease = *store_->Reserve(ForRest(prompt, 1000, 3 * kBlock));
  for (const int64_t layer : {0, 2}) EXPECT_EQ(Fill(lease, layer, 3 * kBlock, 3 * kBlock + 200), absl::OkStatus());
  EXPECT_FALSE(store_->Complete(lease).fired());
  EXPECT_EQ(Fill(lease, 1, 3 * kBlock + 101, 3 * kBlock + 200), absl::OkStatus()) << "from its window on";
  EXPECT_TRUE(store_->Complete(lease).fired());
}

// A store with X beside KV.
class KvStoreRestHandedX : public KvStoreRestHanded {
 protected:
  KvStoreRestHandedX() {
    KvStoreOptions options{kLayers, kRowBytes, kBlocks * kBlock, 99};
    options.x_row_bytes = kRowBytes;
    store_ = *KvStore::Create(options, device_, clock_);
  }
  void FillX(const LeaseId& lease, int64_t begin, int64_t end) {
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, layer, begin, end, SliceKind::kX);
      ASSERT_TRUE(write.ok()) << write.status();
      EXPECT_EQ(write->Commit().Wait(), absl::OkStatus());
    }
  }
  void LeaveWithX(const TokenIds& ids, int64_t prompt) {
    const auto total = static_cast<int64_t>(ids.size());
    const LeaseId lease = *store_->Reserve({.prompt_tokens = prompt, .total_tokens = total, .with_x = true});
    FillAll(lease, prompt);
    FillX(lease, 0, prompt);
    store_->Open(lease)->Keep(ids);
  }
  static LeaseRequest ForRestWithX(const TokenIds& prompt, int64_t total, int64_t known) {
    LeaseRequest request = ForRest(prompt, total, known);
    request.with_x = true;
    return request;
  }
  bool HasX(const LeaseRequest& request) {
    const LeaseId lease = *store_->Reserve(request);
    const bool has = store_->SizeOf(lease)->with_x;
    store_->Release(lease);
    return has;
  }
};

TEST_F(KvStoreRestHandedX, XOfWhatIsKnownIsThereAndThatOfTheRestComes) {
  LeaveWithX(SomeIds(600), 400);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRestWithX(prompt, 900, 2 * kBlock));
  EXPECT_TRUE(store_->SizeOf(lease)->with_x);
  FillRest(lease, 2 * kBlock, 800);
  EXPECT_FALSE(store_->Complete(lease).fired()) << "X of the rest has not come";
  FillX(lease, 2 * kBlock, 800);
  EXPECT_TRUE(store_->Complete(lease).fired());
  KvStore::Sequence sequence = *store_->Open(lease);
  EXPECT_TRUE(sequence.has_x());
  EXPECT_EQ(sequence.kv_from(), 0);
  sequence.Keep(prompt);
  EXPECT_TRUE(HasX(ForRestWithX(Joined(prompt, {1}), 900, 3 * kBlock)));
}

TEST_F(KvStoreRestHandedX, OfABegunBlockItIsCopiedToo) {
  LeaveWithX(SomeIds(600), 400);
  const TokenIds prompt = Joined(SomeIds(550), SomeIds(200, 1));
  const LeaseId lease = *store_->Reserve(ForRestWithX(prompt, 900, 550));
  FillRest(lease, 550, 750);
  FillX(lease, 550, 750);
  KvStore::Sequence sequence = *store_->Open(lease);
  const std::vector<CopyPart> copies = sequence.Copies();
  ASSERT_EQ(copies.size(), static_cast<size_t>(2 * kLayers));
  for (const CopyPart& part : copies) EXPECT_EQ(part.from.size, (550 - 2 * kBlock) * kRowBytes);
  sequence.EndCopies();
}

TEST_F(KvStoreRestHandedX, WhereWhatIsKnownLacksItNoneIsWaitedFor) {
  LeaveWithX(SomeIds(300), 300);
  Leave(SomeIds(600), 600);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(200, 1));
  EXPECT_TRUE(HasX(ForRestWithX(prompt, 900, kBlock)));
  const LeaseId lease = *store_->Reserve(ForRestWithX(prompt, 900, 2 * kBlock));
  EXPECT_FALSE(store_->SizeOf(lease)->with_x) << "the second block has none";
  FillRest(lease, 2 * kBlock, 800);
  EXPECT_TRUE(store_->Complete(lease).fired());
  EXPECT_FALSE(store_->Open(lease)->has_x());
}

TEST_F(KvStoreRestHandedX, ABlockThatHasItTakesThePlaceOfOneThatHasNot) {
  const TokenIds ids = SomeIds(2 * kBlock), prompt = Joined(ids, {1});
  Leave(ids, 2 * kBlock);
  EXPECT_FALSE(HasX(ForRestWithX(prompt, 600, 2 * kBlock)));
  LeaveWithX(ids, 2 * kBlock);
  EXPECT_TRUE(HasX(ForRestWithX(prompt, 600, 2 * kBlock)));
  Leave(ids, 2 * kBlock);
  EXPECT_TRUE(HasX(ForRestWithX(prompt, 600, 2 * kBlock)));
  EXPECT_EQ(store_->stats().kept_bytes, 2 * 2 * kBlockBytes) << "of two blocks, with their X";
}

TEST_F(KvStoreRestHandedX, XComesBesideKvAlone) {
  LeaveWithX(SomeIds(600), 400);
  LeaseRequest instead = ForRestWithX(SomeIds(600), 900, kBlock);
  instead.kv_from = 10;
  EXPECT_EQ(Code(instead), absl::StatusCode::kInvalidArgument) << "what is known is not made again";
  LeaseRequest computed_here = ForKnown(SomeIds(600), 900, kBlock);
  computed_here.with_x = true;
  EXPECT_EQ(Code(computed_here), absl::StatusCode::kInvalidArgument);
}

// Rows between what was known and what the window leaves to decode never came: no prompt begins there.
TEST_F(KvStoreRestHanded, WhatWindowsHidOfTheRestIsNoBeginning) {
  KvStoreOptions options{kLayers, kRowBytes, kBlocks * kBlock, 99};
  options.windows = {0, 100, 0};
  store_ = *KvStore::Create(options, device_, clock_);
  Leave(SomeIds(2 * kBlock), 300);
  const TokenIds ids = Joined(SomeIds(2 * kBlock), SomeIds(400, 1));
  const LeaseId lease = *store_->Reserve(ForRest(ids, 1000, kBlock * 2));
  FillRest(lease, 2 * kBlock, 912);
  {
    KvStore::Sequence sequence = *store_->Open(lease);
    sequence.Keep(ids);
  }
  const auto begins = [&](int64_t tokens) {
    const TokenIds prompt = Joined(TokenIds(ids.begin(), ids.begin() + tokens), {7000});
    const absl::StatusOr<LeaseId> begun = store_->Reserve(ForKnown(prompt, 1000, tokens));
    if (begun.ok()) store_->Release(*begun);
    return begun.ok();
  };
  EXPECT_TRUE(begins(912));
  EXPECT_FALSE(begins(900)) << "it sees token 801, and rows came from 813 on";
  EXPECT_TRUE(begins(2 * kBlock)) << "what was known is known still";
}

}  // namespace
}  // namespace runahead
