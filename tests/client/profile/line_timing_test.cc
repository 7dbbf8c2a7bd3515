#include "client/profile/line_timing.h"

#include <map>
#include <numeric>

#include "absl/strings/str_join.h"
#include "client/profile/profile_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/partition/chain_simulator.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A line whose times the simulator makes; a run takes as long on the fake clock.
class LineTimingTest : public ::testing::Test {
 protected:
  LineTimingTest() {
    truth_.layers = 30;
    truth_.kv_bytes_per_token = 23040;
    truth_.fixed_s = 0.02;
    truth_.linear_s_per_token = 1e-3;
    truth_.attention_s_per_token_pair = 2e-7;
    truth_.causal_skip = true;
    truth_.receive_ahead_layers = kRunaheadReceiveAhead;
    truth_.links[0] = {0, 1e7};
    options_.workers = 2;
    options_.longest = 8191;
    options_.budget = absl::Hours(1);
  }

  absl::StatusOr<LineTimes> Run() {
    return TimeLine(
        options_,
        [this](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
          ran_.push_back(absl::StrJoin(parts, "+"));
          if (static_cast<int>(ran_.size()) == fails_at_) return failure_;
          const double seconds = SimulateChain(truth_, Schedule::kKvr, parts)->ttft_s;
          clock_.Advance(absl::Seconds(seconds));
          // One run in seven is disturbed.
          return ran_.size() % 7 == 0 ? 3 * seconds : seconds;
        },
        clock_,
        [this](const Probe&, int round, absl::Duration left) {
          EXPECT_GE(left, absl::ZeroDuration());
          rounds_.push_back(round);
        });
  }
  absl::Duration took() const { return clock_.Now() - absl::UnixEpoch(); }
  static int64_t Longest(const LineTimes& times) {
    int64_t longest = 0;
    for (const TimedProbe& timed : times.probes) longest = std::max(longest, timed.probe.tokens);
    return longest;
  }

  CostModel truth_;
  LineTimingOptions options_;
  testing::FakeClock clock_;
  std::vector<std::string> ran_;
  std::vector<int> rounds_;
  int fails_at_ = 0;
  absl::Status failure_ = absl::CancelledError("interrupted");
};

TEST_F(LineTimingTest, LengthsWarmUpAndRoundsAreInterleaved) {
  options_.tokens = {100, 200};
  options_.repeats = 2;
  const auto times = Run();
  ASSERT_TRUE(times.ok()) << times.status();
  const std::vector<std::string> round = {"100", "200", "1+199", "99+1", "199+1", "100+100"};
  std::vector<std::string> all = {"100", "200"};
  for (int i = 0; i < 2; ++i) all.insert(all.end(), round.begin(), round.end());
  EXPECT_EQ(ran_, all);
  EXPECT_THAT(rounds_, ElementsAre(0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2));
  EXPECT_EQ(times->rounds, 2);
  EXPECT_EQ(times->runs, 14);
  EXPECT_EQ(times->probes.size(), round.size());
}

TEST_F(LineTimingTest, TheProfileOfALineIsItsTruth) {
  const auto times = Run();
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->rounds, 5);
  EXPECT_EQ(Longest(*times), 8191);
  CostModel start;
  start.layers = 30;
  start.kv_bytes_per_token = 23040;
  const auto profile = ProfileLine(start, times->probes, 2);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_NEAR(profile->fit.model.linear_s_per_token, 1e-3, 1e-6);
  EXPECT_NEAR(profile->fit.model.links[0].bytes_per_s, 1e7, 2e5);

  const ProfiledLine line{"some-model", "f32", {"a", "b"}, "2026-01-31"};
  EXPECT_THAT(ProfileText(line, *times, *profile), HasSubstr("link a to b: 0.08 gigabits a second; latency at most "));
  EXPECT_THAT(ProfileText(line, *times, *profile), HasSubstr("times as long as a: a 1, b 1\n"));
  EXPECT_THAT(ProfileComments(line, *times, *profile)[0], "some-model, f32, on a, b; 2026-01-31");
}

TEST_F(LineTimingTest, OneOutlierOfFiveIsNoNoise) {
  options_.tokens = {64};
  options_.workers = 1;
  ran_.resize(3);  // after the warm-up, the third of five is the seventh of all, which is disturbed
  const auto times = Run();
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->runs, 6);
  EXPECT_EQ(times->probes[0].noise_s, 0);
  EXPECT_DOUBLE_EQ(times->probes[0].seconds, SimulateChain(truth_, Schedule::kKvr, std::vector<int64_t>{64})->ttft_s);
}

TEST_F(LineTimingTest, TheBudgetEndsLengthsAndRounds) {
  options_.budget = absl::Seconds(60);
  const auto times = Run();
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_LT(Longest(*times), 8191);
  EXPECT_GE(Longest(*times), 1024) << "five lengths at least";
  EXPECT_GE(times->rounds, 3);
  EXPECT_LE(took(), options_.budget);
}

TEST_F(LineTimingTest, ATinyBudgetIsOneRoundOfFiveLengths) {
  options_.budget = absl::Milliseconds(1);
  const auto times = Run();
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->rounds, 1);
  EXPECT_EQ(Longest(*times), 1024);
  for (const TimedProbe& timed : times->probes) EXPECT_GT(timed.seconds, 0);
  const auto profile = ProfileLine(truth_, times->probes, 2);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_THAT(ProfileText({"m", "f32", {"a", "b"}, ""}, *times, *profile), HasSubstr("give more --budget"));
}

TEST_F(LineTimingTest, LengthsEndWhereTheWorkersMemoryDoes) {
  failure_ = absl::OutOfRangeError("prompt: 2048 tokens; the memory of the prefill workers holds at most 2000");
  fails_at_ = 6;  // warming up: 64, 128, 256, 512, 1024, 2048
  const auto times = Run();
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(Longest(*times), 1024);
  ran_.clear();
  options_.tokens = {64, 128, 256, 512, 1024, 2048};  // asked for: the user wants to know
  EXPECT_TRUE(absl::IsOutOfRange(Run().status()));
}

TEST_F(LineTimingTest, AnErrorOfARunEndsIt) {
  for (const int at : {1, 20}) {
    ran_.clear();
    fails_at_ = at;
    EXPECT_TRUE(absl::IsCancelled(Run().status()));
    EXPECT_EQ(static_cast<int>(ran_.size()), at);
  }
}

}  // namespace
}  // namespace runahead
