// Layers that see a window only: a chain forwards and hands off what somebody sees, and gives what it gives with all
// KV everywhere. Layer buffers are full of NaN before the first job, so that who reads what did not come is seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/exactness.h"
#include "tests/testing/small_model.h"
#include "tests/testing/windowed_model.h"
#include "tests/worker/prefill/given_prefix.h"

namespace runahead {
namespace {

constexpr int64_t kLayers = 5;

LoadedModel WithWindows(const LoadedModel& inner, const std::vector<int64_t>& windows) {
  return {inner.file, inner.device, std::make_shared<WindowedModel>(inner.model, windows)};
}

// (layer, piece) -> bytes.
using Frames = std::map<std::tuple<int, int>, size_t>;

// What is sent over an edge.
class RecordingEdge : public Edge {
 public:
  explicit RecordingEdge(std::shared_ptr<Edge> inner) : inner_(std::move(inner)) {}
  Event SendSummed(FrameId id, ConstBufferRef bytes, const Event& after, std::shared_ptr<const FrameSum> sum) override {
    {
      MutexLock lock(mu_);
      EXPECT_TRUE(frames_.emplace(std::make_tuple(id.layer, id.piece), bytes.size).second) << "sent twice";
    }
    return inner_->SendSummed(id, bytes, after, std::move(sum));
  }
  Reception Recv(FrameId id, BufferRef into) override { return inner_->Recv(id, into); }
  Event Finish(JobId job) override { return inner_->Finish(job); }
  void Drop(JobId job) override { inner_->Drop(job); }
  absl::Status Health() const override { return inner_->Health(); }
  bool Opened() const override { return inner_->Opened(); }
  Frames frames() const {
    MutexLock lock(mu_);
    return frames_;
  }

 private:
  const std::shared_ptr<Edge> inner_;
  mutable Mutex mu_;
  Frames frames_ RUNAHEAD_GUARDED_BY(mu_);
};

// Whether any query of tokens [from, end) sees the token; only the last one asks in the last layer.
bool IsSeen(int64_t token, int64_t window, int64_t from, int64_t end, bool last_layer) {
  for (int64_t query = last_layer ? end - 1 : from; query < end; ++query) {
    if (token <= query && (window == 0 || token > query - window)) return true;
  }
  return false;
}

// What has to cross the edge behind part `part`, token by token.
Frames ExpectedFrames(const std::vector<int64_t>& windows, const std::vector<int64_t>& bounds, int part,
                      int64_t row_bytes) {
  Frames frames;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int piece = 0; piece <= part + 1; ++piece) {  // 0: the prefix
      for (int64_t token = piece == 0 ? 0 : bounds[piece - 1]; token < bounds[piece]; ++token) {
        const bool seen = IsSeen(token, windows[layer % windows.size()], bounds[part + 1], bounds.back(),
                                 /*last_layer=*/layer + 1 == kLayers);
        if (seen) frames[{layer, piece}] += static_cast<size_t>(row_bytes);
      }
    }
  }
  return frames;
}

struct Case {
  const char* name;
  std::vector<int64_t> windows;  // by layer, in turn
};

class WindowedChain : public ::testing::TestWithParam<Case> {
 protected:
  WindowedChain()
      : inner_(LoadForTest(WriteSynthetic(SmallModel(kLayers), "windowed_chain"), DType::kF32, 2)),
        loaded_(WithWindows(inner_, GetParam().windows)) {}

  // What the chain made, and what crossed its edges.
  struct Run {
    WholeRun whole;
    std::vector<Frames> frames;
  };
  Run RunChain(const std::vector<int64_t>& bounds, const std::vector<int32_t>& ids, Schedule schedule,
               int64_t slots = 0, const std::shared_ptr<PrefixSource>& prefix = nullptr) {
    const int parts = static_cast<int>(bounds.size()) - 1;
    TestChain chain(loaded_, parts, bounds.back(), slots);
    std::vector<std::shared_ptr<RecordingEdge>> edges;
    for (int part = 0; part < parts; ++part) {
      PrefillJob job =
          chain.JobOf(1, 0, part, bounds, ids, EveryLogprob(loaded_), true, absl::InfiniteFuture(), schedule);
      if (part == 0) job.prefix = prefix;
      if (part + 1 < parts) {
        edges.push_back(std::make_shared<RecordingEdge>(job.successor));
        job.successor = edges.back();
      }
      chain.member(part).stage->Start(std::move(job));
    }
    Run run{AwaitWhole(loaded_, chain, 1, 0, bounds), {}};
    EXPECT_EQ(chain.live_edge_jobs(), 0u);
    for (const auto& edge : edges) run.frames.push_back(edge->frames());
    int64_t handed_off = 0;
    for (const int64_t begin : run.whole.begins) handed_off += (bounds.back() - begin) * loaded_.model->kv_row_bytes();
    EXPECT_EQ(chain.handoff().Bytes(SliceKind::kKv), handed_off) << "nothing beside what decode sees";
    return run;
  }

