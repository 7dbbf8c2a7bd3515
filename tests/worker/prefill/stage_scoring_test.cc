// Log probabilities of a prompt's tokens, each part by its own worker, against the scalar reference in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/testing/exactness.h"
#include "tests/worker/prefill/stage_fixture.h"
#include "worker/model/prompt_scorer.h"

namespace runahead {
namespace {

class StageScoringTest : public StageTest {
 protected:
  static void Start(TestChain& chain, JobId job, const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids,
                    int32_t alternatives, Schedule schedule = Schedule::kKvr, bool interleave = false) {
    for (int part = 0; part + 1 < static_cast<int>(bounds.size()); ++part) {
      PrefillJob own = chain.JobOf(job, 0, part, bounds, ids, {}, true, absl::InfiniteFuture(), schedule);
      own.prompt_logprobs = alternatives;
      own.interleave = interleave;
      if (!own.tail()) own.next_id = ids[own.end()];
      chain.member(part).stage->Start(std::move(own));
    }
  }

  // Of all tokens but the first, put together from the parts.
  static std::vector<TokenLogprobPairs> Await(TestChain& chain, JobId job, size_t parts) {
    std::vector<TokenLogprobPairs> scores;
    for (size_t part = 0; part < parts; ++part) {
      EXPECT_EQ(chain.member(static_cast<int>(part)).news.AwaitDone(job), absl::OkStatus());
      const auto own = chain.member(static_cast<int>(part)).news.scores(job);
      scores.insert(scores.end(), own.begin(), own.end());
    }
    return scores;
  }

  // logits[i] are those behind token i.
  static void ExpectScores(const std::vector<TokenLogprobPairs>& scores, const std::vector<int32_t>& ids,
                           const std::vector<std::vector<double>>& logits, size_t alternatives) {
    ASSERT_EQ(scores.size() + 1, ids.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      SCOPED_TRACE(i);
      ASSERT_EQ(scores[i][0].id, ids[i + 1]);
      double sum = 0, largest = 0;
      for (const double logit : logits[i]) {
        sum += std::exp(logit);
        largest = std::max(largest, std::abs(logit));
      }
      ASSERT_GE(scores[i].size(), alternatives);
      ASSERT_LE(scores[i].size(), alternatives + 1);
      for (size_t k = 0; k < scores[i].size(); ++k) {
        const TokenLogprobPair& pair = scores[i][k];
        EXPECT_NEAR(pair.logprob, logits[i][pair.id] - std::log(sum), RowTolerance(largest));
        EXPECT_EQ(pair.id == ids[i + 1], k == 0);
        EXPECT_TRUE(k < 2 || pair.logprob <= scores[i][k - 1].logprob);
      }
    }
  }
};

TEST_F(StageScoringTest, AnyPartitionGivesTheScoresOfTheReference) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 31);
  const ExpectedRun reference = Reference(ids);
  ASSERT_GT(300, 2 * PromptScorer::kRows) << "a part is to be of several chunks";
  for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{
           {0, 300}, {0, 1, 300}, {0, 299, 300}, {0, 150, 300}, {0, 64, 129, 300}, {0, 130, 131, 300}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const size_t parts = bounds.size() - 1;
    TestChain chain(loaded_, static_cast<int>(parts), 300);
    Start(chain, 1, bounds, ids, 5);
    ExpectScores(Await(chain, 1, parts), ids, reference.logits, 5);
    EXPECT_EQ(chain.live_edge_jobs(), 0u);
    EXPECT_EQ(chain.member(static_cast<int>(parts) - 1).news.AwaitFirstToken(1).id, TopOf(reference.logits.back()).id);
  }
}

TEST_F(StageScoringTest, WhatIsHandedOffAndDrawnIsAsWithoutScores) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 32);
  TestChain chain(loaded_, 2, 200);
  for (int part = 0; part < 2; ++part) {
    PrefillJob own = chain.JobOf(1, 0, part, {0, 120, 200}, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture());
    own.prompt_logprobs = 0;
    if (part == 0) own.next_id = ids[120];
    chain.member(part).stage->Start(std::move(own));
  }
  ExpectRun(AwaitWhole(loaded_, chain, 1, 0, {0, 120, 200}), Reference(ids));
}

TEST_F(StageScoringTest, TspSchedulesScoreToo) {
  const std::vector<int32_t> ids = RandomIds(120, 320, 33);
  const ExpectedRun reference = Reference(ids);
  for (const Schedule schedule : {Schedule::kTsp, Schedule::kTspCausal}) {
    TestChain chain(loaded_, 3, 120);
    Start(chain, 1, {0, 50, 90, 120}, ids, 2, schedule);
    ExpectScores(Await(chain, 1, 3), ids, reference.logits, 2);
  }
}

