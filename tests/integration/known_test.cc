// Chats over real processes whose beginnings a decode worker knows: the rest is computed there, and the words stay.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runahead/v1/cache.grpc.pb.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"

namespace runahead {
namespace {

constexpr int kAnswer = 16;

class KnownTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    model_path_ = new std::string(WriteSynthetic(SmallModel(), "known"));
    loaded_ = new LoadedModel(LoadForTest(*model_path_, DType::kF32, 1));
    cluster_ = new LocalCluster(*model_path_, {"--prefill", "2", "--decode", "2", "--dtype", "f32", "--experiments"});
  }
  static void TearDownTestSuite() {
    delete cluster_;
    delete loaded_;
    delete model_path_;
  }
  void TearDown() override { cluster_->ExpectAllFree(); }

  // Greedy tokens of the plain forward pass, with the margin at each step.
  static std::vector<Top> Plain(const std::vector<int32_t>& ids) {
    SequenceRunner runner(*loaded_, static_cast<int64_t>(ids.size()) + kAnswer);
    std::vector<Top> result;
    std::vector<float> logits = runner.Append(ids, false, false)[0];
    for (int i = 0; i < kAnswer; ++i) {
      result.push_back(TopOf(logits));
      logits = runner.Append({result.back().id}, true, true)[0];
    }
    return result;
  }
  // What a request of the ids gave, compared with the plain pass: the rule of f32, up to a step that rightly differs.
  static Answer Ask(const std::vector<int32_t>& ids, bool no_cache = false) {
    v1::GenerateRequest request = RequestOf(ids, kAnswer);
    request.set_no_cache(no_cache);
    Answer answer = cluster_->Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    const std::vector<Top> expected = Plain(ids);
    EXPECT_EQ(answer.ids.size(), expected.size());
    TokenRule rule(DType::kF32);
    for (size_t i = 0; i < answer.ids.size() && rule.different() == 0; ++i) rule.Add(answer.ids[i], expected[i]);
    double stages = 0;
    for (const auto& [name, seconds] : answer.finished.timing().stages()) stages += seconds;
    EXPECT_NEAR(stages, answer.finished.timing().ttft_s(), 1e-6);
    return answer;
  }
  static int Cached(const Answer& answer) { return answer.finished.usage().cached_prompt_tokens(); }

  // So many tokens were known, whoever computes the rest: that is chosen by what prompts took.
  static void ExpectKnown(const Answer& answer, int known) {
    const v1::Plan& plan = answer.started.plan();
    const bool by_chain = plan.schedule() != "continuation";
    EXPECT_EQ(plan.workers_size() > 0, by_chain);
    EXPECT_EQ(Cached(answer), known) << plan.DebugString();
    EXPECT_EQ(plan.known_tokens(), Cached(answer));
  }

  static std::string* model_path_;
  static LoadedModel* loaded_;
  static LocalCluster* cluster_;
};
std::string* KnownTest::model_path_ = nullptr;
LoadedModel* KnownTest::loaded_ = nullptr;
LocalCluster* KnownTest::cluster_ = nullptr;

