// What is kept of sequences that ended, and leases that begin with it.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/kv/known_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(KvStoreKnown, WhatEndsStaysInMemoryThatCountsAsFree) {
  Leave(SomeIds(600), 500);
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Kept(), 3);
  EXPECT_EQ(Growable(), kBlocks);
  EXPECT_EQ(store_->stats().leases, 0);
}

TEST_F(KvStoreKnown, APromptThatGoesOnBeginsWithAllOfIt) {
  Leave(SomeIds(600), 500);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(50, 1));
  const LeaseId lease = *store_->Reserve(ForKnown(prompt, 900));
  const KvStore::Size size = *store_->SizeOf(lease);
  EXPECT_EQ(size.known_tokens, 600);
  EXPECT_EQ(size.known_answer_tokens, 100);
  EXPECT_EQ(size.handed_tokens, 600);
  EXPECT_EQ(Used(), 4 + 1) << "the source of the copy, too";
  KvStore::Sequence sequence = *store_->Open(lease);
  EXPECT_EQ(sequence.handed_tokens(), 600);
  EXPECT_EQ(sequence.Copies().size(), static_cast<size_t>(kLayers));
  MakeCopies(sequence);
  EXPECT_THAT(sequence.Copies(), IsEmpty());
  EXPECT_EQ(Used(), 4);
  EXPECT_EQ(FirstWrong(sequence, prompt, 600), 600);
}

TEST_F(KvStoreKnown, TwoThatGoOnDifferentlyDoNotSeeEachOther) {
  Leave(SomeIds(300), 300);
  const TokenIds a = Joined(SomeIds(300), SomeIds(30, 1)), b = Joined(SomeIds(300), SomeIds(30, 2));
  KvStore::Sequence first = *store_->Open(*store_->Reserve(ForKnown(a, 400)));
  KvStore::Sequence second = *store_->Open(*store_->Reserve(ForKnown(b, 400)));
  MakeCopies(first);
  FillRows(first, a, 300, 330);
  MakeCopies(second);
  FillRows(second, b, 300, 330);
  EXPECT_EQ(first.blocks()[0], second.blocks()[0]);
  EXPECT_NE(first.blocks()[1], second.blocks()[1]);
  EXPECT_EQ(FirstWrong(first, a, 330), 330);
  EXPECT_EQ(FirstWrong(second, b, 330), 330);
}

// Whole blocks are shared, the begun one is copied: both write behind the prompt, each in its own.
TEST_F(KvStoreKnown, APromptIsSharedWhileItsSequenceRuns) {
  const TokenIds prompt = SomeIds(300);
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 300, .total_tokens = 400});
  FillAll(lease, 300);
  std::optional<KvStore::Sequence> runs = *store_->Open(lease);
  FillRows(*runs, prompt, 0, 300);
  runs->Keep(prompt);
  const TokenIds a = Joined(prompt, SomeIds(60, 1)), b = Joined(prompt, SomeIds(60, 2));
  FillRows(*runs, a, 300, 330);
  KvStore::Sequence other = *store_->Open(*store_->Reserve(ForKnown(prompt, 400, 299)));
  EXPECT_EQ(other.handed_tokens(), 299);
  MakeCopies(other);
  FillRows(other, b, 299, 360);
  EXPECT_EQ(Used(), 3) << "one block is shared";
  EXPECT_EQ(Kept(), 0) << "nothing that is used";
  FillRows(*runs, a, 330, 360);
  EXPECT_EQ(FirstWrong(*runs, a, 360), 360);
  EXPECT_EQ(FirstWrong(other, b, 360), 360);
  runs->Keep(a);
  runs.reset();
  EXPECT_EQ(FirstWrong(other, b, 360), 360);
  other.Keep(b);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(Joined(a, {1}), 400)))->known_tokens, 360);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(Joined(b, {1}), 400)))->known_tokens, 360);
}

// Its blocks are another's from then on, but what was kept of it stays until they are needed.
TEST_F(KvStoreKnown, WhatRunsStaysItsOwnWhenWhatIsKeptOfItGoes) {
  const TokenIds prompt = SomeIds(300);
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 300, .total_tokens = 400});
  FillAll(lease, 300);
  KvStore::Sequence runs = *store_->Open(lease);
  FillRows(runs, prompt, 0, 300);
  runs.Keep(prompt);
  const LeaseId all = *store_->Reserve({.prompt_tokens = 1, .total_tokens = (kBlocks - 2) * kKvBlockTokens});
  EXPECT_EQ(FirstWrong(runs, prompt, 300), 300);
  EXPECT_EQ(Used(), kBlocks);
  store_->Release(all);
}