TEST_F(StageScoringTest, APromptOfOneTokenHasNone) {
  TestChain chain(loaded_, 1, 1);
  Start(chain, 1, {0, 1}, {17}, 3);
  EXPECT_TRUE(Await(chain, 1, 1).empty());
  EXPECT_EQ(chain.member(0).news.AwaitFirstToken(1).id, TopOf(Reference({17}).logits.back()).id);
}

// Three prompts that would share a pass, one of which is scored; and one that is interleaved while it is.
TEST_F(StageScoringTest, OneThatIsScoredGoesAloneAndOthersGoOnBesideIt) {
  const std::vector<int32_t> ids = RandomIds(40, 320, 34), long_ids = RandomIds(300, 320, 35);
  TestChain chain(loaded_, 1, 300);
  chain.Start(1, 0, {0, 300}, long_ids);
  chain.Start(2, 0, {0, 40}, ids);
  Start(chain, 3, {0, 40}, ids, 1);
  chain.Start(4, 0, {0, 40}, ids);
  Start(chain, 5, {0, 40}, ids, 1, Schedule::kKvr, /*interleave=*/true);
  const ExpectedRun reference = Reference(ids);
  for (const JobId job : {3, 5}) ExpectScores(Await(chain, job, 1), ids, reference.logits, 1);
  for (const JobId job : {1, 2, 4}) {
    EXPECT_EQ(chain.member(0).news.AwaitDone(job), absl::OkStatus());
    EXPECT_TRUE(chain.member(0).news.scores(job).empty());
  }
}

// The observer's call holds the stage's thread: the cancel comes while chunks are left.
class CancellingBoard : public NewsBoard {
 public:
  void OnPromptScores(const PrefillJob& job, int64_t index, const std::vector<TokenLogprobPairs>& scores) override {
    NewsBoard::OnPromptScores(job, index, scores);
    stage->Cancel(job.id, absl::CancelledError("gone"));
  }
  PrefillStage* stage = nullptr;
};

TEST_F(StageScoringTest, AJobThatIsCancelledInTheMiddleSaysNoMore) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 36);
  CancellingBoard board;
  KeepingHandoff handoff;
  PrefillStageOptions options;
  options.memory_bytes = static_cast<size_t>(2 * 4 * layers() * 300 * loaded_.model->kv_row_bytes());
  auto stage = *PrefillStage::Create(options, *loaded_.device, loaded_.model, handoff, board);
  board.stage = stage.get();
  PrefillJob job;
  job.id = 1;
  job.bounds = {0, 300};
  job.ids = ids;
  job.prompt_logprobs = 0;
  stage->Start(job);
  EXPECT_EQ(board.AwaitDone(1), absl::CancelledError("gone"));
  EXPECT_EQ(static_cast<int64_t>(board.scores(1).size()), PromptScorer::kRows);
  // The next one is scored from its begin.
  job.id = 2;
  board.stage = stage.get();
  stage->Start(job);
  EXPECT_EQ(board.AwaitDone(2), absl::CancelledError("gone"));
  const auto scores = board.scores(2);
  ASSERT_EQ(static_cast<int64_t>(scores.size()), PromptScorer::kRows);
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i][0].id, ids[i + 1]);
}

TEST_F(StageScoringTest, RefusesNumbersThatMakeNoSense) {
  const std::vector<int32_t> ids = RandomIds(40, 320, 37);
  TestChain chain(loaded_, 2, 40);
  PrefillJob job = chain.JobOf(1, 0, 0, {0, 40}, ids, {}, false, absl::InfiniteFuture());
  job.prompt_logprobs = kMostLogprobs + 1;
  EXPECT_EQ(CheckJob(job, 100, 320).message(), "job 1: prompt_logprobs: 21 is not in [0, 20]");
  job = chain.JobOf(2, 0, 0, {0, 30, 40}, ids, {}, false, absl::InfiniteFuture());
  job.prompt_logprobs = 0;
  job.next_id = 320;
  EXPECT_EQ(CheckJob(job, 100, 320).message(), "job 2: next_id: token 320 is not in [0, 320)");
  job.next_id = 319;
  EXPECT_TRUE(CheckJob(job, 100, 320).ok());
}

}  // namespace
}  // namespace runahead
