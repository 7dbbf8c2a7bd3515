#include "scheduler/placement/decode_queue.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Turn At(int64_t number) {
  return {RequestPriority::kNormal, 0, number};
}

const Turn kNewcomer = At(1000);

// The room that each of `count` workers keeps for requests that are older than this one.
std::vector<int64_t> KeptBefore(const DecodeQueue& queue, const Turn& request, size_t count) {
  std::vector<DecodeView> views(count);
  queue.AddKept(request, absl::MakeSpan(views));
  std::vector<int64_t> kept;
  for (const DecodeView& view : views) kept.push_back(view.kept_tokens);
  return kept;
}

TEST(DecodeQueue, KeepsRoomWhereThereIsMostAndOnlyFromThoseThatCameLater) {
  DecodeQueue queue;
  const std::vector<DecodeView> workers = {{true, 1000, 900, 1}, {true, 1000, 700, 1}, {false, 9000, 0, 0}};
  queue.Keep(At(5), {800}, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 3), ElementsAre(0, 800, 0));
  EXPECT_THAT(KeptBefore(queue, At(5), 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(KeptBefore(queue, At(4), 3), ElementsAre(0, 0, 0));
  // The other worker has more room than this one has left.
  queue.Keep(At(7), {500}, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 3), ElementsAre(500, 800, 0));
  EXPECT_TRUE(queue.First(At(5)));
  EXPECT_TRUE(queue.First(At(7)));
  queue.Leave(At(5));
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 3), ElementsAre(500, 0, 0));
}

TEST(DecodeQueue, AnAvoidedWorkerIsTakenOnlyWhereNoOtherCouldHoldIt) {
  DecodeQueue queue;
  std::vector<DecodeView> workers = {{true, 1000, 0}, {true, 1000, 900}};
  queue.Keep(At(5), {800}, workers, {0});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 800));
  EXPECT_THAT(queue.WhoFits(workers), IsEmpty()) << "it waits for the other one";
  EXPECT_EQ(queue.FitsInS(At(5), workers), std::numeric_limits<double>::infinity());
  workers[1].reserved_tokens = 100;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5)));
  workers[1].ready = false;
  queue.Lost(1);
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5))) << "there is no other";
  EXPECT_EQ(queue.FitsInS(At(5), workers), 0);
  queue.Keep(At(5), {800}, workers, {0});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 0));
}

TEST(DecodeQueue, MovesOnlyToAWorkerThatHasMoreRoom) {
  DecodeQueue queue;
  queue.Keep(At(5), {800}, {{true, 1000, 900, 1}, {true, 1000, 900, 1}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 0));
  queue.Keep(At(5), {800}, {{true, 1000, 600, 1}, {true, 1000, 600, 1}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 0));
  queue.Keep(At(5), {800}, {{true, 1000, 600, 1}, {true, 1000, 500, 1}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 800));
  queue.Lost(1);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 0));
  EXPECT_TRUE(queue.First(At(5)));
  queue.Keep(At(5), {800}, {{true, 799, 0, 0}, {false, 1000, 0, 0}});  // none that could hold it
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 0));
}

TEST(DecodeQueue, TheOldestOfAWorkerGoesFirst) {
  DecodeQueue queue;
  std::vector<DecodeView> worker = {{true, 1000, 1000, 5}};
  queue.Keep(At(5), {800}, worker);
  queue.Keep(At(6), {100}, worker);
  queue.Keep(At(7), {150}, worker);
  EXPECT_FALSE(queue.First(At(6)));
  EXPECT_THAT(queue.WhoFits(worker), IsEmpty());
  worker[0].reserved_tokens = 300;
  EXPECT_THAT(queue.WhoFits(worker), IsEmpty());  // 700 are free, and kept
  worker[0].reserved_tokens = 200;
  EXPECT_THAT(queue.WhoFits(worker), ElementsAre(At(5)));
  worker[0].reserved_tokens = 50;
  EXPECT_THAT(queue.WhoFits(worker), ElementsAre(At(5), At(6)));
  queue.Leave(At(5));
  EXPECT_TRUE(queue.First(At(6)));
  EXPECT_THAT(queue.WhoFits(worker), ElementsAre(At(6), At(7)));
}

TEST(DecodeQueue, TheFirstAreTheOldestOfEachWorkerAndThoseForWhomNoneKeepsRoom) {
  DecodeQueue queue;
  const std::vector<DecodeView> workers = {{true, 1000, 900, 1}, {true, 1000, 700, 1}};
  queue.Keep(At(5), {800}, workers);
  queue.Keep(At(6), {2000}, workers);  // that none could hold
  queue.Keep(At(7), {500}, workers);
  queue.Keep(At(8), {100}, workers);
  EXPECT_THAT(queue.Firsts(), ElementsAre(At(5), At(6), At(7)));
  for (const int64_t request : {5, 6, 7}) EXPECT_TRUE(queue.First(At(request)));
  EXPECT_FALSE(queue.First(At(8)));
}