std::vector<int32_t> Joined(std::vector<int32_t> ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

// All but the last token of the turn before: KV of that one was never computed.
TEST_F(KnownTest, EachTurnOfAChatComputesWhatIsNewAlone) {
  std::vector<int32_t> chat = SyntheticIds(600, 1);
  int known = 0;
  for (int turn = 0; turn < 12; ++turn) {
    SCOPED_TRACE(turn);
    const Answer answer = Ask(chat);
    ExpectKnown(answer, known);
    EXPECT_LE(answer.started.plan().known_output_tokens(), turn * (kAnswer - 1));
    chat = Joined(chat, answer.ids);
    known = static_cast<int>(chat.size()) - 1;
    chat = Joined(chat, SyntheticIds(20 + turn, 100 + turn));
  }
}

TEST_F(KnownTest, ABranchKnowsAllBeforeIt) {
  const std::vector<int32_t> system = SyntheticIds(700, 2);
  Ask(Joined(system, SyntheticIds(40, 3)));
  const Answer other = Ask(Joined(system, SyntheticIds(50, 4)));
  ExpectKnown(other, 700);
  EXPECT_EQ(other.started.plan().known_output_tokens(), 0);
}

TEST_F(KnownTest, AnAnswerThatIsMadeAgainKnowsAllButTheLastToken) {
  const std::vector<int32_t> chat = SyntheticIds(512, 5);  // whole blocks
  const Answer first = Ask(chat), again = Ask(chat);
  EXPECT_EQ(Cached(first), 0);
  ExpectKnown(again, 511);
}

TEST_F(KnownTest, AnEditInTheMiddleKnowsWhatStandsBeforeIt) {
  std::vector<int32_t> chat = SyntheticIds(900, 6);
  Ask(chat);
  chat[800] = chat[800] == 5 ? 6 : 5;
  ExpectKnown(Ask(chat), 800);
}

TEST_F(KnownTest, WhoWantsNoCacheHasNoneAndLeavesNone) {
  const std::vector<int32_t> chat = SyntheticIds(600, 7);
  EXPECT_EQ(Cached(Ask(chat, /*no_cache=*/true)), 0);
  EXPECT_EQ(Cached(Ask(chat)), 0) << "the one before left none";
  EXPECT_EQ(Cached(Ask(chat, /*no_cache=*/true)), 0);
  ExpectKnown(Ask(chat), 599);
}

// Which nothing is decoded of. Its prompt is kept behind its answer: who asks at once may find it on its way still.
TEST_F(KnownTest, AnAnswerOfOneTokenLeavesItsPrompt) {
  const std::vector<int32_t> chat = SyntheticIds(600, 9);
  const auto index = [] { return cluster_->Metric("router", "runahead_known_index_tokens"); };
  const double before = index();
  v1::GenerateRequest request = RequestOf(chat, 1);
  const Answer first = cluster_->Generate(request);
  EXPECT_TRUE(first.status.ok()) << first.status.error_message();
  EXPECT_EQ(Cached(first), 0);
  ASSERT_TRUE(Eventually([&] { return index() == before + 600; }, LocalCluster::kPatience));
  ExpectKnown(Ask(chat), 599);
  const Answer again = cluster_->Generate(request);
  EXPECT_TRUE(again.status.ok()) << again.status.error_message();
  EXPECT_EQ(Cached(again), 599);
}

TEST_F(KnownTest, AChainThatIsAskedForIsTaken) {
  const std::vector<int32_t> chat = SyntheticIds(600, 8);
  Ask(chat);
  v1::GenerateRequest request = RequestOf(chat, kAnswer);
  request.mutable_experiment()->set_width(2);
  const Answer answer = cluster_->Generate(request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(Cached(answer), 0);
  EXPECT_EQ(answer.started.plan().workers_size(), 2);
}

// Cache's own service, at the router.
class Emptying {
 public:
  explicit Emptying(const std::string& router)
      : stub_(v1::Cache::NewStub(grpc::CreateChannel(router, grpc::InsecureChannelCredentials()))) {}
  v1::ShowCacheResponse Show() {
    grpc::ClientContext context;
    v1::ShowCacheResponse shown;
    const grpc::Status status = stub_->Show(&context, {}, &shown);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return shown;
  }
  v1::EmptyCacheResponse Empty() {
    grpc::ClientContext context;
    v1::EmptyCacheResponse emptied;
    const grpc::Status status = stub_->Empty(&context, {}, &emptied);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return emptied;
  }

 private:
  std::unique_ptr<v1::Cache::Stub> stub_;
};

TEST_F(KnownTest, OnceEmptiedNothingIsKnownAndItsMemoryIsBlank) {
  Emptying cache(cluster_->router());
  const std::vector<int32_t> chat = SyntheticIds(600, 31);
  Ask(chat);
  cluster_->ExpectAllFree();  // what a sequence had counts as kept once it is no more
  const v1::ShowCacheResponse before = cache.Show();
  ASSERT_EQ(before.workers_size(), 2);
  int64_t kept = 0;
  for (const v1::CacheOfWorker& worker : before.workers()) {
    EXPECT_EQ(worker.error(), "");
    EXPECT_TRUE(worker.continues());
    EXPECT_TRUE(worker.lends());
    EXPECT_GT(worker.memory().capacity_bytes(), 0);
    kept += worker.memory().kept_bytes();
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(before.index_tokens(), 600);
  const v1::EmptyCacheResponse emptied = cache.Empty();
  int64_t freed = 0;
  for (const v1::EmptiedWorker& worker : emptied.workers()) {
    EXPECT_EQ(worker.error(), "");
    freed += worker.freed_bytes();
  }
  EXPECT_EQ(freed, kept);
  EXPECT_EQ(Cached(Ask(chat)), 0);
}

// Whatever is forgotten while they run: their words stay those of the plain pass, which Ask compares.
TEST_F(KnownTest, ChatsGoOnRightlyWhileItIsEmptiedAgainAndAgain) {
  std::atomic<bool> stop = false;
  std::thread empties([&] {
    Emptying cache(cluster_->router());
    while (!stop) cache.Empty();
  });
  std::vector<int32_t> chat = SyntheticIds(500, 32);
  for (int turn = 0; turn < 6; ++turn) {
    SCOPED_TRACE(turn);
    chat = Joined(Joined(chat, Ask(chat).ids), SyntheticIds(30, 200 + turn));
  }
  stop = true;
  empties.join();
}

}  // namespace
}  // namespace runahead
