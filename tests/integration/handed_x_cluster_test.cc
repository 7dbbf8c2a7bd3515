// Decode that recomputes KV from X: prefill workers make X and hand it off, and the tokens stay what they are.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

class HandedXClusterTest : public ::testing::Test {
 protected:
  static constexpr int kPrompt = 700, kTokens = 20;
  static constexpr int64_t kRecomputed = 128;  // of the sequence, in each step

  // Every head has K and V of its own, so that X is half as large.
  static SyntheticModel Mha() {
    SyntheticModel model;
    model.kv_heads = model.heads;
    return model;
  }
  static std::vector<std::string> Arguments(const std::string& recompute) {
    return {"--prefill",          "2",    "--dtype",     "f32",    "--emulated-link-gbps", "50",
            "--kv-device-budget", "1MiB", "--recompute", recompute};
  }
  static double HandedOff(LocalCluster& cluster, const std::string& kind) {
    const std::string line = absl::StrCat("runahead_handoff_bytes_total{kind=\"", kind, "\"}");
    return cluster.Metric("prefill-0", line) + cluster.Metric("prefill-1", line);
  }
  static double InLane(LocalCluster& cluster, const std::string& lane) {
    return cluster.Metric("decode-0", absl::StrCat("runahead_kvpr_lane_tokens_total{lane=\"", lane, "\"}"));
  }

  const std::string model_ = WriteSynthetic(Mha(), "handed_x_cluster");
};

TEST_F(HandedXClusterTest, DecodeRecomputesFromWhatPrefillHandedOffAndGivesTheSameTokens) {
  LocalCluster copies(model_, Arguments("off"));
  LocalCluster recomputes(model_, Arguments(absl::StrCat(kRecomputed)));
  const v1::GenerateRequest request = RequestOf(SyntheticIds(kPrompt, 3), kTokens);
  const Answer copied = copies.Generate(request), recomputed = recomputes.Generate(request);
  ASSERT_TRUE(copied.status.ok()) << copied.status.error_message();
  ASSERT_TRUE(recomputed.status.ok()) << recomputed.status.error_message();
  EXPECT_EQ(recomputed.started.plan().workers_size(), 2);
  EXPECT_EQ(recomputed.ids.size(), static_cast<size_t>(kTokens));
  EXPECT_EQ(recomputed.ids, copied.ids);

  copies.ExpectAllFree();
  recomputes.ExpectAllFree();
  const SyntheticModel model = Mha();
  const double x_bytes = static_cast<double>(model.layers * kPrompt * model.hidden * 4);
  EXPECT_EQ(HandedOff(recomputes, "x"), x_bytes);
  EXPECT_EQ(HandedOff(recomputes, "kv"), 2 * x_bytes);
  EXPECT_EQ(HandedOff(copies, "x"), 0);
  EXPECT_EQ(HandedOff(copies, "kv"), 2 * x_bytes);
  EXPECT_EQ(InLane(recomputes, "recomputed"), (kTokens - 1) * kRecomputed);
  EXPECT_EQ(InLane(copies, "recomputed"), 0);
}

}  // namespace
}  // namespace runahead
