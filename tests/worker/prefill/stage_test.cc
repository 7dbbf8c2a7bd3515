#include "worker/prefill/stage.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/algorithm/container.h"
#include "tests/testing/exactness.h"
#include "tests/testing/letter_tokenizer.h"
#include "tests/worker/prefill/given_prefix.h"
#include "tests/worker/prefill/stage_fixture.h"

namespace runahead {
namespace {

TEST_F(StageTest, AnyPartitionGivesTheLogitsAndKvOfTheReference) {
  const std::vector<std::vector<int64_t>> partitions = {
      {0, 1, 2},
      {0, 1, 300},
      {0, 299, 300},
      {0, 150, 300},
      {0, 1, 299, 300},
      {0, 100, 200, 300},
      {0, 130, 131, 300},
      {0, 75, 150, 225, 300},
      {0, 1, 2, 3, 300},
      {0, 297, 298, 299, 300},
      {0, 1, 2, 3, 4},
      {0, 300},
      {0, 1},
  };
  const std::vector<int32_t> ids = RandomIds(300, 320, 11);
  const ExpectedRun reference = Reference(ids);
  for (const std::vector<int64_t>& bounds : partitions) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    TestChain chain(loaded_, static_cast<int>(bounds.size()) - 1, bounds.back());
    ExpectRun(RunOn(chain, 1, bounds, {ids.begin(), ids.begin() + bounds.back()}), reference.First(bounds.back()));
    EXPECT_EQ(chain.live_edge_jobs(), 0u);
  }
}

TEST_F(StageTest, LongPromptsOnAbsurdPartitions) {
  const std::vector<int32_t> ids = RandomIds(3000, 320, 12);
  const ExpectedRun plain = PlainRun(loaded_, ids);
  for (const std::vector<int64_t>& bounds :
       std::vector<std::vector<int64_t>>{{0, 1, 3000}, {0, 2999, 3000}, {0, 1700, 3000}, {0, 1, 1500, 2999, 3000}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    TestChain chain(loaded_, static_cast<int>(bounds.size()) - 1, 3000);
    ExpectRun(RunOn(chain, 1, bounds, ids), plain);
  }
}

TEST_F(StageTest, ARingOfThreeBuffersGivesTheSame) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 13);
  TestChain chain(loaded_, 3, 200, kMinLayerSlots);
  ExpectRun(RunOn(chain, 1, {0, 90, 150, 200}, ids), Reference(ids));
}

TEST_F(StageTest, OneTokenPrompt) {
  TestChain chain(loaded_, 1, 1);
  ExpectRun(RunOn(chain, 1, {0, 1}, {17}), Reference({17}));
}

TEST_F(StageTest, PenaltiesCountForTheFirstTokenToo) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 16);
  std::vector<double> logits = Reference(ids).logits.back();
  const int32_t likeliest = TopOf(logits).id;
  ASSERT_TRUE(absl::c_linear_search(ids, likeliest)) << "take another seed";
  SamplingOptions sampling;
  sampling.repetition_penalty = 2;
  for (const int32_t id : std::set<int32_t>(ids.begin(), ids.end())) logits[id] *= logits[id] > 0 ? 0.5 : 2;
  TestChain chain(loaded_, 2, 300);
  chain.Start(1, 0, {0, 150, 300}, ids, sampling);
  const int32_t token = chain.member(1).news.AwaitFirstToken(1).id;
  ASSERT_GE(TopOf(logits).margin, 1e-3) << "take another seed";
  EXPECT_EQ(token, TopOf(logits).id);
  EXPECT_NE(token, likeliest);
}

TEST_F(StageTest, BiasAndRulesHoldForTheFirstToken) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 18);
  std::vector<double> logits = Reference(ids).logits.back();
  const int32_t likeliest = TopOf(logits).id;
  logits[likeliest] = -1e9;
  const int32_t second = TopOf(logits).id;
  logits[second] = -1e9;
  const int32_t third = TopOf(logits).id, biased = (likeliest + 1) % 320;
  TestChain chain(loaded_, 1, 60);
  JobId id = 0;
  const auto first_token = [&](const SamplingOptions& sampling, const DrawRules& rules) {
    PrefillJob job = chain.JobOf(++id, 0, 0, {0, 60}, ids, sampling, true, absl::InfiniteFuture());
    job.rules = rules;
    chain.member(0).stage->Start(job);
    return chain.member(0).news.AwaitFirstToken(id).id;
  };
  EXPECT_EQ(first_token({}, {}), likeliest);
  EXPECT_EQ(first_token({}, {.min_tokens = 1, .end_ids = {likeliest}}), second);
  EXPECT_EQ(first_token({}, {.bad_ids = {{likeliest}, {second}, {third, third}}}), third);
  SamplingOptions sampling;
  sampling.logit_bias = {{biased, 100}};
  EXPECT_EQ(first_token(sampling, {}), biased);
  EXPECT_NE(first_token(sampling, {.bad_ids = {{biased}}}), biased);
}

