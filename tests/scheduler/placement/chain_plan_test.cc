#include "scheduler/placement/chain_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kRoomy = 1 << 20;

// One digit a worker: its unfinished jobs; 'x' is one that is not ready.
std::vector<WorkerView> Line(const std::string& text) {
  std::vector<WorkerView> line;
  for (char c : text) line.push_back({c != 'x', c == 'x' ? 0 : c - '0', kRoomy});
  return line;
}

ChainRequest Prompt(int64_t tokens) {
  return {.tokens = tokens, .parts = {}, .expected_s = static_cast<double>(tokens)};
}

TEST(PlanChain, GivesShortPromptsToOneWorkerAndLongOnesToMany) {
  const std::vector<WorkerView> line = Line("0000");
  EXPECT_THAT(PlanChain(Prompt(1), PartitionTable(), line)->parts, ElementsAre(1));
  EXPECT_THAT(PlanChain(Prompt(2 * kTokensPerWorker - 1), PartitionTable(), line)->parts,
              ElementsAre(2 * kTokensPerWorker - 1));
  EXPECT_THAT(PlanChain(Prompt(2 * kTokensPerWorker), PartitionTable(), line)->parts,
              ElementsAre(kTokensPerWorker, kTokensPerWorker));
  EXPECT_THAT(PlanChain(Prompt(100001), PartitionTable(), line)->parts, ElementsAre(25001, 25000, 25000, 25000));
}

TEST(PlanChain, TakesNoMoreThanAFewWorkersWhereNothingIsKnownOfTimes) {
  const std::vector<WorkerView> line = Line(std::string(1024, '0'));
  for (const Schedule schedule : {Schedule::kKvr, Schedule::kKvrEven}) {
    EXPECT_EQ(PlanChain({.tokens = 16384, .schedule = schedule, .parts = {}}, PartitionTable(), line)->parts.size(),
              static_cast<size_t>(kMostUntimedWorkers));
  }
}

TEST(PlanChain, TakesTheLeastLoadedSegmentAndThenTheFirst) {
  EXPECT_EQ(PlanChain(Prompt(kTokensPerWorker), PartitionTable(), Line("1101"))->first, 2u);
  EXPECT_EQ(PlanChain(Prompt(2 * kTokensPerWorker), PartitionTable(), Line("1100"))->first, 2u);
  EXPECT_EQ(PlanChain(Prompt(2 * kTokensPerWorker), PartitionTable(), Line("0000"))->first, 0u);
}

TEST(PlanChain, NeverCrossesAWorkerThatIsDeadOrFull) {
  const ChainPlan split = PlanChain(Prompt(2048), PartitionTable(), Line("00x000")).value();
  EXPECT_EQ(split.first, 3u);
  EXPECT_EQ(split.parts.size(), 3u);
  const ChainPlan full = PlanChain(Prompt(2048), PartitionTable(), Line("02000")).value();
  EXPECT_EQ(full.first, 2u);
  EXPECT_EQ(full.parts.size(), 3u);
}

TEST(PlanChain, NeverCrossesABrokenEdge) {
  std::vector<WorkerView> line = Line("00000");
  line[1].linked_to_next = line[4].linked_to_next = false;  // the last one has no next
  for (const Schedule schedule : {Schedule::kKvr, Schedule::kKvrEven, Schedule::kTsp}) {
    const ChainPlan plan =
        PlanChain({.tokens = 2048, .schedule = schedule, .parts = {}}, PartitionTable(), line).value();
    EXPECT_EQ(plan.first, 2u);
    EXPECT_EQ(plan.parts.size(), 3u);
    const ChainRequest wide = {.tokens = 2048, .schedule = schedule, .width = 4, .parts = {}};
    const absl::Status status = PlanChain(wide, PartitionTable(), line).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("no 4 prefill workers"));
  }
  line = Line("00");
  line[0].linked_to_next = false;
  EXPECT_EQ(PlanChain(Prompt(8000), *PartitionTable::Create({{1, 1000, {1}, 1.0}, {2, 1000, {0.5, 0.5}, 0.6}}), line)
                ->parts.size(),
            1u);
}

