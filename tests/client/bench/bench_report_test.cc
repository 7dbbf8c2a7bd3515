#include "client/bench/bench_report.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

struct Load {
  BenchSettings settings = {.door = "127.0.0.1:7000",
                            .model = "m",
                            .date = "2026-01-02 03:04:05",
                            .prompts = "of 100 made tokens",
                            .seed = 42,
                            .rate = std::numeric_limits<double>::infinity(),
                            .concurrency = 8,
                            .warmup = 1,
                            .requests = 2};
  LoadOutcome outcome;
  BenchSummary summary() const { return SummaryOf(outcome.records, settings.objectives); }
  std::string text() const { return BenchText(settings, outcome, summary()); }
  Json json() const { return Json::parse(BenchJson(settings, outcome, summary())); }
};

// One that was answered, and one that was refused.
Load Two() {
  Load load;
  BenchRecord good;
  good.ttft = absl::Milliseconds(125);
  good.itls = {absl::Milliseconds(10), absl::Milliseconds(30)};
  good.e2e = absl::Milliseconds(165);
  good.end = absl::Seconds(2);
  good.input_tokens = 100;
  good.output_tokens = 3;
  BenchRecord refused;
  refused.status = absl::ResourceExhaustedError("full\nhouse");
  refused.start = absl::Milliseconds(250);
  refused.end = absl::Seconds(1);
  load.outcome = {{good, refused}, 0, 2};
  return load;
}

TEST(BenchReport, TheTableIsThatOfVllm) {
  EXPECT_EQ(Two().text(),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     1\n"
            "Failed requests:                         1\n"
            "Maximum request concurrency:             8\n"
            "Benchmark duration (s):                  2.00\n"
            "Total input tokens:                      100\n"
            "Total generated tokens:                  3\n"
            "Request throughput (req/s):              0.50\n"
            "Output token throughput (tok/s):         1.50\n"
            "Peak concurrent requests:                2\n"
            "Total Token throughput (tok/s):          51.50\n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          125.00\n"
            "Median TTFT (ms):                        125.00\n"
            "Std TTFT (ms):                           0.00\n"
            "P90 TTFT (ms):                           125.00\n"
            "P95 TTFT (ms):                           125.00\n"
            "P99 TTFT (ms):                           125.00\n"
            "-----Time per Output Token (excl. 1st token)------\n"
            "Mean TPOT (ms):                          20.00\n"
            "Median TPOT (ms):                        20.00\n"
            "Std TPOT (ms):                           0.00\n"
            "P90 TPOT (ms):                           20.00\n"
            "P95 TPOT (ms):                           20.00\n"
            "P99 TPOT (ms):                           20.00\n"
            "---------------Inter-token Latency----------------\n"
            "Mean ITL (ms):                           20.00\n"
            "Median ITL (ms):                         20.00\n"
            "Std ITL (ms):                            10.00\n"
            "P90 ITL (ms):                            28.00\n"
            "P95 ITL (ms):                            29.00\n"
            "P99 ITL (ms):                            29.80\n"
            "----------------End-to-end Latency----------------\n"
            "Mean E2EL (ms):                          165.00\n"
            "Median E2EL (ms):                        165.00\n"
            "Std E2EL (ms):                           0.00\n"
            "P90 E2EL (ms):                           165.00\n"
            "P95 E2EL (ms):                           165.00\n"
            "P99 E2EL (ms):                           165.00\n"
            "==================================================\n"
            "failed, refused: 1; the first: full\\nhouse\n");
}

TEST(BenchReport, WhatWouldFlatterOrMisleadIsSaid) {
  Load load = Two();
  load.settings.rate = 4;
  load.settings.objectives.ttft = absl::Seconds(1);
  load.outcome.unsent = 7;
  load.outcome.records[0].counted_by_events = true;
  load.outcome.records[0].cached_tokens = 64;
  load.outcome.records[0].late = absl::Milliseconds(35);
  load.outcome.records[1].late = absl::Milliseconds(80);
  load.outcome.records[1].held = true;
  load.outcome.records[1].interrupted = true;
  const std::string text = load.text();
  EXPECT_THAT(text, HasSubstr("Interrupted requests:                    1\n"));
  EXPECT_THAT(text, HasSubstr("Requests not sent:                       7\n"));
  EXPECT_THAT(text, HasSubstr("Request rate configured (RPS):           4.00\n"));
  EXPECT_THAT(text, HasSubstr("Cached input tokens:                     64\n"));
  EXPECT_THAT(text, HasSubstr("Request goodput (req/s):                 0.50\n"));
  EXPECT_THAT(text, HasSubstr("1 answers came without usage"));
  EXPECT_THAT(text, HasSubstr("LATE STARTS: 1 requests were sent more than 10 ms behind their time, 35.00 ms at most"));
  EXPECT_THAT(text, HasSubstr("1 requests waited for one of the 8 under way to end, 80.00 ms at most"));
  EXPECT_THAT(Two().text(), Not(HasSubstr("LATE")));
}

TEST(BenchReport, TheObjectHasSettingsFiguresAndEachRequest) {
  const Json json = Two().json();
  EXPECT_EQ(json["door"], "127.0.0.1:7000");
  EXPECT_EQ(json["model_id"], "m");
  EXPECT_EQ(json["seed"], 42);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["max_concurrency"], 8);
  EXPECT_EQ(json["completed"], 1);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["failures"][0]["kind"], "refused");
  EXPECT_EQ(json["total_output_tokens"], 3);
  EXPECT_DOUBLE_EQ(json["mean_ttft_ms"], 125);
  EXPECT_DOUBLE_EQ(json["median_itl_ms"], 20);
  EXPECT_DOUBLE_EQ(json["p99_e2el_ms"], 165);
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_EQ(json["ttfts"], Json::parse("[0.125, 0.0]"));
  EXPECT_EQ(json["itls"], Json::parse("[[0.01, 0.03], []]"));
  EXPECT_EQ(json["start_times"], Json::parse("[0.0, 0.25]"));
  EXPECT_EQ(json["input_lens"], Json::parse("[100, 0]"));
  EXPECT_EQ(json["output_lens"], Json::parse("[3, 0]"));
  EXPECT_EQ(json["errors"], Json::parse(R"(["", "refused: full\\nhouse"])"));
}

TEST(BenchReport, OfNothingThereAreNoNumbersThatAreNone) {
  Load load;
  EXPECT_THAT(load.text(), Not(HasSubstr("nan")));
  EXPECT_EQ(load.json()["request_throughput"], 0);
  EXPECT_EQ(load.json()["mean_tpot_ms"], 0);
}

}  // namespace
}  // namespace runahead