TEST_F(StageTest, TheFirstTokenHasTheForm) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  const std::vector<int32_t> ids = RandomIds(40, 320, 18);
  LoadedModel loaded = loaded_;
  loaded.grammars = std::make_shared<GrammarSource>([] { return testing::MakeLetterTokenizer(); }, 320);
  TestChain chain(loaded, 1, 60);
  const auto start = [&](JobId id, const StructureSpec& structure) {
    PrefillJob job = chain.JobOf(id, 0, 0, {0, 40}, ids, {}, true, absl::InfiniteFuture());
    job.rules.structure = structure;
    chain.member(0).stage->Start(job);
  };
  start(1, {.kind = StructureKind::kChoice, .choices = {"q", "quit"}});
  EXPECT_EQ(chain.member(0).news.AwaitFirstToken(1).id, 'q' - 'a');
  start(2, {.kind = StructureKind::kRegex, .text = "(a"});
  const absl::Status refused = chain.member(0).news.AwaitDone(2);
  EXPECT_EQ(refused.code(), absl::StatusCode::kOutOfRange) << refused;
  start(3, {.kind = StructureKind::kChoice, .choices = {"z"}});
  EXPECT_EQ(chain.member(0).news.AwaitFirstToken(3).id, 'z' - 'a') << "others go on";
}

TEST_F(StageTest, RulesThatLeaveNoTokenEndTheJobAndSayWhy) {
  const std::vector<int32_t> ids = RandomIds(20, 320, 19);
  TestChain chain(loaded_, 1, 60);
  PrefillJob job = chain.JobOf(1, 0, 0, {0, 20}, ids, {}, true, absl::InfiniteFuture());
  for (int32_t bad = 0; bad < 320; ++bad) job.rules.bad_ids.push_back({bad});
  chain.member(0).stage->Start(job);
  const absl::Status done = chain.member(0).news.AwaitDone(1);
  EXPECT_EQ(done.code(), absl::StatusCode::kOutOfRange);
  EXPECT_NE(done.message().find("no token may follow at position 20"), std::string::npos) << done;
}

TEST_F(StageTest, APrefixFromElsewhereGivesTheSame) {
  const std::vector<int32_t> ids = RandomIds(160, 320, 14);
  const ExpectedRun reference = Reference(ids);
  TestChain chain(loaded_, 2, 160);
  const std::vector<int64_t> bounds = {50, 110, 160};
  auto head = chain.JobOf(1, 0, 0, bounds, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture());
  head.prefix = std::make_shared<GivenPrefix>(reference, loaded_.model->kv_row_bytes());
  chain.member(0).stage->Start(head);
  chain.member(1).stage->Start(chain.JobOf(1, 0, 1, bounds, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture()));
  ExpectRun(AwaitWhole(loaded_, chain, 1, 0, bounds), reference);
}

TEST_F(StageTest, FirstTokenDoesNotWaitForHandOff) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 15);
  TestChain chain(loaded_, 2, 60);
  chain.handoff().Block();
  chain.Start(1, 0, {0, 40, 60}, ids);
  chain.member(1).news.AwaitFirstToken(1);
  EXPECT_FALSE(chain.member(0).news.done(1));
  EXPECT_FALSE(chain.member(1).news.done(1));
  chain.handoff().Unblock();
  EXPECT_TRUE(chain.member(0).news.AwaitDone(1).ok());
  EXPECT_TRUE(chain.member(1).news.AwaitDone(1).ok());
}

