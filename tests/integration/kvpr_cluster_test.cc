// Decode over a link, through the whole service: every lane has its part, and the tokens are those of transformers.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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
  static std::vector<std::string> OverALink(const std::string& gbps, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--prefill",          "2",   "--dtype", "f32", "--emulated-link-gbps", gbps,
                                    "--kv-device-budget", "3MiB"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::vector<std::string> Arguments(const std::vector<std::string>& more) { return OverALink("20", more); }
  static double InLane(LocalCluster& cluster, const std::string& lane) {
    return cluster.Metric("decode-0", absl::StrCat("runahead_kvpr_lane_tokens_total{lane=\"", lane, "\"}"));
  }
  Answer Ask(LocalCluster& cluster) {
    return cluster.Generate(Uncached(RequestOf(golden_.ids, static_cast<int>(golden_.greedy.size()))));
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
  EXPECT_GT(cluster.Metric("decode-0", "runahead_kvpr_lane_seconds_total{lane=\"resident\"}"), 0);
  cluster.ExpectAllFree();
  const std::string line = absl::StrCat("request ", answer.started.request_id(), ", lease ");
  EXPECT_NE(cluster.Log().find(line), std::string::npos) << "what the lanes had for " << line;
}

// The link is so slow that whatever keeps KV from it is faster: recomputation in the first step, in which nothing is
// resident, and from then on the host lane, unless this machine is so busy that either seems slow. The first answer's
// first steps measure what is faster, so that the second one's know.
TEST_F(KvprClusterTest, ChosenByItselfNotAllIsCopiedAndTheTokensAreGoldenToo) {
  LocalCluster cluster(model_, OverALink("0.4", {}));
  for (int i = 0; i < 2; ++i) {
    const Answer answer = Ask(cluster);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.ids, golden_.greedy);
  }
  EXPECT_GT(InLane(cluster, "recomputed") + InLane(cluster, "host"), 0);
  // All but the last step have been reported at the latest when the sequence has left.
  cluster.ExpectAllFree();
  const auto steps = static_cast<double>(2 * (golden_.greedy.size() - 1));
  for (const char* series :
       {"kvpr_split_tokens", "kvpr_recompute_seconds", "kvpr_transfer_seconds", "kvpr_overlap_ratio"}) {
    const std::string name = absl::StrCat("runahead_", series);
    EXPECT_EQ(cluster.Metric("decode-0", name + "_count"), steps) << series;
    EXPECT_GT(cluster.Metric("decode-0", name + "_sum"), 0) << series;
  }
  // kvpr_link_test knows how much, on a clock that only copies move.
  EXPECT_GT(cluster.Metric("decode-0", "runahead_link_bandwidth_bytes_per_second"), 0);
  EXPECT_GT(cluster.Metric("decode-0", "runahead_kvpr_host_bytes_per_second{beside=\"nothing\"}"), 0);
  for (const char* work : {"project", "signal"}) {
    EXPECT_GT(cluster.Metric("decode-0", absl::StrCat("runahead_kvpr_layer_seconds{work=\"", work, "\"}")), 0) << work;
  }
}

// Windows are resident, the rest is copied in every step: bitwise what a device gives that has no link.
TEST_F(KvprClusterTest, WithBothLanesOffLogprobsAreThoseOfAClusterWithoutALink) {
  v1::GenerateRequest request = Uncached(RequestOf(golden_.ids, 8));
  request.mutable_sampling()->set_logprobs(20);
  const auto logprobs_of = [&](const std::vector<std::string>& arguments, bool streams) {
    LocalCluster cluster(model_, arguments);
    const Answer answer = cluster.Generate(request);
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    std::vector<std::string> logprobs;
    for (const v1::TokenLogprobs& token : answer.logprobs) logprobs.push_back(token.ShortDebugString());
    if (streams) {
      EXPECT_GT(InLane(cluster, "streamed"), 0);
      EXPECT_GT(InLane(cluster, "resident"), 0);
      EXPECT_EQ(InLane(cluster, "recomputed") + InLane(cluster, "host"), 0);
    }
    return logprobs;
  };
  const auto expected = logprobs_of({"--prefill", "2", "--dtype", "f32"}, false);
  EXPECT_EQ(expected.size(), 8u);
  EXPECT_EQ(logprobs_of(OverALink("0.4", {"--recompute", "off", "--host-lane", "off"}), true), expected);
}

TEST_F(KvprClusterTest, WithStreamedWeightsTheTokensAreGoldenAndADeadlineFreesAll) {
  LocalCluster cluster(model_, Arguments({"--decode-schedule", "throughput"}));
  const Answer answer = Ask(cluster);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids, golden_.greedy);
  // Long enough for a token, and not for all of them.
  for (absl::Duration patience = absl::Milliseconds(300);; patience *= 2) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
    const Answer late = cluster.Generate(Uncached(RequestOf(golden_.ids, 640)), &context);
    if (late.ids.empty() && patience < LocalCluster::kPatience) continue;
    EXPECT_EQ(late.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << late.ids.size() << " tokens";
    break;
  }
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
