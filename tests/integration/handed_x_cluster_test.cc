// Decode that recomputes KV from X: prefill workers make X and hand it off, in place of KV that decode never reads, and
// the tokens stay what they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/local_cluster.h"
#include "tests/testing/model_fixture.h"

namespace runahead {
namespace {

class HandedXClusterTest : public ::testing::Test {
 protected:
  static constexpr int kTokens = 20;
  static constexpr int64_t kTile = 64;

  // Every head has K and V of its own, so that X is half as large.
  static SyntheticModel Mha() {
    SyntheticModel model;
    model.kv_heads = model.heads;
    return model;
  }
  static std::vector<std::string> Arguments(const std::string& recompute, const std::string& link_gbps) {
    return {"--prefill",          "2",    "--dtype",     "f32",     "--emulated-link-gbps", link_gbps,
            "--kv-device-budget", "1MiB", "--recompute", recompute, "--host-lane",          "off"};
  }
  // Of so many tokens, in all layers.
  static int64_t XBytes(int64_t tokens) { return Mha().layers * tokens * Mha().hidden * 4; }
  static int64_t KvBytes(int64_t tokens) { return 2 * XBytes(tokens); }
  static int64_t HandedOff(LocalCluster& cluster, const std::string& kind) {
    const std::string line = absl::StrCat("runahead_handoff_bytes_total{kind=\"", kind, "\"}");
    return static_cast<int64_t>(cluster.Metric("prefill-0", line) + cluster.Metric("prefill-1", line));
  }
  static double InLane(LocalCluster& cluster, const std::string& lane) {
    return cluster.Metric("decode-0", absl::StrCat("runahead_kvpr_lane_tokens_total{lane=\"", lane, "\"}"));
  }
  // The tokens of a prompt, which two workers prefilled.
  static std::vector<int32_t> Ask(LocalCluster& cluster, int prompt) {
    EXPECT_TRUE(Eventually(
        [&] { return cluster.Metric("router", "runahead_workers{role=\"prefill\",state=\"ready\"}") == 2; }));
    const Answer answer = cluster.Generate(Uncached(RequestOf(SyntheticIds(prompt, 3), kTokens)));
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.started.plan().workers_size(), 2);
    EXPECT_EQ(answer.ids.size(), static_cast<size_t>(kTokens));
    cluster.ExpectAllFree();
    return answer.ids;
  }

  const std::string model_ = WriteSynthetic(Mha(), "handed_x_cluster");
};

TEST_F(HandedXClusterTest, XTravelsInsteadOfTheKvThatDecodeRecomputesAndTheTokensAreTheSame) {
  constexpr int kPrompt = 700;
  LocalCluster copies(model_, Arguments("off", "50"));
  const std::vector<int32_t> copied = Ask(copies, kPrompt);
  EXPECT_EQ(HandedOff(copies, "x"), 0);
  EXPECT_EQ(HandedOff(copies, "kv"), KvBytes(kPrompt));
  EXPECT_EQ(InLane(copies, "recomputed"), 0);
  // The second is more than there is: whole tiles of the prompt are without KV.
  for (const int64_t fixed : {128, 5000}) {
    SCOPED_TRACE(fixed);
    LocalCluster recomputes(model_, Arguments(absl::StrCat(fixed), "50"));
    EXPECT_EQ(Ask(recomputes, kPrompt), copied);
    const int64_t kv_from = std::min<int64_t>(fixed, kPrompt) / kTile * kTile;
    EXPECT_EQ(HandedOff(recomputes, "x"), XBytes(kPrompt));
    EXPECT_EQ(HandedOff(recomputes, "kv"), KvBytes(kPrompt - kv_from));
    EXPECT_GE(InLane(recomputes, "recomputed"), (kTokens - 1) * 128);
  }
}

// Over so slow a link nearly all is recomputed, once steps have shown that this is faster: until then all KV travels,
// or the first step would have to recompute at whatever cost. Copies wait for the link, not for cores, and take so much
// longer than all else that other work on the machine hides nothing.
TEST_F(HandedXClusterTest, HowMuchTheDecodeWorkerChoosesByItself) {
  constexpr int kPrompt = 1300, kShort = 900, kMostAsked = 12;
  LocalCluster copies(model_, Arguments("off", "0.1")), chooses(model_, Arguments("auto", "0.1"));
  EXPECT_EQ(Ask(chooses, kShort), Ask(copies, kShort));
  EXPECT_EQ(HandedOff(chooses, "x"), XBytes(kShort));
  EXPECT_EQ(HandedOff(chooses, "kv"), KvBytes(kShort)) << "a short prompt's KV travels";
  const std::vector<int32_t> copied = Ask(copies, kPrompt);
  int64_t kv_from = 0, asked = 0;
  while (kv_from == 0 && asked < kMostAsked) {
    const double before = InLane(chooses, "recomputed");
    const int64_t kv_before = HandedOff(chooses, "kv"), x_before = HandedOff(chooses, "x");
    EXPECT_EQ(Ask(chooses, kPrompt), copied);
    ++asked;
    const int64_t kv_bytes = HandedOff(chooses, "kv") - kv_before;
    EXPECT_EQ(kv_bytes % KvBytes(1), 0);
    kv_from = kPrompt - kv_bytes / KvBytes(1);
    if (kv_from == 0) continue;
    EXPECT_EQ(HandedOff(chooses, "x") - x_before, XBytes(kPrompt));
    EXPECT_EQ(kv_from % kTile, 0);
    EXPECT_LE(kv_from, kPrompt * 3 / 4);
    EXPECT_GE(InLane(chooses, "recomputed") - before, kv_from) << "later a window may have some of it";
  }
  EXPECT_GT(kv_from, 0) << "no split ran for long";
}

}  // namespace
}  // namespace runahead
