// Chains whose workers are joined as GPUs are: from device to device, through pinned memory, or both in one line.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/chain_fixture.h"
#include "tests/testing/fake_peer_comm.h"
#include "tests/testing/small_model.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message/message_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::FakePeerCommFactory;
using ::runahead::testing::FakePeerNetwork;
using ::runahead::testing::NewEngine;

class DeviceChainTest : public ::testing::Test {
 protected:
  DeviceChainTest() : loaded_(LoadForTest(WriteSynthetic(SmallModel(), "device_chain"), DType::kF32, 2)) {}

  // The edges of a worker on GPU `gpu`; on the CPU where that is "".
  std::unique_ptr<EdgeFactory> Worker(const std::string& gpu, size_t staging_bytes = 1 << 20) {
    engines_.push_back(NewEngine());
    MessageEngine& engine = *engines_.back();
    if (gpu.empty()) return std::make_unique<MessageEdgeFactory>(engine);
    const std::string identity = absl::StrCat("nccl 2.27.7 GPU-", gpu, " host 1");
    comms_.push_back(std::make_unique<FakePeerCommFactory>(network_, absl::StrCat("worker ", gpu), identity));
    return std::make_unique<MessageEdgeFactory>(
        engine, MessageEdgeOptions{.staging = std::make_unique<EdgeStaging>(*loaded_.device, staging_bytes),
                                   .comms = comms_.back().get()});
  }
  std::unique_ptr<TestChain> Chain(const std::vector<std::string>& gpus, int64_t tokens,
                                   size_t staging_bytes = 1 << 20) {
    std::vector<std::unique_ptr<EdgeFactory>> edges;
    for (const std::string& gpu : gpus) edges.push_back(Worker(gpu, staging_bytes));
    return std::make_unique<TestChain>(loaded_, std::move(edges), tokens);
  }

  const LoadedModel loaded_;
  FakePeerNetwork network_;
  std::vector<std::unique_ptr<MessageEngine>> engines_;
  std::vector<std::unique_ptr<FakePeerCommFactory>> comms_;
};

TEST_F(DeviceChainTest, FromGpuToGpuItIsTheLogitsAndKvOfTheReference) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 11);
  const ExpectedRun reference = ReferenceRun(loaded_, ids);
  for (const std::vector<int64_t>& bounds :
       std::vector<std::vector<int64_t>>{{0, 140, 300}, {0, 1, 299, 300}, {0, 75, 150, 225, 300}}) {
    const int parts = static_cast<int>(bounds.size()) - 1;
    std::vector<std::string> gpus;
    for (int i = 0; i < parts; ++i) gpus.push_back(absl::StrCat(i));
    const size_t before = network_.transfers();
    const auto chain = Chain(gpus, 300);
    ExpectRun(RunWhole(loaded_, *chain, 1, bounds, ids), reference);
    // Worker i sends i + 1 parts of each layer.
    EXPECT_EQ(network_.transfers() - before,
              static_cast<size_t>(loaded_.model->config().layers * parts * (parts - 1) / 2));
    ExpectRun(RunWhole(loaded_, *chain, 2, bounds, ids, Schedule::kTsp), reference);
  }
}

TEST_F(DeviceChainTest, AMixedLineGoesThroughTheHostsWhereItMust) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 12);
  const ExpectedRun reference = ReferenceRun(loaded_, ids);
  const size_t layers = static_cast<size_t>(loaded_.model->config().layers);
  {
    const auto chain = Chain({"a", "b", "", "c"}, 300);
    ExpectRun(RunWhole(loaded_, *chain, 1, {0, 90, 170, 240, 300}, ids), reference);
    EXPECT_EQ(network_.transfers(), layers) << "only from a to b";
  }
  // Two workers on one GPU, which can be no two ranks.
  const auto chain = Chain({"a", "a"}, 300);
  ExpectRun(RunWhole(loaded_, *chain, 1, {0, 170, 300}, ids), reference);
  EXPECT_EQ(network_.transfers(), layers);
}

TEST_F(DeviceChainTest, StagingThatHoldsOneFrameSuffices) {
  const std::vector<int32_t> ids = RandomIds(200, 320, 13);
  const ExpectedRun reference = ReferenceRun(loaded_, ids);
  const size_t frame = static_cast<size_t>(60 * loaded_.model->kv_row_bytes());
  for (const size_t staging : {frame, size_t{1}}) {
    const auto chain = Chain({"a", "a", "a", "a"}, 200, staging);
    const std::vector<int64_t> bounds = {0, 60, 100, 150, 200};
    for (JobId job = 1; job <= 4; ++job) {
      const auto schedule = job % 2 == 0 ? Schedule::kTsp : Schedule::kKvr;
      chain->Start(job, 0, bounds, ids, {}, true, absl::InfiniteFuture(), schedule);
    }
    for (JobId job = 1; job <= 4; ++job) {
      for (int i = 0; i < 4; ++i) EXPECT_TRUE(chain->member(i).news.AwaitDone(job).ok());
    }
    ExpectRun(RunWhole(loaded_, *chain, 5, bounds, ids), reference);
  }
  EXPECT_EQ(network_.opened(), 0u);
}

TEST_F(DeviceChainTest, ACommunicatorThatFailsEndsTheJobsOnItsEdgeAndNoOthers) {
  const std::vector<int32_t> ids = RandomIds(300, 320, 14);
  const auto chain = Chain({"a", "b", "c"}, 300);
  RunWhole(loaded_, *chain, 1, {0, 100, 200, 300}, ids);
  network_.HoldTransfers();
  chain->Start(2, 0, {0, 100, 200, 300}, ids);
  network_.AwaitUnderWay(2);
  network_.FailAsync("worker a", PeerRank::kSender);
  network_.Release();
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(chain->member(i).news.AwaitDone(2).code(), absl::StatusCode::kUnavailable) << "worker " << i;
  }
  EXPECT_FALSE(chain->member(2).news.AwaitDone(2).ok());
  EXPECT_FALSE(chain->member(0).successor->Health().ok());
  EXPECT_FALSE(chain->member(1).predecessor->Health().ok());
  // The rest of the line goes on.
  chain->Start(3, 1, {0, 150, 300}, ids);
  EXPECT_TRUE(chain->member(1).news.AwaitDone(3).ok());
  EXPECT_TRUE(chain->member(2).news.AwaitDone(3).ok());
}

}  // namespace
}  // namespace runahead
