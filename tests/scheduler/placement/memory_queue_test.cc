#include "scheduler/placement/memory_queue.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kNewcomer = 1000;

// What is kept of each of `count` workers for those that are older than the request.
std::vector<int64_t> KeptBefore(const MemoryQueue& queue, int64_t request, size_t count) {
  std::vector<DecodeView> views(count);
  queue.AddKept(request, absl::MakeSpan(views));
  std::vector<int64_t> kept;
  for (const DecodeView& view : views) kept.push_back(view.kept_tokens);
  return kept;
}

TEST(MemoryQueue, KeepsRoomWhereThereIsMostAndOnlyFromThoseThatCameLater) {
  MemoryQueue queue;
  const std::vector<DecodeView> workers = {{true, 1000, 900, 1}, {true, 1000, 700, 1}, {false, 9000, 0, 0}};
  queue.Keep(5, 800, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 3), ElementsAre(0, 800, 0));
  EXPECT_THAT(KeptBefore(queue, 5, 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(KeptBefore(queue, 4, 3), ElementsAre(0, 0, 0));
  // What is left beside it is less than what the other has.
  queue.Keep(7, 500, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 3), ElementsAre(500, 800, 0));
  EXPECT_TRUE(queue.First(5));
  EXPECT_TRUE(queue.First(7));
  queue.Leave(5);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 3), ElementsAre(500, 0, 0));
}

TEST(MemoryQueue, MovesOnlyToAWorkerThatHasMoreRoom) {
  MemoryQueue queue;
  queue.Keep(5, 800, {{true, 1000, 900, 1}, {true, 1000, 900, 1}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 0));
  queue.Keep(5, 800, {{true, 1000, 600, 1}, {true, 1000, 600, 1}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 0));
  queue.Keep(5, 800, {{true, 1000, 600, 1}, {true, 1000, 500, 1}});
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 800));
  queue.Lost(1);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 0));
  EXPECT_TRUE(queue.First(5));
  queue.Keep(5, 800, {{true, 799, 0, 0}, {false, 1000, 0, 0}});  // none that could hold it
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(0, 0));
}

TEST(MemoryQueue, TheOldestOfAWorkerGoesFirst) {
  MemoryQueue queue;
  std::vector<DecodeView> worker = {{true, 1000, 1000, 5}};
  queue.Keep(5, 800, worker);
  queue.Keep(6, 100, worker);
  queue.Keep(7, 150, worker);
  EXPECT_FALSE(queue.First(6));
  EXPECT_THAT(queue.WhoFits(worker), IsEmpty());
  worker[0].reserved_tokens = 300;
  EXPECT_THAT(queue.WhoFits(worker), IsEmpty());  // 700 are free, and kept
  worker[0].reserved_tokens = 200;
  EXPECT_THAT(queue.WhoFits(worker), ElementsAre(5));
  worker[0].reserved_tokens = 50;
  EXPECT_THAT(queue.WhoFits(worker), ElementsAre(5, 6));
  queue.Leave(5);
  EXPECT_TRUE(queue.First(6));
  EXPECT_THAT(queue.WhoFits(worker), ElementsAre(6, 7));
}

TEST(MemoryQueue, WhatAnotherWorkerGivesBackIsForTheOldestThatItIsEnoughFor) {
  MemoryQueue queue;
  std::vector<DecodeView> workers = {{true, 1000, 999, 1}, {true, 500, 500, 1}};
  for (const int64_t request : {5, 6, 7}) queue.Keep(request, request == 5 ? 800 : 200, workers);
  EXPECT_THAT(KeptBefore(queue, kNewcomer, 2), ElementsAre(800, 400));
  workers[1].reserved_tokens = 250;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(6));
  workers[1].reserved_tokens = 0;
  EXPECT_THAT(queue.WhoFits(workers), ElementsAre(6, 7));
  workers[1].ready = false;
  EXPECT_THAT(queue.WhoFits(workers), IsEmpty());
  EXPECT_THAT(queue.WhoFits({}), IsEmpty());
}

}  // namespace
}  // namespace runahead