TEST_F(KvStoreKnown, OneTokenOfThePromptIsLeftToCompute) {
  Leave(SomeIds(300), 200);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(SomeIds(300), 310)))->known_tokens, 299);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(SomeIds(257), 310)))->known_tokens, 256);
  KvStore::Sequence sequence = *store_->Open(*store_->Reserve(ForKnown(SomeIds(257), 310)));
  EXPECT_THAT(sequence.Copies(), IsEmpty()) << "it ends with a block";
}

TEST_F(KvStoreKnown, LessThanTheLeastIsNotFoundAndTakesNothing) {
  Leave(SomeIds(300), 200);
  TokenIds prompt = SomeIds(400);
  prompt[280] = 7000;
  const absl::Status refused = store_->Reserve(ForKnown(prompt, 500, 281)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("first 280 tokens"));
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(prompt, 500, 280)))->known_tokens, 280);
}

TEST_F(KvStoreKnown, WritesToWhatIsKnownBringNothing) {
  Leave(SomeIds(300), 200);
  const TokenIds prompt = Joined(SomeIds(300), SomeIds(50, 1));
  const LeaseId lease = *store_->Reserve(ForKnown(prompt, 400));
  EXPECT_TRUE(store_->Complete(lease).fired());
  for (const int64_t begin : {0, 256, 290, 300}) {
    const absl::StatusOr<KvStore::Write> write = store_->BeginWrite(lease, 0, begin, 350);
    ASSERT_TRUE(write.ok()) << write.status();
    EXPECT_TRUE(write->already_covered());
    EXPECT_THAT(write->destination(), IsEmpty());
  }
}

TEST_F(KvStoreKnown, FieldsThatDoNotGoTogetherAreRefused) {
  const TokenIds prompt = SomeIds(100);
  std::vector<LeaseRequest> requests(6, ForKnown(prompt, 200));
  requests[0].least_known_tokens = 0;
  requests[1].least_known_tokens = 100;
  requests[2].prompt_ids = requests[2].prompt_ids.first(99);
  requests[3].handed_tokens = 10;
  requests[4].arriving_tokens = 100;
  requests[5].share = {*store_->Reserve({.prompt_tokens = 10, .total_tokens = 20}), 5};
  for (const LeaseRequest& request : requests) {
    EXPECT_EQ(store_->Reserve(request).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(KvStoreKnown, SaltsAndThoseThatAreNotKept) {
  Leave(SomeIds(300), 200, {.salt = "a"});
  Leave(SomeIds(300, 1), 200, {.not_kept = true});
  EXPECT_EQ(Kept(), 2);
  EXPECT_FALSE(store_->Reserve(ForKnown(SomeIds(300), 310)).ok());
  EXPECT_FALSE(store_->Reserve(ForKnown(SomeIds(300, 1), 310)).ok());
  const TokenIds prompt = SomeIds(300);
  LeaseRequest salted = ForKnown(prompt, 310);
  salted.salt = "a";
  EXPECT_TRUE(store_->Reserve(salted).ok());
}

TEST_F(KvStoreKnown, OfOneThatCameFromElsewhereNothingIsKept) {
  const TokenIds ids = SomeIds(300);
  const LeaseId lease = *store_->Reserve({.prompt_tokens = 200, .total_tokens = 300, .arriving_tokens = 250});
  FillAll(lease, 200);
  ASSERT_EQ(store_->EndArrival(lease, 200), absl::OkStatus());
  KvStore::Sequence sequence = *store_->Open(lease);
  FillRows(sequence, ids, 0, 300);
  sequence.Keep(ids);
  { const KvStore::Sequence ends = std::move(sequence); }
  EXPECT_EQ(Kept(), 0);
}

TEST_F(KvStoreKnown, WhoNeedsMemoryTakesTheOldest) {
  Leave(SomeIds(500), 400);
  Leave(SomeIds(500, 1), 400);
  Leave(SomeIds(500, 2), 400);
  const TokenIds again = SomeIds(500);
  store_->Release(*store_->Reserve(ForKnown(again, 501)));  // used again
  EXPECT_EQ(Kept(), 6);
  const LeaseId lease = Reserve(100, 4 * kKvBlockTokens);
  EXPECT_EQ(Kept(), 4);
  EXPECT_EQ(Evicted(), 2);
  EXPECT_FALSE(store_->Reserve(ForKnown(SomeIds(500, 1), 501)).ok());
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(again, 501)))->known_tokens, 499);
  store_->Release(lease);
}