  void ExpectFrames(const Run& run, const std::vector<int64_t>& bounds) const {
    for (size_t part = 0; part < run.frames.size(); ++part) {
      EXPECT_EQ(run.frames[part],
                ExpectedFrames(GetParam().windows, bounds, static_cast<int>(part), loaded_.model->kv_row_bytes()))
          << "behind part " << part;
    }
  }

  const LoadedModel inner_, loaded_;
};

void ExpectBitwise(const WholeRun& actual, const WholeRun& expected) {
  EXPECT_EQ(actual.token.id, expected.token.id);
  ASSERT_EQ(actual.token.logprobs.size(), expected.token.logprobs.size());
  for (size_t i = 0; i < expected.token.logprobs.size(); ++i) {
    EXPECT_EQ(actual.token.logprobs[i].id, expected.token.logprobs[i].id);
    EXPECT_EQ(actual.token.logprobs[i].logprob, expected.token.logprobs[i].logprob);
  }
  for (size_t layer = 0; layer < expected.kv.size(); ++layer) {
    EXPECT_TRUE(actual.kv[layer] == expected.kv[layer]) << "layer " << layer;
  }
}

TEST_P(WindowedChain, SendsWhatSomebodySeesAndGivesBitwiseWhatItGivesWithAll) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 41);
  const ExpectedRun plain = PlainRun(loaded_, ids);
  for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{
           {0, 300}, {0, 150, 300}, {0, 299, 300}, {0, 1, 300}, {0, 130, 190, 300}, {0, 200, 203, 300}}) {
    SCOPED_TRACE(::testing::PrintToString(bounds));
    const Run run = RunChain(bounds, ids, Schedule::kKvr);
    ExpectFrames(run, bounds);
    ExpectRun(run.whole, plain);
    // An all-gather has all KV everywhere, and cuts attention alike.
    ExpectBitwise(run.whole, RunChain(bounds, ids, Schedule::kTspCausal).whole);
  }
}

// Then all rows see something in the last layer, and so every member needs what they see.
TEST_P(WindowedChain, AScoredPromptIsScoredAlikeWhateverItsParts) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 46);
  const auto scores_of = [&](const std::vector<int64_t>& bounds) {
    const int parts = static_cast<int>(bounds.size()) - 1;
    TestChain chain(loaded_, parts, bounds.back());
    std::vector<TokenLogprobPairs> scores;
    for (int part = 0; part < parts; ++part) {
      PrefillJob job = chain.JobOf(1, 0, part, bounds, ids, {}, true, absl::InfiniteFuture());
      job.prompt_logprobs = 0;
      if (!job.tail()) job.next_id = ids[job.end()];
      chain.member(part).stage->Start(std::move(job));
    }
    for (int part = 0; part < parts; ++part) {
      EXPECT_EQ(chain.member(part).news.AwaitDone(1), absl::OkStatus());
      const auto own = chain.member(part).news.scores(1);
      scores.insert(scores.end(), own.begin(), own.end());
    }
    return scores;
  };
  const auto alone = scores_of({0, 200});
  ASSERT_EQ(alone.size(), 199u);
  for (const std::vector<int64_t>& bounds : std::vector<std::vector<int64_t>>{{0, 120, 200}, {0, 90, 150, 200}}) {
    const auto scores = scores_of(bounds);
    ASSERT_EQ(scores.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(scores[i][0].logprob, alone[i][0].logprob, 1e-3) << i;
  }
}

