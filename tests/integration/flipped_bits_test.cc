// A network that flips bits of what workers send each other (tests/testing/flipped_bits.cc): no answer has another
// token, and a job at most fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/integration/faults_fixture.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string PlanFile() {
  return absl::StrCat(::testing::TempDir(), "/flipped-bits-", getpid());
}

enum class Where : int64_t { kFrames = 0, kHeaders = 1, kSlices = 2 };

// The next `count` reads are hit, in all processes.
void Flip(int64_t count, Where where) {
  const std::array<int64_t, 2> plan = {count, static_cast<int64_t>(where)};
  std::fstream file(PlanFile(), std::ios::in | std::ios::out | std::ios::binary);
  file.write(reinterpret_cast<const char*>(plan.data()), sizeof(plan));
  ASSERT_TRUE(file.flush().good());
}

// How many were hit so far.
int64_t Flipped() {
  std::array<int64_t, 3> plan{};
  std::ifstream(PlanFile(), std::ios::binary).read(reinterpret_cast<char*>(plan.data()), sizeof(plan));
  return plan[2];
}

std::vector<std::string> FlippedBits() {
  const std::array<int64_t, 3> none{};
  std::ofstream(PlanFile(), std::ios::binary).write(reinterpret_cast<const char*>(none.data()), sizeof(none));
  return {absl::StrCat("LD_PRELOAD=", RUNAHEAD_FLIPPED_BITS), absl::StrCat("RUNAHEAD_FLIPPED_BITS=", PlanFile())};
}

class FlippedBitsTest : public FaultsTest {
 protected:
  FlippedBitsTest() : FaultsTest({"--prefill", "3", "--decode", "1"}, FlippedBits()) {}
  ~FlippedBitsTest() override { std::remove(PlanFile().c_str()); }

  // In prefill on all three workers for two seconds; its frames and slices are larger than what travels with a header.
  // It names a width, so it goes past what is known: the bits are those that go down such a chain.
  static v1::GenerateRequest Prompt() {
    v1::GenerateRequest request = RequestOf(SyntheticIds(1000, 1), 8);
    request.mutable_experiment()->set_width(3);
    return request;
  }
  double Sum(const std::string& metric) const {
    double sum = 0;
    for (const char* worker : {"prefill-0", "prefill-1", "prefill-2"}) sum += cluster_.Sum(worker, metric);
    return sum;
  }

  // Of such things none comes whole while the request runs.
  Answer LosesAll(Where where) {
    Flip(1'000'000'000, where);
    const Answer lost = cluster_.Generate(Prompt());
    Flip(0, where);
    EXPECT_EQ(lost.status.error_code(), grpc::StatusCode::UNAVAILABLE) << lost.status.error_message();
    return lost;
  }
};

constexpr char kDamaged[] = "runahead_link_checksum_failures_total", kAgain[] = "runahead_link_retries_total";

TEST_F(FlippedBitsTest, AFlippedBitOfKvIsSentAgainAndNoTokenIsAnother) {
  const std::vector<int32_t> ids = cluster_.GenerateEventually(Prompt()).ids;
  ASSERT_FALSE(ids.empty());
  for (int i = 1; i <= 8; ++i) {  // those of one frame, or of several, on the first link or on the second
    Flip(1, Where::kFrames);
    ExpectUnharmed(cluster_.Generate(Prompt()), ids);
    ASSERT_EQ(Flipped(), i) << "the test shows nothing";
  }
  EXPECT_GE(Sum(kDamaged), 8);
  EXPECT_EQ(Sum(kAgain), Sum(kDamaged));
  EXPECT_THAT(cluster_.Log(), Not(HasSubstr("ends:"))) << "no connection was lost by it";
}

TEST_F(FlippedBitsTest, AFlippedBitOfASliceIsSentAgainAndNoTokenIsAnother) {
  const std::vector<int32_t> ids = cluster_.GenerateEventually(Prompt()).ids;
  ASSERT_FALSE(ids.empty());
  for (int i = 1; i <= 4; ++i) {
    Flip(1, Where::kSlices);
    ExpectUnharmed(cluster_.Generate(Prompt()), ids);
    ASSERT_EQ(Flipped(), i) << "the test shows nothing";
  }
  EXPECT_EQ(cluster_.Metric("decode-0", "runahead_handoff_checksum_failures_total"), 4);
  EXPECT_EQ(Sum("runahead_handoff_retries_total"), 4);
  EXPECT_EQ(Sum(kDamaged), 0);
  EXPECT_THAT(cluster_.Log(), Not(HasSubstr("ends:"))) << "no connection was lost by it";
}

TEST_F(FlippedBitsTest, ASliceThatNeverComesWholeEndsItsRequest) {
  const std::vector<int32_t> ids = cluster_.GenerateEventually(Prompt()).ids;
  const Answer lost = LosesAll(Where::kSlices);
  EXPECT_LE(lost.ids.size(), 1u) << "the first token needs no hand-off";
  EXPECT_THAT(cluster_.Log(), HasSubstr("arrived corrupt 3 times"));
  ExpectUnharmed(cluster_.GenerateEventually(Prompt()), ids);
  EXPECT_THAT(cluster_.Log(), Not(HasSubstr("ends:")));
  cluster_.ExpectAllFree();
}

TEST_F(FlippedBitsTest, AFrameThatNeverComesWholeEndsItsJobAndNotTheEdge) {
  const std::vector<int32_t> ids = cluster_.GenerateEventually(Prompt()).ids;
  const Answer lost = LosesAll(Where::kFrames);
  EXPECT_TRUE(lost.ids.empty());
  EXPECT_THAT(cluster_.Log(), HasSubstr("came damaged over the link, "));
  ExpectUnharmed(cluster_.Generate(Prompt()), ids);  // at once: the line is whole
  EXPECT_THAT(cluster_.Log(), Not(HasSubstr("ends:")));
  cluster_.ExpectAllFree();
}

TEST_F(FlippedBitsTest, AFlippedBitOfAHeaderEndsTheConnectionAtMost) {
  const std::vector<int32_t> ids = cluster_.GenerateEventually(Prompt()).ids;
  for (int i = 1; i <= 6; ++i) {
    Flip(1, Where::kHeaders);
    const Answer answer = cluster_.Generate(Prompt());
    if (answer.status.ok()) {
      EXPECT_EQ(answer.ids, ids);
    } else {
      EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE) << answer.status.error_message();
      for (size_t at = 0; at < answer.ids.size(); ++at) EXPECT_EQ(answer.ids[at], ids[at]);
    }
    ASSERT_GE(Flipped(), i) << "the test shows nothing";
    EXPECT_EQ(cluster_.GenerateEventually(Prompt()).ids, ids);
  }
  ExpectServiceAgain();
}

}  // namespace
}  // namespace runahead