TEST_F(KvStoreKnown, AGrowingLeaseTakesWhatIsKept) {
  Leave(SomeIds(7 * kKvBlockTokens), 100);
  KvStore::Sequence sequence = OpenOne(100, kBlocks * kKvBlockTokens, 100);
  EXPECT_EQ(Kept(), 7);
  EXPECT_EQ(sequence.Grow(3 * kKvBlockTokens), absl::OkStatus());
  EXPECT_EQ(Kept(), 5);
  EXPECT_EQ(sequence.Grow(kBlocks * kKvBlockTokens), absl::OkStatus());
  EXPECT_EQ(Kept(), 0);
}

// Its first block is shared, the begun one is copied: that takes a block more than the store has.
TEST_F(KvStoreKnown, WhereACopyHasNoRoomWholeBlocksAreKnown) {
  Leave(SomeIds(300), 200);
  const TokenIds prompt = Joined(SomeIds(300), SomeIds(50, 1));
  const absl::Status refused = store_->Reserve(ForKnown(prompt, kBlocks * kKvBlockTokens, 257)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange) << "it is there, and waiting would not help";
  EXPECT_EQ(store_->Reserve(ForKnown(prompt, kBlocks * kKvBlockTokens, 301)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Used(), 0);
  const LeaseId lease = *store_->Reserve(ForKnown(prompt, kBlocks * kKvBlockTokens));
  EXPECT_EQ(store_->SizeOf(lease)->known_tokens, 256);
  KvStore::Sequence sequence = *store_->Open(lease);
  EXPECT_EQ(FirstWrong(sequence, prompt, 256), 256);
  EXPECT_EQ(Used(), kBlocks);
}

TEST_F(KvStoreKnown, WhereItIsFullNowItSaysSoAndTakesNothing) {
  Leave(SomeIds(300), 200);
  const LeaseId other = Reserve(100, 5 * kKvBlockTokens);
  const TokenIds prompt = Joined(SomeIds(300), SomeIds(50, 1));
  EXPECT_EQ(store_->Reserve(ForKnown(prompt, 4 * kKvBlockTokens)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_->Reserve(ForKnown(prompt, 3 * kKvBlockTokens, 257)).status().code(),
            absl::StatusCode::kResourceExhausted)
      << "for the copy there will be room";
  EXPECT_EQ(Used(), 5);
  store_->Release(other);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(prompt, 3 * kKvBlockTokens, 257)))->known_tokens, 300);
}

TEST_F(KvStoreKnown, WhatIsReadStaysWhateverElseNeedsMemory) {
  Leave(SomeIds(300), 200);
  const TokenIds prompt = Joined(SomeIds(300), SomeIds(50, 1));
  const LeaseId lease = *store_->Reserve(ForKnown(prompt, 400));
  const LeaseId other = Reserve(1, (kBlocks - 3) * kKvBlockTokens);
  KvStore::Sequence sequence = *store_->Open(lease);
  MakeCopies(sequence);
  EXPECT_EQ(FirstWrong(sequence, prompt, 300), 300);
  EXPECT_EQ(store_->Reserve({.prompt_tokens = 1, .total_tokens = 1}).ok(), true) << "the source's block is free now";
  store_->Release(other);
}

TEST_F(KvStoreKnown, ALeaseThatEndsBeforeItsCopyGivesTheSourceBack) {
  Leave(SomeIds(300), 200);
  const TokenIds prompt = Joined(SomeIds(300), SomeIds(50, 1));
  store_->Release(*store_->Reserve(ForKnown(prompt, 400)));
  EXPECT_EQ(Used(), 0);
  {
    KvStore::Sequence sequence = *store_->Open(*store_->Reserve(ForKnown(prompt, 400)));
    EXPECT_EQ(Used(), 3);
  }
  EXPECT_EQ(Used(), 0);
  LeaseRequest grows = ForKnown(prompt, 400);
  grows.expected_tokens = 350;
  KvStore::Sequence parked = *store_->Open(*store_->Reserve(grows));
  parked.Park(350);
  EXPECT_THAT(parked.Copies(), IsEmpty());
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Kept(), 2);
}

// All rows are computed again by then: those of the known answer as a prompt's, those of its own answer as output.
TEST_F(KvStoreKnown, OneThatWasParkedIsKeptAsItIsComputedAgain) {
  Leave(SomeIds(300), 200);
  const TokenIds prompt = Joined(SomeIds(300), SomeIds(300, 1)), all = Joined(prompt, SomeIds(50, 2));
  LeaseRequest grows = ForKnown(prompt, 700);
  grows.expected_tokens = 650;
  {
    KvStore::Sequence sequence = *store_->Open(*store_->Reserve(grows));
    sequence.Park(650);
    sequence.Keep(all);
    EXPECT_EQ(Kept(), 2) << "it has nothing";
    ASSERT_EQ(sequence.Grow(650), absl::OkStatus());
    FillRows(sequence, all, 0, 650);
    sequence.Keep(all);
  }
  const KvStore::Size size = *store_->SizeOf(*store_->Reserve(ForKnown(Joined(all, SomeIds(20, 3)), 700)));
  EXPECT_EQ(size.known_tokens, 650);
  EXPECT_EQ(size.known_answer_tokens, 256 - 200 + 50) << "of the older one's block, and its own";
}

