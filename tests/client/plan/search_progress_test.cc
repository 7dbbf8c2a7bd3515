#include "client/plan/search_progress.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(SearchProgress, TimesAreRough) {
  EXPECT_EQ(RoughTime(absl::ZeroDuration()), "0 s");
  EXPECT_EQ(RoughTime(absl::Milliseconds(1)), "1 s");
  EXPECT_EQ(RoughTime(absl::Seconds(89)), "89 s");
  EXPECT_EQ(RoughTime(absl::Seconds(90)), "2 min");
  EXPECT_EQ(RoughTime(absl::Minutes(89)), "89 min");
  EXPECT_EQ(RoughTime(absl::Minutes(135)), "2 h 15 min");
}

TEST(SearchProgress, ALineForEachEntrySaysHowItEnded) {
  MeasuredEntry found;
  found.parts = {600, 424};
  found.ttft_s = 0.123;
  found.spread_s = 0.004;
  found.partitions = 9;
  found.runs = 46;
  found.took = absl::Seconds(12);
  EXPECT_EQ(EntryLine({1024, 2}, found),
            "1024 tokens on 2 workers: 0.123 s +- 0.004 s with 600 + 424 (9 partitions, 46 runs, 12 s)");
  found.end = SearchEnd::kNoise;
  EXPECT_NE(EntryLine({1024, 2}, found).find("12 s; ended by noise)"), std::string::npos);
  found.end = SearchEnd::kStopped;
  EXPECT_NE(EntryLine({1024, 2}, found).find("12 s; ended by --budget)"), std::string::npos);
  found.parts = {1024};
  found.runs = 6;
  found.end = SearchEnd::kFinished;
  EXPECT_EQ(EntryLine({1024, 1}, found), "1024 tokens on 1 worker: 0.123 s +- 0.004 s (6 runs, 12 s)");
}

}  // namespace
}  // namespace runahead