TEST_F(StageTest, ReceiveOverlapsQkvAndSendOverlapsAttention) {
  const std::vector<int32_t> ids = RandomIds(60, 320, 16);
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, ids);
  // Nothing crosses the network yet. The head goes on: attention of layer 0 ends though its send has not.
  chain.member(0).trace.Await(1, 0, TracePoint::kLayerEnd);
  EXPECT_TRUE(chain.member(0).trace.Has(1, 0, TracePoint::kSendPosted));
  EXPECT_FALSE(chain.member(0).trace.Has(1, 0, TracePoint::kSent));
  // The tail's QKV of layer 0 ends though what it receives is not there; attention has not begun.
  const size_t posted = chain.member(1).trace.Await(1, 0, TracePoint::kReceivePosted);
  const size_t projected = chain.member(1).trace.Await(1, 0, TracePoint::kQkvEnd);
  EXPECT_LT(posted, projected);
  EXPECT_FALSE(chain.member(1).trace.Has(1, 0, TracePoint::kReceived));
  EXPECT_FALSE(chain.member(1).trace.Has(1, 0, TracePoint::kAttentionBegin));
  EXPECT_TRUE(chain.DeliverUntilDone(1, {0, 1}));
  EXPECT_TRUE(chain.member(1).news.AwaitDone(1).ok());
  EXPECT_TRUE(chain.member(1).trace.Has(1, 0, TracePoint::kReceived));
  EXPECT_TRUE(chain.member(1).trace.Has(1, 0, TracePoint::kAttentionBegin));
}

TEST_F(StageTest, OnlyThoseBehindTheHeadWait) {
  TestChain chain(loaded_, 2, 60, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 40, 60}, RandomIds(60, 320, 22));
  chain.member(1).trace.Await(1, 0, TracePoint::kHandedOff);  // its own KV is there
  EXPECT_TRUE(chain.DeliverUntilDone(1, {0, 1}));
  EXPECT_EQ(chain.member(0).news.times(1).wait_s, 0);
  EXPECT_GT(chain.member(1).news.times(1).wait_s, 0);
}

TEST_F(StageTest, OverlappingSegmentsRunBesideEachOther) {
  TestChain chain(loaded_, 4, 120);
  struct Segment {
    JobId job;
    int first;
    std::vector<int64_t> bounds;
  };
  std::vector<Segment> segments;
  for (JobId job = 1; job <= 12; ++job) {
    const int first = static_cast<int>(job % 3);
    const int parts = 1 + static_cast<int>(job % 2);
    std::vector<int64_t> bounds = {0};
    for (int part = 1; part <= parts; ++part) bounds.push_back(120 * part / parts);
    segments.push_back({job, first, bounds});
    chain.Start(job, first, bounds, RandomIds(120, 320, job), EveryLogprob(loaded_));
  }
  for (const Segment& segment : segments) {
    SCOPED_TRACE(segment.job);
    const WholeRun actual = AwaitWhole(loaded_, chain, segment.job, segment.first, segment.bounds);
    ExpectRun(actual, Reference(RandomIds(120, 320, segment.job)));
  }
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
}

TEST_F(StageTest, RefusesWhatCannotBe) {
  TestChain chain(loaded_, 2, 30, kMinLayerSlots);
  const std::vector<int32_t> ids = RandomIds(400, 320, 21);
  const auto refused = [&](PrefillJob job) {
    const JobId id = job.id;
    chain.member(0).stage->Start(std::move(job));
    return chain.member(0).news.AwaitDone(id).code();
  };
  const auto job = [&](JobId id, const std::vector<int64_t>& bounds) {
    return chain.JobOf(id, 0, 0, bounds, ids, {}, false, absl::InfiniteFuture());
  };
  PrefillJob no_tokens = job(1, {0, 10});
  no_tokens.bounds = {0, 0};
  EXPECT_EQ(refused(no_tokens), absl::StatusCode::kInvalidArgument);
  PrefillJob bad_id = job(2, {0, 10});
  bad_id.ids[3] = 320;
  EXPECT_EQ(refused(bad_id), absl::StatusCode::kInvalidArgument);
  PrefillJob few_ids = job(3, {0, 10});
  few_ids.ids.pop_back();
  EXPECT_EQ(refused(few_ids), absl::StatusCode::kInvalidArgument);
  PrefillJob no_part = job(4, {0, 10});
  no_part.part = 1;
  EXPECT_EQ(refused(no_part), absl::StatusCode::kInvalidArgument);
  PrefillJob lonely = job(5, {0, 10, 20});
  lonely.successor = nullptr;
  EXPECT_EQ(refused(lonely), absl::StatusCode::kInvalidArgument);
  PrefillJob waits = job(7, {0, 10, 20});
  waits.interleave = true;
  EXPECT_EQ(refused(waits), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused(job(6, {0, 31})), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(chain.member(0).stage->max_prefix_tokens(), 30);
}

}  // namespace
}  // namespace runahead
