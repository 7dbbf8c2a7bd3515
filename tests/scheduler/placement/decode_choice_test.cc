#include "scheduler/placement/decode_choice.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/admission.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankDecodeWorkers, PutsMostFreeFirstThenFewestLeases) {
  const std::vector<DecodeView> workers = {
      {true, 1000, 600, 1}, {true, 1000, 0, 0}, {false, 9000, 0, 0}, {true, 2000, 1000, 3}, {true, 1000, 0, 1}};
  EXPECT_THAT(*RankDecodeWorkers({500}, workers), ElementsAre(1, 4, 3, 0));
  EXPECT_THAT(*RankDecodeWorkers({1500}, workers), ElementsAre(3));
}

TEST(RankDecodeWorkers, SaysWhatIsMissing) {
  EXPECT_EQ(RankDecodeWorkers({1}, {}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RankDecodeWorkers({1}, {{false, 10, 0, 0}}).status().code(), absl::StatusCode::kUnavailable);
  const absl::Status status = RankDecodeWorkers({2001}, {{true, 1000, 0, 0}, {true, 2000, 0, 0}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("2001"));
  EXPECT_THAT(status.message(), HasSubstr("2000"));
}

TEST(RankDecodeWorkers, WhatAWorkerThatIsAwayCouldHoldIsWorthTryingAgain) {
  for (const int64_t last_known : {int64_t{3000}, kNeverReached}) {
    const absl::Status status = RankDecodeWorkers({2001}, {{true, 2000, 0, 0}, {false, last_known, 0, 0}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("2001 tokens"));
  }
  EXPECT_EQ(RankDecodeWorkers({2001}, {{true, 1000, 0, 0}, {false, 2000, 0, 0}}).status().code(),
            absl::StatusCode::kOutOfRange);
}

TEST(RankDecodeWorkers, LeavesOutWhatIsKeptForOthers) {
  std::vector<DecodeView> workers = {{true, 1000, 500, 1}, {true, 1000, 900, 0}};
  workers[0].kept_tokens = 300;
  EXPECT_THAT(*RankDecodeWorkers({200}, workers), ElementsAre(0, 1));
  EXPECT_THAT(*RankDecodeWorkers({201}, workers), ElementsAre(1));  // it looks full, but nothing is kept there
  workers[1].kept_tokens = 1000;
  EXPECT_EQ(RankDecodeWorkers({201}, workers).status().code(), absl::StatusCode::kResourceExhausted);
}

// All that it may use, and what is expected of it.
DecodeNeed Expecting(int64_t tokens, int64_t expected) {
  return {.tokens = tokens, .expected_tokens = expected};
}

TEST(DecodeNeed, IsExpectedAsAWholeUnlessItSaysOtherwise) {
  EXPECT_EQ(DecodeNeed{500}.expected_tokens, 500);
  EXPECT_EQ(Expecting(500, 80).counted(/*grows=*/true), 80);
  EXPECT_EQ(Expecting(500, 80).counted(/*grows=*/false), 500);
}

TEST(RankDecodeWorkers, RoomIsJudgedByWhatIsExpectedWhereLeasesGrow) {
  std::vector<DecodeView> workers = {{true, 1000, 900, 1}, {true, 1000, 950, 1}};
  EXPECT_TRUE(workers[0].has_room(Expecting(800, 100)));
  EXPECT_FALSE(workers[1].has_room(Expecting(800, 100)));
  for (DecodeView& worker : workers) worker.kept_tokens = 1;
  EXPECT_THAT(*RankDecodeWorkers(Expecting(800, 99), workers), ElementsAre(0));
  workers[0].grows = false;
  EXPECT_EQ(RankDecodeWorkers(Expecting(800, 99), workers).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(RankDecodeWorkers, AnAnswerThatCouldGrowBeyondEveryStoreIsRefusedWhateverIsExpected) {
  const std::vector<DecodeView> workers = {{true, 1000, 0, 0}, {true, 2000, 0, 0}};
  const absl::Status status = RankDecodeWorkers(Expecting(2001, 10), workers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("2001"));
  EXPECT_THAT(*RankDecodeWorkers(Expecting(2000, 10), workers), ElementsAre(1));
}

DecodeView WithSlots(int64_t slots, int64_t taken, std::vector<double> ends_s = {}) {
  DecodeView view{true, 1000, 0, 0};
  view.slots = slots;
  view.taken_slots = taken;
  view.ends_s = std::move(ends_s);
  return view;
}

TEST(DecodeView, ASlotIsFreeWhenAsManyHaveEndedAsAreTooMany) {
  EXPECT_EQ(WithSlots(8, 7).slot_s(), 0);
  EXPECT_EQ(WithSlots(8, 8, {1, 2}).slot_s(), 1);
  DecodeView view = WithSlots(8, 8, {1, 2});
  view.kept_slots = 1;
  EXPECT_EQ(view.slot_s(), 2);
  view.kept_slots = 2;
  EXPECT_EQ(view.slot_s(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(WithSlots(kSlotsUntold, 100).slot_s(), 0) << "it does not say";
}

TEST(RankDecodeWorkers, PutsTheSmallestShareOfTakenSlotsFirst) {
  std::vector<DecodeView> workers = {WithSlots(8, 4), WithSlots(16, 6), WithSlots(8, 2)};
  workers[2].reserved_tokens = 900;  // it looks full to all but small ones
  EXPECT_THAT(*RankDecodeWorkers({50}, workers), ElementsAre(2, 1, 0));
  EXPECT_THAT(*RankDecodeWorkers({500}, workers), ElementsAre(1, 0, 2));
}

TEST(RankDecodeWorkers, TakesAWorkerOnlyWhereASlotIsFreeOnceKvHasCome) {
  const std::vector<DecodeView> workers = {WithSlots(2, 2, {0.5}), WithSlots(2, 2, {0.2})};
  const absl::Status none = RankDecodeWorkers({50, 0.1}, workers).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(none.message(), HasSubstr("max_batch"));
  EXPECT_THAT(*RankDecodeWorkers({50, 0.3}, workers), ElementsAre(1));
  EXPECT_THAT(*RankDecodeWorkers({50, 0.5}, workers), ElementsAre(0, 1));
}

TEST(AdmitToQueue, RefusesBeyondTheLimitAndNamesIt) {
  EXPECT_TRUE(AdmitToQueue(3, 4).ok());
  EXPECT_EQ(AdmitToQueue(4, 4).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(AdmitToQueue(4, 4).message(), HasSubstr("queue_size is 4"));
  EXPECT_FALSE(AdmitToQueue(0, 0).ok());
}

// A worker of 1,000 tokens and 2 slots computes for a request of 300 tokens, which has its lease, and shares 200.
class RoomBehindTest : public ::testing::Test {
 protected:
  bool HasRoom() const { return HasRoomBehind(worker_, {.tokens = 300, .expected_tokens = 250}, coming_); }

  DecodeView worker_{.ready = true, .capacity_tokens = 1000, .reserved_tokens = 250, .slots = 2, .taken_slots = 1};
  ComingLease coming_{.need = {.tokens = 300, .expected_tokens = 250}, .reserved = true, .shared_tokens = 200};
};

TEST_F(RoomBehindTest, ASlotMustBeFreeBesideThoseTakenAndThoseThatOthersWaitFor) {
  EXPECT_TRUE(HasRoom());
  coming_.waiting = 1;
  EXPECT_FALSE(HasRoom());
  coming_.returned = true;
  EXPECT_TRUE(HasRoom());
  worker_.kept_slots = 1;
  EXPECT_FALSE(HasRoom());
  worker_.slots = kSlotsUntold;
  EXPECT_TRUE(HasRoom());
}

TEST_F(RoomBehindTest, ASlotThatIsFreeByThenDoes) {
  worker_.taken_slots = 2;
  worker_.ends_s = {3};
  coming_.in_s = 2.9;
  EXPECT_FALSE(HasRoom());
  coming_.in_s = 3;
  EXPECT_TRUE(HasRoom());
  worker_.ends_s = {0};
  coming_.in_s = -1;
  EXPECT_TRUE(HasRoom()) << "it is late, and may come any moment";
}

TEST_F(RoomBehindTest, SharedMemoryIsCountedOnce) {
  worker_.reserved_tokens = 950;
  EXPECT_TRUE(HasRoom());
  ++worker_.reserved_tokens;
  EXPECT_FALSE(HasRoom());
  worker_.slots = kSlotsUntold;
  worker_.reserved_tokens = 850;
  coming_.waiting = 2;
  EXPECT_TRUE(HasRoom());
  coming_.waiting = 3;
  EXPECT_FALSE(HasRoom());
}

TEST_F(RoomBehindTest, WhatTheFirstHasNotTakenYetIsTakenFirst) {
  coming_.reserved = false;
  worker_.reserved_tokens = 700;
  EXPECT_TRUE(HasRoom());
  ++worker_.reserved_tokens;
  EXPECT_FALSE(HasRoom());
}

TEST_F(RoomBehindTest, WhatIsGivenBackIsFreeAndSharedNoMore) {
  coming_.returned = true;
  worker_.reserved_tokens = 1000;
  EXPECT_TRUE(HasRoom());
  ++worker_.reserved_tokens;
  EXPECT_FALSE(HasRoom());
  coming_.reserved = false;
  worker_.reserved_tokens = 750;
  EXPECT_TRUE(HasRoom());
  ++worker_.reserved_tokens;
  EXPECT_FALSE(HasRoom());
}

TEST_F(RoomBehindTest, WhereSomeIsKeptForOthersAllOfItMustBeFree) {
  worker_.kept_tokens = 500;
  EXPECT_TRUE(HasRoom());
  ++worker_.kept_tokens;
  EXPECT_FALSE(HasRoom());
}

TEST_F(RoomBehindTest, AWorkerThatTakesNothingNewHasNone) {
  worker_.ready = false;
  EXPECT_FALSE(HasRoom());
}

}  // namespace
}  // namespace runahead