TEST(DecodeQueue, WhatAnotherWorkerGivesBackIsForTheOldestThatItIsEnoughFor) {
  DecodeQueue queue;
  std::vector<DecodeView> workers = {{true, 1000, 999, 1}, {true, 500, 500, 1}};
  for (const int64_t request : {5, 6, 7}) queue.Keep(At(request), {request == 5 ? 800 : 200}, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 400));
  workers[1].reserved_tokens = 250;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(6)));
  workers[1].reserved_tokens = 0;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(6), At(7)));
  workers[1].ready = false;
  EXPECT_THAT(queue.WhoFits(workers), IsEmpty());
  EXPECT_THAT(queue.WhoFits({}), IsEmpty());
}

TEST(DecodeQueue, KeepsWhatIsExpectedWhereLeasesGrowAndElseAll) {
  DecodeQueue queue;
  std::vector<DecodeView> workers = {{true, 1000, 950, 1}};
  const DecodeNeed need = {.tokens = 800, .expected_tokens = 100};
  queue.Keep(At(5), need, workers);
  queue.Keep(At(6), need, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 1), ElementsAre(200));
  EXPECT_THAT(queue.WhoFits(workers), IsEmpty());
  workers[0].reserved_tokens = 900;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5)));
  EXPECT_EQ(queue.FitsInS(At(5), workers), 0);
  workers[0].reserved_tokens = 800;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5), At(6)));
  workers[0].grows = false;
  EXPECT_THAT(queue.WhoFits(workers), IsEmpty());
  EXPECT_EQ(queue.FitsInS(At(5), workers), std::numeric_limits<double>::infinity());
  workers[0].reserved_tokens = 200;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5))) << "no room is left for two that may be so long";
  std::vector<DecodeView> kept = workers;
  queue.AddKept(kNewcomer, absl::MakeSpan(kept));
  EXPECT_EQ(kept[0].kept_tokens, 1600);
}

TEST(DecodeQueue, NothingIsKeptWhereTheLongestAnswerWouldNotBeHeld) {
  DecodeQueue queue;
  queue.Keep(At(5), {.tokens = 1001, .expected_tokens = 10}, {{true, 1000, 0, 0}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 1), ElementsAre(0));
}

// Of two slots, with memory for all.
DecodeView Steps(int64_t taken, std::vector<double> ends_s = {}) {
  DecodeView view{true, 100000, 0, 0};
  view.slots = 2;
  view.taken_slots = taken;
  view.ends_s = std::move(ends_s);
  return view;
}

TEST(DecodeQueue, KeepsASlotWhereOneIsFreeSoonest) {
  DecodeQueue queue;
  const std::vector<DecodeView> workers = {Steps(2, {3, 4}), Steps(2, {2, 9})};
  for (const int64_t request : {5, 6, 7}) queue.Keep(At(request), {100}, workers);
  std::vector<DecodeView> kept = workers;
  queue.AddKept(kNewcomer, absl::MakeSpan(kept));
  EXPECT_EQ(kept[0].kept_slots, 2) << "the second and third: 3 and 4 come before 9";
  EXPECT_EQ(kept[1].kept_slots, 1);
  EXPECT_EQ(queue.FitsInS(At(5), workers), 2);
  EXPECT_EQ(queue.FitsInS(At(6), workers), 3);
  EXPECT_EQ(queue.FitsInS(At(7), workers), 4);
  EXPECT_EQ(queue.FitsInS(At(8), workers), std::numeric_limits<double>::infinity()) << "nothing is kept for it";
}

TEST(DecodeQueue, WhoeverHasItsKvWhenASlotIsFreeGoesOn) {
  DecodeQueue queue;
  std::vector<DecodeView> workers = {Steps(2, {1})};
  queue.Keep(At(5), {100, 0.4}, workers);
  queue.Keep(At(6), {100, 0.4}, workers);
  EXPECT_NEAR(queue.FitsInS(At(5), workers), 0.6, 1e-9);
  EXPECT_THAT(queue.WhoFits(workers), IsEmpty());
  workers[0].ends_s = {0.3};
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5)));
  workers[0].ends_s = {0.3, 0.4};
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5), At(6)));
}

TEST(DecodeQueue, ASlotOfAnotherWorkerIsForTheOldest) {
  DecodeQueue queue;
  std::vector<DecodeView> workers = {Steps(2, {1}), Steps(2)};
  queue.Keep(At(5), {100}, workers);
  queue.Keep(At(6), {100}, workers);
  workers[1].taken_slots = 1;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5)));
  workers[1].taken_slots = 0;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(At(5), At(6)));
}

}  // namespace
}  // namespace runahead