TEST_F(KvStoreKnown, AnEpochsEndForgetsAllAndTheDeadKeepNothing) {
  Leave(SomeIds(300), 200);
  const TokenIds prompt = SomeIds(300);
  KvStore::Sequence sequence = *store_->Open(*store_->Reserve(ForKnown(prompt, 400)));
  MakeCopies(sequence);
  store_->BeginEpoch(1);
  EXPECT_EQ(Used(), 2) << "who is open has its memory";
  sequence.Keep(prompt);
  EXPECT_FALSE(store_->Reserve(ForKnown(prompt, 400)).ok());
  { const KvStore::Sequence ends = std::move(sequence); }
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Kept(), 0);
  EXPECT_EQ(Evicted(), 0);
}

TEST_F(KvStoreKnown, WhatIsForgottenIsBlankAndNobodyBeginsWithIt) {
  Leave(SomeIds(600), 500);
  Leave(SomeIds(300), 300, {.salt = "alice"});
  EXPECT_EQ(Kept(), 3 + 2);
  EXPECT_EQ(store_->Forget("bob"), 0);
  EXPECT_EQ(store_->Forget("alice"), 2 * kBlockBytes);
  EXPECT_EQ(Kept(), 3);
  const auto known = [this](const TokenIds& prompt, const std::string& salt) -> int64_t {
    LeaseRequest request = ForKnown(prompt, 700);
    request.salt = salt;
    const absl::StatusOr<LeaseId> lease = store_->Reserve(request);
    if (absl::IsNotFound(lease.status())) return 0;
    const int64_t tokens = store_->SizeOf(*lease)->known_tokens;
    store_->Release(*lease);
    return tokens;
  };
  EXPECT_EQ(known(SomeIds(301), "alice"), 0);
  EXPECT_EQ(known(SomeIds(601), ""), 600);
  Leave(SomeIds(300), 300, {.salt = "alice"});
  EXPECT_EQ(known(SomeIds(301), "alice"), 300) << "kept since";
  EXPECT_EQ(store_->Forget(std::nullopt), 5 * kBlockBytes);
  EXPECT_EQ(known(SomeIds(301), "alice") + known(SomeIds(601), ""), 0);
  EXPECT_EQ(Kept(), 0);
  EXPECT_EQ(Evicted(), 0) << "nobody needed the memory";
}

// It holds references to the whole blocks, and to the source of its copy until that is made.
TEST_F(KvStoreKnown, WhoBeganWithItReadsItThoughItIsForgottenMeanwhile) {
  Leave(SomeIds(600), 500);
  const TokenIds prompt = Joined(SomeIds(600), SomeIds(50, 1));
  const LeaseId lease = *store_->Reserve(ForKnown(prompt, 700));
  EXPECT_EQ(store_->Forget(std::nullopt), 0) << "all of it is in use";
  const LeaseId other = Reserve(1, (kBlocks - 4) * kKvBlockTokens);  // which would take what is blank
  KvStore::Sequence sequence = *store_->Open(lease);
  MakeCopies(sequence);
  FillRows(sequence, prompt, 600, 650);
  EXPECT_EQ(FirstWrong(sequence, prompt, 650), 650);
  store_->Release(other);
  sequence.Keep(prompt);
  { const KvStore::Sequence ends = std::move(sequence); }
  EXPECT_EQ(Used(), 0);
  EXPECT_EQ(Kept(), 3) << "it is kept as it ended";
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(Joined(prompt, {1}), 700)))->known_tokens, 650);
}

TEST_F(KvStoreKnown, WhatWindowsHidIsNoBeginning) {
  KvStoreOptions options{kLayers, kRowBytes, kBlocks * kKvBlockTokens, 99};
  options.windows = {0, 100, 0};
  store_ = *KvStore::Create(options, device_, clock_);
  Leave(SomeIds(600), 500);
  EXPECT_EQ(store_->Reserve(ForKnown(SomeIds(500), 700)).status().code(), absl::StatusCode::kNotFound)
      << "it sees token 400, and rows came from 401 on";
  const TokenIds prompt = SomeIds(650);
  EXPECT_EQ(store_->SizeOf(*store_->Reserve(ForKnown(prompt, 700)))->known_tokens, 600);
}

}  // namespace
}  // namespace runahead