TEST_P(WindowedChain, ARingOfThreeBuffersGivesTheSame) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 42);
  const std::vector<int64_t> bounds = {0, 90, 150, 200};
  const Run run = RunChain(bounds, ids, Schedule::kKvr, kMinLayerSlots);
  ExpectFrames(run, bounds);
  ExpectBitwise(run.whole, RunChain(bounds, ids, Schedule::kTspCausal).whole);
}

TEST_P(WindowedChain, OfAPrefixComesWhatIsSeen) {
  const std::vector<int32_t> ids = RandomIds(160, 320, 43);
  const ExpectedRun plain = PlainRun(loaded_, ids);
  const std::vector<int64_t> bounds = {50, 110, 160};
  const Run run =
      RunChain(bounds, ids, Schedule::kKvr, 0, std::make_shared<GivenPrefix>(plain, loaded_.model->kv_row_bytes()));
  ExpectFrames(run, bounds);
  ExpectRun(run.whole, plain);
}

TEST_P(WindowedChain, AnAllGatherGivesTheSameDenseOrNot) {
  const std::vector<int32_t> ids = RandomIds(90, 320, 44);
  const ExpectedRun plain = PlainRun(loaded_, ids);
  for (const Schedule schedule : {Schedule::kTsp, Schedule::kTspCausal}) {
    ExpectRun(RunChain({0, 30, 60, 90}, ids, schedule).whole, plain);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Windows, WindowedChain,
    ::testing::Values(Case{"SmallerThanAPart", {20}}, Case{"AsLongAsAPart", {60}}, Case{"LongerThanAPart", {75}},
                      Case{"OverSeveralParts", {190}}, Case{"LongerThanThePrompt", {301}}, Case{"OneToken", {1}},
                      Case{"LocalAndGlobal", {17, 0}}, Case{"LastLayerGlobal", {40, 40, 40, 40, 0}},
                      Case{"LastLayerLocal", {0, 0, 0, 0, 25}}, Case{"AllDifferent", {100, 1, 0, 61, 7}}),
    [](const auto& info) { return std::string(info.param.name); });

// Parts that need nothing of each other: no frame at all, and still each member ends when its neighbours have.
class NoFrames : public ::testing::Test {
 protected:
  const LoadedModel loaded_ =
      WithWindows(LoadForTest(WriteSynthetic(SmallModel(kLayers), "no_frames"), DType::kF32, 2), {1});
  const std::vector<int32_t> ids_ = RandomIds(90, 320, 45);
};

TEST_F(NoFrames, AMemberIsDoneWhenItsSuccessorHasHeardSo) {
  TestChain chain(loaded_, 3, 90, 0, LoopbackNetwork::Delivery::kManual);
  chain.Start(1, 0, {0, 30, 60, 90}, ids_);
  chain.member(2).news.AwaitFirstToken(1);
  EXPECT_FALSE(chain.member(0).news.done(1));
  EXPECT_TRUE(chain.DeliverUntilDone(1, {0, 1}));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(chain.member(i).news.AwaitDone(1).ok()) << i;
  chain.network().DeliverAll();
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
}

TEST_F(NoFrames, ACancelledJobLeavesNothing) {
  TestChain chain(loaded_, 3, 90, 0, LoopbackNetwork::Delivery::kManual);
  chain.handoff().Block();
  chain.Start(1, 0, {0, 30, 60, 90}, ids_);
  for (int i = 0; i < 3; ++i) chain.member(i).stage->Cancel(1, absl::CancelledError("enough"));
  while (!chain.member(0).news.done(1) || !chain.member(1).news.done(1) || !chain.member(2).news.done(1)) {
    chain.network().DeliverAll();
  }
  chain.network().DeliverAll();
  EXPECT_EQ(chain.live_edge_jobs(), 0u);
}

TEST_F(NoFrames, ADeadNeighbourEndsTheJob) {
  TestChain chain(loaded_, 2, 90, 0, LoopbackNetwork::Delivery::kManual);
  chain.network().Kill(TestChain::Peer(0));
  chain.Start(1, 0, {0, 45, 90}, ids_);
  EXPECT_EQ(chain.member(1).news.AwaitEnd(1).cause, JobCause::kPeer);
}

}  // namespace
}  // namespace runahead
