#include "client/bench/bench_summary.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::SizeIs;

// An answer of three messages of a token: first after `ttft_ms`, then every `itl_ms`.
BenchRecord Answered(int ttft_ms, int itl_ms) {
  BenchRecord record;
  record.ttft = absl::Milliseconds(ttft_ms);
  record.itls.assign(2, absl::Milliseconds(itl_ms));
  record.e2e = record.ttft + 2 * absl::Milliseconds(itl_ms);
  record.end = absl::Seconds(2);
  record.input_tokens = 100;
  record.output_tokens = 3;
  return record;
}

BenchRecord Failed(const absl::Status& status) {
  BenchRecord record = Answered(1'000'000, 1'000'000);
  record.status = status;
  record.end = absl::Seconds(4);
  return record;
}

TEST(BenchSummary, FiguresAreOfAnswersThatCameToTheirEnd) {
  BenchRecord interrupted = Failed(absl::CancelledError(""));
  interrupted.interrupted = true;
  const BenchSummary summary =
      SummaryOf({Answered(100, 10), Failed(absl::UnavailableError("gone")), Answered(200, 20), interrupted}, {});
  EXPECT_EQ(summary.completed, 2);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.interrupted, 1);
  EXPECT_DOUBLE_EQ(summary.duration_s, 4);  // a failed one takes time, too
  EXPECT_EQ(summary.input_tokens, 200);
  EXPECT_EQ(summary.output_tokens, 6);
  EXPECT_DOUBLE_EQ(summary.request_throughput, 0.5);
  EXPECT_DOUBLE_EQ(summary.output_throughput, 1.5);
  EXPECT_DOUBLE_EQ(summary.total_throughput, 51.5);
  EXPECT_NEAR(summary.ttft.mean, 0.15, 1e-9);
  EXPECT_NEAR(summary.tpot.mean, 0.015, 1e-9);
  EXPECT_NEAR(summary.itl.mean, 0.015, 1e-9);
  EXPECT_NEAR(summary.e2e.mean, 0.18, 1e-9);
  EXPECT_NEAR(summary.ttft.p99, 0.199, 1e-9);
  EXPECT_FALSE(summary.goodput.has_value());
}

TEST(BenchSummary, TpotIsOfTokensBehindTheFirst) {
  BenchRecord several = Answered(100, 30);  // 60 ms for the rest
  several.output_tokens = 7;                // some messages had more than one
  EXPECT_NEAR(TpotOf(several), 0.010, 1e-9);
  BenchRecord one = Answered(100, 30);
  one.itls.clear();
  one.e2e = one.ttft;
  one.output_tokens = 1;
  const BenchSummary summary = SummaryOf({several, one}, {});
  EXPECT_NEAR(summary.tpot.mean, 0.010, 1e-9) << "an answer of one token has none";
  EXPECT_NEAR(summary.itl.mean, 0.030, 1e-9);
}

TEST(BenchSummary, GoodputCountsWhatKeptAllObjectives) {
  const std::vector<BenchRecord> records = {Answered(100, 10), Answered(200, 10), Answered(100, 50)};
  const Objectives both = {.ttft = absl::Milliseconds(150), .tpot = absl::Milliseconds(20)};
  EXPECT_EQ(SummaryOf(records, both).goodput, 0.5);
  EXPECT_EQ(SummaryOf(records, {.tpot = absl::Milliseconds(20)}).goodput, 1);
  EXPECT_EQ(SummaryOf(records, {.e2e = absl::Milliseconds(220)}).goodput, 1.5);
  EXPECT_EQ(SummaryOf(records, {.e2e = absl::Milliseconds(1)}).goodput, 0);
}

TEST(BenchSummary, FailuresAreCountedByKind) {
  const BenchSummary summary =
      SummaryOf({Failed(absl::UnavailableError("gone")), Failed(absl::ResourceExhaustedError("full")),
                 Failed(absl::ResourceExhaustedError("still full"))},
                {});
  ASSERT_THAT(summary.failures, SizeIs(2));
  EXPECT_EQ(summary.failures[0].kind, "refused");
  EXPECT_EQ(summary.failures[0].count, 2);
  EXPECT_EQ(summary.failures[0].first_message, "full");
  EXPECT_EQ(summary.failures[1].kind, "UNAVAILABLE");
  EXPECT_EQ(summary.completed, 0);
  EXPECT_EQ(summary.ttft.mean, 0);
}

TEST(BenchSummary, LateAndHeldStartsAreToldApart) {
  BenchRecord late = Answered(1, 1), held = Answered(1, 1), nearly = Answered(1, 1);
  late.late = absl::Milliseconds(30);
  held.late = absl::Milliseconds(70);
  held.held = true;
  nearly.late = absl::Milliseconds(2);
  const BenchSummary summary = SummaryOf({late, held, nearly}, {});
  EXPECT_EQ(summary.late, 1);
  EXPECT_DOUBLE_EQ(summary.most_late_s, 0.030);
  EXPECT_EQ(summary.held, 1);
  EXPECT_DOUBLE_EQ(summary.most_held_s, 0.070);
}

}  // namespace
}  // namespace runahead
