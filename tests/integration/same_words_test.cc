// Who computes the rest of a prompt behind what is known is chosen by load. So the answer is the same to the bit,
// whether the decode worker does, a chain of one, or a chain of two.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/cpu_isa.h"
#include "runahead/v1/cache.grpc.pb.h"
#include "server/rpc/channel.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/routed_ways.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using testing::RoutedWays;
using testing::ServingProcess;

// Tokens. The second prompt goes on behind the first one and its answer.
constexpr int kFirstPrompt = 300, kFirstAnswer = 16, kSecondAnswer = 24;

std::string WriteWideModel(WeightType type) {
  SyntheticModel model{.layers = 4};
  model.hidden = 256;
  model.heads = 8;
  model.head_dim = 32;
  model.ffn = 512;
  model.SetWeightType(type);
  return WriteSynthetic(model, "same_words");
}

// By dtype. `auto` takes int8 where the CPU has the instructions for it, for the model's weights are quantised then.
class SameWords : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "bf16" && !SupportsBf16(DetectCpuIsa())) GTEST_SKIP() << "this CPU does not compute in bf16";
    for (const std::string name : {"prefill-0", "prefill-1", "decode-0"}) StartWorker(name);
    router_ = std::make_unique<RoutedWays>(specs_, model_, GetParam());
    const std::shared_ptr<grpc::Channel> channel = MakeChannel(router_->address());
    stub_ = v1::Inference::NewStub(channel);
    cache_ = v1::Cache::NewStub(channel);
    EXPECT_TRUE(Eventually([&] { return router_->ready_prefill() == 2 && router_->ready_decode() == 1; }));
  }

  void StartWorker(const std::string& name) {
    const std::string role = name.substr(0, name.find('-'));
    std::vector<std::string> arguments = {
        RUNAHEAD_WORKER, "--role",    role,      "--name",   name,          "--model",
        model_,          "--threads", "1",       "--listen", "127.0.0.1:0", "--metrics-listen",
        "127.0.0.1:0",   "--dtype",   GetParam()};
    if (role == "decode") arguments.insert(arguments.end(), {"--step-rows", "64", "--kv-memory", "64MiB"});
    workers_.push_back(std::make_unique<ServingProcess>(arguments));
    RUNAHEAD_CHECK(!workers_.back()->address.empty());
    specs_.emplace_back(role, workers_.back()->address);
  }

  void Empty() {
    grpc::ClientContext context;
    v1::EmptyCacheResponse emptied;
    const grpc::Status status = cache_->Empty(&context, {}, &emptied);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }

  // The schedule says how wide a chain is: one worker, or both.
  Answer Ask(const std::vector<int32_t>& ids, int tokens, KnownWay way, Schedule schedule) {
    router_->Take(way, schedule);
    v1::GenerateRequest request = RequestOf(ids, tokens);
    request.mutable_sampling()->set_logprobs(5);
    Answer answer = GenerateOver(*stub_, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.ids.size(), static_cast<size_t>(tokens));
    return answer;
  }

  // What comes of so many new tokens behind a turn that nobody has asked more behind yet. That turn is computed anew,
  // always the same way.
  Answer AskBehindTurn(int rest, KnownWay way, Schedule schedule) {
    Empty();
    std::vector<int32_t> ids = SyntheticIds(kFirstPrompt, 1);
    const std::vector<int32_t> said = Ask(ids, kFirstAnswer, KnownWay::kNone, Schedule::kSingle).ids;
    const std::vector<int32_t> asked = SyntheticIds(rest, 2);
    ids.insert(ids.end(), said.begin(), said.end());
    ids.insert(ids.end(), asked.begin(), asked.end());
    Answer answer = Ask(ids, kSecondAnswer, way, schedule);
    EXPECT_EQ(answer.finished.usage().cached_prompt_tokens(), kFirstPrompt + kFirstAnswer - 1);
    EXPECT_EQ(answer.started.plan().known_output_tokens(), kFirstAnswer - 1);
    return answer;
  }

  static bool SameBits(const Answer& a, const Answer& b) {
    return std::equal(a.logprobs.begin(), a.logprobs.end(), b.logprobs.begin(), b.logprobs.end(),
                      [](const auto& x, const auto& y) { return x.SerializeAsString() == y.SerializeAsString(); });
  }
  static void ExpectSame(const Answer& answer, const Answer& expected) {
    EXPECT_EQ(answer.ids, expected.ids);
    ASSERT_EQ(answer.logprobs.size(), expected.logprobs.size());
    for (size_t i = 0; i < expected.logprobs.size(); ++i) {
      ASSERT_EQ(answer.logprobs[i].SerializeAsString(), expected.logprobs[i].SerializeAsString())
          << "token " << i << ":\n"
          << answer.logprobs[i].DebugString() << "\n"
          << expected.logprobs[i].DebugString();
    }
  }

  const std::string model_ = WriteWideModel(GetParam() == "auto" ? WeightType::kQ4_1 : WeightType::kF32);
  std::vector<std::unique_ptr<ServingProcess>> workers_;
  std::vector<std::pair<std::string, std::string>> specs_;  // role and address
  std::unique_ptr<RoutedWays> router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::unique_ptr<v1::Cache::Stub> cache_;
};

// Rests of one pass of the decode worker, and of several. Where bits of 16 and 8 bits depend on the cut of a prompt they
// show who computed it: the test is skipped there.
TEST_P(SameWords, WhoeverComputesTheRest) {
  for (const int rest : {40, 300}) {
    SCOPED_TRACE(absl::StrCat(rest, " tokens are new"));
    const Answer one = AskBehindTurn(rest, KnownWay::kChain, Schedule::kSingle);
    const Answer two = AskBehindTurn(rest, KnownWay::kChain, Schedule::kKvrEven);
    EXPECT_EQ(one.started.plan().workers_size(), 1);
    EXPECT_EQ(two.started.plan().workers_size(), 2);
    if (GetParam() != "f32" && !SameBits(one, two)) GTEST_SKIP() << "here prefill's bits depend on the cut";
    ExpectSame(one, two);
    const Answer rows = AskBehindTurn(rest, KnownWay::kRows, Schedule::kSingle);
    EXPECT_EQ(rows.started.plan().schedule(), "continuation");
    EXPECT_EQ(rows.started.plan().workers_size(), 0);
    ExpectSame(rows, one);
  }
}
INSTANTIATE_TEST_SUITE_P(DTypes, SameWords, ::testing::Values("f32", "bf16", "auto"),
                         [](const auto& dtype) { return "Of_" + dtype.param; });

}  // namespace
}  // namespace runahead