TEST(PlanChain, WaitsOnlyWhenAllAreBusy) {
  EXPECT_EQ(PlanChain(Prompt(2048), PartitionTable(), Line("2212"))->first, 2u);
  EXPECT_EQ(PlanChain(Prompt(2048), PartitionTable(), Line("22x2")).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(PlanChain(Prompt(5), PartitionTable(), Line("xx")).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(PlanChain(Prompt(5), PartitionTable(), Line("")).status().code(), absl::StatusCode::kUnavailable);
}

PartitionTable Timed() {
  return *PartitionTable::Create(
      {{1, 1000, {1}, 1.0}, {1, 8000, {1}, 16.0}, {2, 1000, {0.6, 0.4}, 1.1}, {2, 8000, {0.7, 0.3}, 8.0}});
}

TEST(PlanChain, WhereTimesAreKnownTheyChooseTheWidth) {
  EXPECT_THAT(PlanChain(Prompt(1000), Timed(), Line("000"))->parts, ElementsAre(1000));
  const ChainPlan wide = PlanChain(Prompt(8000), Timed(), Line("000")).value();
  EXPECT_THAT(wide.parts, ElementsAre(5600, 2400));
  EXPECT_EQ(wide.source, PartitionSource::kSearched);
  // What was asked for, and other schedules, are no matter of times.
  ChainRequest asked = Prompt(1000);
  asked.width = 2;
  EXPECT_EQ(PlanChain(asked, Timed(), Line("000"))->parts.size(), 2u);
  asked = Prompt(9000);
  asked.schedule = Schedule::kKvrEven;
  EXPECT_EQ(PlanChain(asked, Timed(), Line("000"))->parts.size(), 3u);
}

TEST(PlanChain, TimesWaitForThePlaceThatIsWorthIt) {
  std::vector<WorkerView> line = Line("02");
  line[1].backlog_s = line[1].place_s = 0.5;
  EXPECT_EQ(PlanChain(Prompt(8000), Timed(), line).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(PlanChain(Prompt(1000), Timed(), line)->first, 0u);
  line[1].backlog_s = line[1].place_s = 20;
  EXPECT_EQ(PlanChain(Prompt(8000), Timed(), line)->parts.size(), 1u);
  EXPECT_EQ(PlanChain(Prompt(8000), Timed(), Line("0x"))->parts.size(), 1u);
  EXPECT_EQ(PlanChain(Prompt(8000), Timed(), Line("xx")).status().code(), absl::StatusCode::kUnavailable);
  // Memory for the last part is memory for the whole prompt.
  line = Line("00");
  line[1].max_prefix_tokens = 7000;
  EXPECT_EQ(PlanChain(Prompt(8000), Timed(), line)->parts.size(), 1u);
  line[0].max_prefix_tokens = 7000;
  EXPECT_EQ(PlanChain(Prompt(8000), Timed(), line).status().code(), absl::StatusCode::kOutOfRange);
}

TEST(PlanChain, AShortPromptGoesBetweenLayersRatherThanBehindALongOne) {
  std::vector<WorkerView> line = Line("12");
  line[0].interleave = line[1].interleave = Allowance::Of(4000);
  // 200 tokens would have a chain of two, if it had a place; 1,000 are the whole budget.
  for (const int64_t tokens : {200, 1000}) {
    const ChainPlan plan = PlanChain(Prompt(tokens), PartitionTable(), line).value();
    EXPECT_TRUE(plan.overtakes);
    EXPECT_THAT(plan.parts, ElementsAre(tokens));
    EXPECT_EQ(plan.first, 0u);
    EXPECT_EQ(plan.source, std::nullopt);
  }
  EXPECT_FALSE(PlanChain(Prompt(1001), PartitionTable(), line)->overtakes);
  // With all places taken too; but not for one that asks for more workers, nor without memory for it.
  line = Line("22");
  line[1].interleave = Allowance::Of(4000);
  EXPECT_EQ(PlanChain(Prompt(200), PartitionTable(), line)->first, 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(PlanChain(Prompt(1001), PartitionTable(), line).status()));
  for (const Schedule schedule : {Schedule::kKvr, Schedule::kTsp}) {
    const ChainRequest wide = {.tokens = 200, .schedule = schedule, .width = 2, .parts = {}, .expected_s = 200};
    EXPECT_TRUE(absl::IsResourceExhausted(PlanChain(wide, PartitionTable(), line).status()));
  }
  line[1].max_prefix_tokens = 199;
  line[1].unfinished_jobs = 1;
  EXPECT_FALSE(PlanChain(Prompt(200), PartitionTable(), line).ok());
  // An idle worker is better than any.
  line = Line("10");
  line[0].interleave = Allowance::Of(4000);
  EXPECT_EQ(PlanChain(Prompt(200), PartitionTable(), line)->first, 1u);
  EXPECT_FALSE(PlanChain(Prompt(200), PartitionTable(), line)->overtakes);
}

TEST(PlanChain, WhereItIsNotBorneBetweenLayersAPromptGoesBeforeWhatStandsBehind) {
  std::vector<WorkerView> line = Line("22");
  line[0].interleave = Allowance::Of(400);
  line[0].overtake = Allowance::Of(4000);
  const ChainPlan behind = PlanChain(Prompt(1000), PartitionTable(), line).value();
  EXPECT_TRUE(behind.overtakes);
  EXPECT_EQ(behind.first, 0u);
  line[1].interleave = line[1].overtake = Allowance::Of(4000);
  line[1].unfinished_jobs = 3;
  EXPECT_EQ(PlanOvertaking(Prompt(1000), line)->first, 1u) << "rather now";
  EXPECT_TRUE(absl::IsResourceExhausted(PlanChain(Prompt(1001), PartitionTable(), line).status()));
  // A free place is as good: nothing is overtaken that need not be.
  line = Line("21");
  line[0].overtake = Allowance::Of(4000);
  EXPECT_EQ(PlanChain(Prompt(1000), PartitionTable(), line)->first, 1u);
  EXPECT_FALSE(PlanChain(Prompt(1000), PartitionTable(), line)->overtakes);
}

TEST(PlanChain, WhatIsNotKnownOvertakesNobody) {
  std::vector<WorkerView> line = Line("2");
  line[0].interleave = line[0].overtake = Allowance::Of(4000);
  ChainRequest unknown = Prompt(10);
  unknown.expected_s = 0;
  EXPECT_FALSE(PlanOvertaking(unknown, line).has_value());
}

TEST(PlanChain, AShortPromptThatWouldWaitGoesWithOthersThatDo) {
  std::vector<WorkerView> line = Line("222");
  line[0].room = 9;
  for (int worker : {1, 2}) line[worker].room = 100;
  line[1].backlog_s = 2;
  line[2].backlog_s = 1;
  for (const PartitionTable& table : {PartitionTable(), Timed()}) {
    const ChainPlan plan = PlanChain(Prompt(100), table, line).value();
    EXPECT_EQ(plan.first, 2u);
    EXPECT_THAT(plan.parts, ElementsAre(100));
    EXPECT_FALSE(plan.overtakes);
    EXPECT_TRUE(absl::IsResourceExhausted(PlanChain(Prompt(101), table, line).status()));
  }
  const ChainRequest wide = {.tokens = 100, .width = 2, .parts = {}};
  EXPECT_TRUE(absl::IsResourceExhausted(PlanChain(wide, PartitionTable(), line).status()));
  line[2].max_prefix_tokens = 99;
  EXPECT_EQ(PlanChain(Prompt(100), PartitionTable(), line)->first, 1u);
  // A place of its own is better, and so is one between layers.
  line[0].unfinished_jobs = 1;
  EXPECT_EQ(PlanChain(Prompt(100), PartitionTable(), line)->first, 0u);
  line[0].unfinished_jobs = 2;
  line[0].interleave = Allowance::Of(400);
  EXPECT_TRUE(PlanChain(Prompt(100), PartitionTable(), line)->overtakes);
}

TEST(PlanChain, TimesSayWhetherBetweenLayersIsBetter) {
  std::vector<WorkerView> line = Line("11");
  for (WorkerView& worker : line) {
    worker.interleave = Allowance::Of(8000);
    worker.backlog_s = 8;
    worker.layer_s = 0.25;
  }
  EXPECT_TRUE(PlanChain(Prompt(1000), Timed(), line)->overtakes);
  line[1].backlog_s = 0.5;  // about to end
  const ChainPlan behind = PlanChain(Prompt(1000), Timed(), line).value();
  EXPECT_FALSE(behind.overtakes);
  EXPECT_EQ(behind.first, 1u);
}

TEST(PlanChain, AsksTheTableAndSaysSo) {
  const PartitionTable table = PartitionTable::Create({{2, 1000, {0.7, 0.3}}, {3, 1000, {0.5, 0.3, 0.2}}}).value();
  const ChainPlan searched = PlanChain(Prompt(1000), table, Line("000")).value();
  EXPECT_THAT(searched.parts, ElementsAre(500, 300, 200));
  EXPECT_EQ(searched.source, PartitionSource::kSearched);
  ChainRequest even = Prompt(1000);
  even.schedule = Schedule::kKvrEven;
  const ChainPlan not_asked = PlanChain(even, table, Line("000")).value();
  EXPECT_THAT(not_asked.parts, ElementsAre(334, 333, 333));
  EXPECT_EQ(not_asked.source, std::nullopt);
}

TEST(PlanChain, TakesWhatAnExperimentAsksForOrWaitsForIt) {
  ChainRequest request = Prompt(10);
  request.width = 3;
  EXPECT_THAT(PlanChain(request, PartitionTable(), Line("0000"))->parts, ElementsAre(4, 3, 3));
  EXPECT_EQ(PlanChain(request, PartitionTable(), Line("0020")).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(PlanChain(request, PartitionTable(), Line("00x0")).status().message(), HasSubstr("no 3 prefill workers"));
  request = {.tokens = 1024, .parts = {1, 1022, 1}};
  const ChainPlan plan = PlanChain(request, PartitionTable(), Line("1000")).value();
  EXPECT_THAT(plan.parts, ElementsAre(1, 1022, 1));
  EXPECT_EQ(plan.first, 1u);
  request = {.tokens = 4096, .schedule = Schedule::kSingle, .parts = {}};
  EXPECT_THAT(PlanChain(request, PartitionTable(), Line("0000"))->parts, ElementsAre(4096));
}

TEST(PlanChain, RefusesAPromptThatNoTailCanHold) {
  std::vector<WorkerView> line = Line("00");
  line[0].max_prefix_tokens = 1000;
  line[1].max_prefix_tokens = 3000;
  EXPECT_THAT(PlanChain(Prompt(2000), PartitionTable(), line)->parts, ElementsAre(1000, 1000));
  EXPECT_EQ(PlanChain(Prompt(2001), PartitionTable(), line)->first, 1u);  // half of it is too long for the first one
  const absl::Status status = PlanChain(Prompt(3001), PartitionTable(), line).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("3001 tokens"));
  EXPECT_THAT(status.message(), HasSubstr("at most 3000"));
}

TEST(PlanChain, WhatAWorkerThatIsAwayCouldHoldIsWorthTryingAgain) {
  std::vector<WorkerView> line = Line("0x0");
  line[0].max_prefix_tokens = line[2].max_prefix_tokens = 1000;
  for (const int64_t last_known : {int64_t{4000}, kNeverReached}) {
    line[1].max_prefix_tokens = last_known;
    const absl::Status status = PlanChain(Prompt(3000), PartitionTable(), line).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("3000 tokens is ready"));
  }
  line[1].max_prefix_tokens = 2000;
  const absl::Status status = PlanChain(Prompt(3000), PartitionTable(), line).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("at most 2000"));
}

TEST(PlanChain, TspTakesTheWholeLineEvenlyAndNeedsRoomForThePromptEverywhere) {
  std::vector<WorkerView> line = Line("000");
  for (const Schedule schedule : {Schedule::kTsp, Schedule::kTspCausal}) {
    ChainRequest request = {.tokens = 2000, .schedule = schedule, .parts = {}};
    const ChainPlan plan = PlanChain(request, Timed(), line).value();
    EXPECT_THAT(plan.parts, ElementsAre(667, 667, 666));
    EXPECT_EQ(plan.schedule, schedule);
    EXPECT_EQ(plan.source, std::nullopt);
    request.tokens = 2;
    EXPECT_THAT(PlanChain(request, Timed(), line)->parts, ElementsAre(1, 1));
    request = {.tokens = 10, .schedule = schedule, .parts = {7, 3}};
    EXPECT_THAT(PlanChain(request, Timed(), line)->parts, ElementsAre(7, 3));
  }
  // A chain's head holds its own part only.
  line = Line("00");
  line[0].max_prefix_tokens = 1500;
  ChainRequest request = {.tokens = 2000, .schedule = Schedule::kTsp, .width = 2, .parts = {}};
  EXPECT_EQ(PlanChain(request, PartitionTable(), line).status().code(), absl::StatusCode::kOutOfRange);
  request.schedule = Schedule::kKvrEven;
  EXPECT_TRUE(PlanChain(request, PartitionTable(), line).ok());
}

TEST(CheckChainRequest, NamesFieldAndNumberOfTokens) {
  const auto message = [](ChainRequest request) { return std::string(CheckChainRequest(request, 4).message()); };
  EXPECT_EQ(message({.tokens = 9, .parts = {4, 3}}), "experiment.parts: 4,3 add up to 7; the prompt has 9 tokens");
  EXPECT_EQ(message({.tokens = 9, .parts = {9, 0}}), "experiment.parts: 0 is not at least 1; the prompt has 9 tokens");
  EXPECT_THAT(message({.tokens = 9, .width = 3, .parts = {4, 5}}), HasSubstr("experiment.width: 3, but"));
  EXPECT_THAT(message({.tokens = 2, .width = 3, .parts = {}}), HasSubstr("the prompt has 2 tokens"));
  EXPECT_THAT(message({.tokens = 9, .width = 5, .parts = {}}), HasSubstr("more than the 4 prefill workers"));
  EXPECT_THAT(message({.tokens = 9, .schedule = Schedule::kSingle, .width = 2, .parts = {}}),
              HasSubstr("schedule single takes one worker"));
  EXPECT_EQ(message({.tokens = 9, .width = 4, .parts = {}}), "");
}

}  // namespace
}  // namespace runahead
