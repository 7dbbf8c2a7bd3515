// Clients that take nothing for a while: each gets all of its tokens afterwards.
#include <gtest/gtest.h>
#include <signal.h>

#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/tcp_proxy.h"

namespace runahead {
namespace {

// Longer than workers bear of each other, shorter than the router's stall_timeout.
constexpr absl::Duration kPause = absl::Seconds(12);
// An answer of 5 MB, for the logprobs: more than a client of gRPC lets come that reads nothing (4 MiB where memory is
// free), so that the router has to wait for it, whatever the kernel's buffers hold.
constexpr int kTokens = 24'000;
constexpr int kLogprobs = 20;

SyntheticModel Model() {
  SyntheticModel model;
  model.context_length = 32'768;
  model.layers = 1;
  model.heads = 1;
  model.head_dim = 16;
  model.kv_heads = 1;
  return model;
}

class SlowClientTest : public ::testing::Test {
 protected:
  SlowClientTest()
      : cluster_(WriteSynthetic(Model(), "slow-client"), {"--prefill", "1", "--decode", "1", "--dtype", "f32"}),
        ids_(SyntheticIds(30, 1)) {}

  // `runahead generate` of the same request, from a shell's point of view.
  std::unique_ptr<testing::TestProcess> Command(const std::string& router) {
    return std::make_unique<testing::TestProcess>(std::vector<std::string>{
        RUNAHEAD_BINARY, "generate", "--router", router, "--token-ids", absl::StrJoin(ids_, ","), "--max-tokens",
        absl::StrCat(kTokens), "--logprobs", absl::StrCat(kLogprobs), "--ignore-eos", "--json"});
  }
  // A C++ client that reads one message, nothing until it may resume, and then the rest.
  Answer ReadWithAPause(std::promise<void>& paused, const std::shared_future<void>& resume) {
    v1::GenerateRequest request = Uncached(RequestOf(ids_, kTokens));
    request.mutable_sampling()->set_logprobs(kLogprobs);
    const auto stub =
        v1::Inference::NewStub(grpc::CreateChannel(cluster_.router(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    Answer answer;
    v1::GenerateResponse response;
    for (bool first = true; reader->Read(&response); first = false) {
      answer.ids.insert(answer.ids.end(), response.tokens().ids().begin(), response.tokens().ids().end());
      if (!first) continue;
      paused.set_value();
      resume.wait();
    }
    answer.status = reader->Finish();
    return answer;
  }
  double InFlight() { return cluster_.Metric("router", "runahead_requests_in_flight"); }

  LocalCluster cluster_;
  const std::vector<int32_t> ids_;
};

TEST_F(SlowClientTest, APauseInMidStreamLosesNoToken) {
  const Answer whole = cluster_.Generate(Uncached(RequestOf(ids_, kTokens)));
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();

  std::promise<void> paused, resume;
  auto not_reading = std::async(std::launch::async,
                                [&, resumed = resume.get_future().share()] { return ReadWithAPause(paused, resumed); });
  paused.get_future().wait();
  // Each pauses right after its prompt was taken: an answer takes much longer than to see that.
  testing::TcpProxy network(cluster_.router());
  const auto over_the_network = Command(network.address());
  EXPECT_TRUE(Eventually([&] { return InFlight() == 2; }));
  network.Stall(true);
  const auto stopped = Command(cluster_.router());
  EXPECT_TRUE(Eventually([&] { return InFlight() == 3; }));
  stopped->Signal(SIGSTOP);

  std::this_thread::sleep_for(absl::ToChronoMilliseconds(kPause));
  EXPECT_EQ(InFlight(), 3);  // in mid-stream they were
  resume.set_value();
  network.Stall(false);
  stopped->Signal(SIGCONT);

  const Answer answer = not_reading.get();
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids, whole.ids);
  for (const auto& command : {over_the_network.get(), stopped.get()}) {
    ASSERT_EQ(command->Wait(), 0) << command->err();
    EXPECT_EQ(nlohmann::json::parse(command->out()).at("token_ids").get<std::vector<int32_t>>(), whole.ids);
  }
  cluster_.ExpectAllFree();
}

}  // namespace
}  // namespace runahead
