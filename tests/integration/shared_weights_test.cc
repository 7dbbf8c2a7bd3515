// `runahead up` has the weights of its workers in memory once, and they say what they say alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SharedWeightsClusterTest : public ::testing::Test {
 protected:
  static SyntheticModel Quantised() {
    SyntheticModel model;
    model.SetWeightType(WeightType::kQ8_0);
    return model;
  }
  static std::vector<int32_t> Ask(LocalCluster& cluster) {
    const Answer answer = cluster.GenerateEventually(Uncached(RequestOf(SyntheticIds(90, 3), 12)));
    EXPECT_EQ(answer.ids.size(), 12u);
    return answer.ids;
  }
  static int Count(const LocalCluster& cluster, const std::string& text) {
    return static_cast<int>(std::vector<std::string>(absl::StrSplit(cluster.Log(), text)).size()) - 1;
  }

  const std::string model_ = WriteSynthetic(Quantised(), "shared_weights");
};

TEST_F(SharedWeightsClusterTest, OneWorkerPacksForAllAndTokensAreTheSame) {
  LocalCluster alone(model_, {"--dtype", "int8", "--shared-weights", "off"});
  LocalCluster shares(model_, {"--dtype", "int8", "--prefill", "2"});
  EXPECT_EQ(Count(shares, "packed here"), 1);
  EXPECT_EQ(Count(shares, "packed by another"), 2);
  EXPECT_THAT(alone.Log(), Not(HasSubstr("packed here")));
  const std::vector<int32_t> ids = Ask(shares);
  EXPECT_EQ(Ask(alone), ids);
  for (const char* name : {"prefill-0", "prefill-1", "decode-0"}) {
    EXPECT_EQ(shares.Metric(name, "runahead_weights_bytes{form=\"int8\"}"),
              alone.Metric("decode-0", "runahead_weights_bytes{form=\"int8\"}"));
    EXPECT_EQ(shares.Metric(name, "runahead_weights_bytes{form=\"stored\"}"), 0);
  }

  // One that is killed finds them again.
  const pid_t killed = shares.pid("decode-0");
  kill(killed, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return Count(shares, "packed by another") == 3; }));
  EXPECT_EQ(Ask(shares), ids);
}

// Was: the others went on with wrong weights. The first worker that comes anew finds it.
TEST_F(SharedWeightsClusterTest, WorkersWhoseWeightsAreDamagedEndAndAreStartedAnew) {
  LocalCluster cluster(model_, {"--dtype", "int8", "--prefill", "2"});
  const std::vector<int32_t> ids = Ask(cluster);
  const std::string log = cluster.Log(), before = "with the workers of this host by ";
  const size_t begin = log.find(before) + before.size();
  std::fstream file(log.substr(begin, log.find(',', begin) - begin), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(512 << 10);  // the first block
  file << "damaged";
  ASSERT_TRUE(file.flush().good());
  const auto former = cluster.pids();
  kill(former.at("decode-0"), SIGKILL);
  for (const char* name : {"prefill-0", "prefill-1"}) {
    EXPECT_TRUE(Eventually([&] { return cluster.pid(name) != former.at(name); })) << name;
  }
  EXPECT_THAT(cluster.Log(), HasSubstr("is damaged: "));
  EXPECT_EQ(Ask(cluster), ids);
}

TEST_F(SharedWeightsClusterTest, WhatIsNotInEightBitsIsEachWorkersOwn) {
  LocalCluster cluster(model_, {"--dtype", "f32"});
  EXPECT_EQ(Count(cluster, "the weights are this worker's own"), 2);
  Ask(cluster);
}

}  // namespace
}  // namespace runahead
