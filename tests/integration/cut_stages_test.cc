// Every connection that a stage of a request uses cut at that stage: a control stream is resumed and loses nothing;
// what needs another connection goes on, and the way is made anew. cut_test cuts under load, between processes of a
// larger cluster.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/staged_cluster.h"
#include "tests/testing/connections.h"

namespace runahead {
namespace {

using Pair = std::pair<std::string, std::string>;

class CutStagesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status can = testing::CanCut(); !can.ok()) GTEST_SKIP() << "connections cannot be cut: " << can;
  }
};

// With the connections between workers first: a worker that the router lost closes them itself.
const std::vector<Pair> kOfChain = {{"prefill-0", "prefill-1"},
                                    {"prefill-0", "decode-0"},
                                    {"prefill-1", "decode-0"},
                                    {"router", "prefill-0"},
                                    {"router", "prefill-1"}};
const Pair kOfDecode = {"router", "decode-0"};

// What a stage uses: at reserve nothing goes over the chain's yet, and in decode nothing any more.
std::vector<Pair> UsedAt(Stage stage) {
  std::vector<Pair> pairs = {kOfDecode};
  if (stage == Stage::kPrefill || stage == Stage::kHandoff) pairs.insert(pairs.end(), kOfChain.begin(), kOfChain.end());
  return pairs;
}

void Cut(const StagedCluster& staged, const Pair& pair) {
  const absl::StatusOr<int> cut = testing::CutBetween(staged.pids_.at(pair.first), staged.pids_.at(pair.second));
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_GT(*cut, 0);
}

TEST_F(CutStagesTest, ACutLosesNothing) {
  ForEachStage([](StagedCluster& staged) {
    for (const Pair& pair : UsedAt(staged.stage_)) {
      SCOPED_TRACE(absl::StrCat(pair.first, " and ", pair.second));
      staged.Begin();
      Cut(staged, pair);
      staged.Release();
      staged.ExpectUnharmed();
      staged.ExpectOthersUnharmed();
      staged.ExpectServiceAgain();
    }
    if (staged.stage_ != Stage::kDecode) return;
    SCOPED_TRACE("all of the chain");
    staged.Begin(/*others=*/false);
    for (const Pair& pair : kOfChain) Cut(staged, pair);
    staged.ExpectUnharmed();
    staged.ExpectServiceAgain();
  });
}

TEST_F(CutStagesTest, ACutOfTheClientEndsItsRequest) {
  ForEachStage([](StagedCluster& staged) {
    staged.Begin(/*others=*/false);
    const absl::StatusOr<int> cut = testing::CutBetween(getpid(), staged.pids_.at("router"));
    ASSERT_TRUE(cut.ok()) << cut.status();
    EXPECT_GT(*cut, 0);
    staged.ExpectFailed();
    EXPECT_TRUE(Eventually([&] { return staged.cluster_.Ended("CANCELLED") >= 1; }));
    staged.Release();
    staged.ExpectServiceAgain();
  });
}

}  // namespace
}  // namespace runahead
