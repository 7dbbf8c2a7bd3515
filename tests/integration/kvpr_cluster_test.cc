// Decode over a link, through the whole service: every lane has its part, and the tokens are those of transformers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/golden/golden_files.h"
#include "tests/integration/local_cluster.h"

namespace runahead {
namespace {

class KvprClusterTest : public ::testing::Test {
 protected:
  // The checkpoint of MHA whose context is long enough for four lanes, and its longest prompt.
  void SetUp() override {
    const std::string make = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "make_synthetic_gguf";
    for (const GoldenCheckpoint& checkpoint : ReadGoldenCheckpoints()) {
      if (checkpoint.prompts.back().ids.size() < 1400) continue;
      ASSERT_EQ(std::system(absl::StrCat(make, " ", absl::StrJoin(checkpoint.flags, " "), " ", model_).c_str()), 0);
      golden_ = checkpoint.prompts.back();
    }
    ASSERT_FALSE(golden_.ids.empty());
  }
  // Two blocks of a window fit.
  static std::vector<std::string> Arguments(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--prefill",          "2",   "--dtype", "f32", "--emulated-link-gbps", "20",
                                    "--kv-device-budget", "3MiB"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static double InLane(LocalCluster& cluster, const std::string& lane) {
    return cluster.Metric("decode-0", absl::StrCat("runahead_kvpr_lane_tokens_total{lane=\"", lane, "\"}"));
  }
  Answer Ask(LocalCluster& cluster) {
    return cluster.Generate(RequestOf(golden_.ids, static_cast<int>(golden_.greedy.size())));
  }

  const std::string model_ = ::testing::TempDir() + "kvpr_cluster.gguf";
  GoldenPrompt golden_;
};

TEST_F(KvprClusterTest, EveryLaneHasItsPartAndTheTokensAreGolden) {
  LocalCluster cluster(model_, Arguments({"--recompute", "256", "--host-lane", "256"}));
  const Answer answer = Ask(cluster);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids, golden_.greedy);
  // In the first step all passes the device, for the window's part to stay there.
  const auto steps = static_cast<double>(golden_.greedy.size() - 1);
  EXPECT_EQ(InLane(cluster, "recomputed"), 256 * steps);
  EXPECT_EQ(InLane(cluster, "host"), 256 * (steps - 1));
  EXPECT_GE(InLane(cluster, "streamed"), 512 * steps);
  EXPECT_GE(InLane(cluster, "resident"), 376 * (steps - 1));
  cluster.ExpectAllFree();
}

TEST_F(KvprClusterTest, ChosenByItselfTheTokensAreGoldenToo) {
  LocalCluster cluster(model_, Arguments({}));
  const Answer answer = Ask(cluster);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids, golden_.greedy);
  cluster.ExpectAllFree();
}

TEST_F(KvprClusterTest, KvInEightBitsTakesAThirdOfTheBytes) {
  LocalCluster cluster(model_, Arguments({"--kv-bits", "8"}));
  const Answer answer = Ask(cluster);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), golden_.greedy.size());
  EXPECT_EQ(answer.ids.front(), golden_.greedy.front()) << "the first token comes from prefill";
  const double streamed = InLane(cluster, "streamed");
  EXPECT_GT(streamed, 0);
  // Five layers of K and V of 64 values, in groups of 64 with four bytes more.
  EXPECT_EQ(cluster.Metric("decode-0", "runahead_kvpr_lane_bytes_total{lane=\"streamed\"}"), streamed * 5 * 2 * 68);
  cluster.ExpectAllFree();
}

// There is no link here, and no budget: the store alone is quantised.
TEST_F(KvprClusterTest, KvInEightBitsNeedsNoLink) {
  LocalCluster cluster(model_, {"--dtype", "f32", "--kv-bits", "8"});
  const Answer answer = Ask(cluster);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), golden_.greedy.size());
  EXPECT_GT(InLane(cluster, "streamed"), 0);
  cluster.ExpectAllFree();
}

}  // namespace
}  // namespace runahead
