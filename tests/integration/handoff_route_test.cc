// Hand-off over links and over gRPC, between real processes: what arrives is the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::ContainsRegex;
using ::testing::Not;

class HandoffRouteTest : public ::testing::Test {
 protected:
  HandoffRouteTest()
      : links_(model_, {"--prefill", "2", "--dtype", "f32"}),
        grpc_(model_, {"--prefill", "2", "--dtype", "f32", "--handoff", "grpc"}) {}

  const std::string model_ = WriteSynthetic(SyntheticModel(), "handoff_route");
  LocalCluster links_, grpc_;
};

TEST_F(HandoffRouteTest, BothBringTheSameKv) {
  const v1::GenerateRequest request = RequestOf(SyntheticIds(900, 1), 20);
  const Answer by_links = links_.Generate(request);
  const Answer by_grpc = grpc_.Generate(request);
  ASSERT_TRUE(by_links.status.ok()) << by_links.status.error_message();
  ASSERT_TRUE(by_grpc.status.ok()) << by_grpc.status.error_message();
  EXPECT_EQ(by_grpc.started.plan().workers_size(), 2);
  EXPECT_EQ(by_grpc.ids.size(), 20u);
  EXPECT_EQ(by_grpc.ids, by_links.ids);
  constexpr char kLinked[] = "decode-0 \\[link\\] connected";
  EXPECT_THAT(links_.Log(), ContainsRegex(kLinked));
  EXPECT_THAT(grpc_.Log(), Not(ContainsRegex(kLinked)));
  links_.ExpectAllFree();
  grpc_.ExpectAllFree();
}

TEST_F(HandoffRouteTest, ADecodeWorkerThatComesBackIsReachedOverGrpcAgain) {
  const v1::GenerateRequest request = RequestOf(SyntheticIds(300, 2), 10);
  const Answer before = grpc_.Generate(request);
  ASSERT_TRUE(before.status.ok()) << before.status.error_message();
  kill(grpc_.pid("decode-0"), SIGKILL);
  const Answer after = grpc_.GenerateEventually(request);
  EXPECT_TRUE(after.status.ok()) << after.status.error_message();
  EXPECT_EQ(after.ids, before.ids);
  grpc_.ExpectAllFree();
}

}  // namespace
}  // namespace runahead
