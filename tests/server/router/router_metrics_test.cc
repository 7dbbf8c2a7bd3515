#include "server/router/router_metrics.h"

#include <cstdio>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::runahead::testing::CountSeries;
using ::runahead::testing::Types;
using ::runahead::testing::Value;
using ::testing::IsSupersetOf;

TEST(PromptClass, BoundsAreInclusive) {
  const struct {
    int64_t tokens;
    const char* name;
  } cases[] = {{0, "le256"},     {256, "le256"},   {257, "le1k"},   {1024, "le1k"},
               {1025, "le4k"},   {4096, "le4k"},   {4097, "le16k"}, {16384, "le16k"},
               {16385, "le64k"}, {65536, "le64k"}, {65537, "more"}, {std::numeric_limits<int64_t>::max(), "more"}};
  for (const auto& c : cases) EXPECT_EQ(PromptClassName(PromptClassIndex(c.tokens)), c.name) << c.tokens;
}

TEST(RouterMetrics, DeclaresTheContractBeforeAnythingHappens) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "SmolLM2");
  EXPECT_THAT(Types(registry), IsSupersetOf({"runahead_time_to_first_token_seconds histogram",
                                             "runahead_time_per_output_token_seconds histogram",
                                             "runahead_inter_token_latency_seconds histogram",
                                             "runahead_request_duration_seconds histogram",
                                             "runahead_ttft_stage_seconds histogram",
                                             "runahead_cancel_to_free_seconds histogram",
                                             "runahead_requests_total counter",
                                             "runahead_prompt_tokens_total counter",
                                             "runahead_generated_tokens_total counter",
                                             "runahead_expected_output_tokens_total counter",
                                             "runahead_partition_lookups_total counter",
                                             "runahead_table_reloads_total counter",
                                             "runahead_admission_rejections_total counter",
                                             "runahead_failovers_total counter",
                                             "runahead_overtaken_requests_total counter",
                                             "runahead_queue_requests gauge",
                                             "runahead_queue_seconds_total counter",
                                             "runahead_queue_waits_total counter",
                                             "runahead_first_gap_seconds histogram",
                                             "runahead_edges gauge",
                                             "runahead_requests_in_flight gauge",
                                             "runahead_queue_depth gauge",
                                             "runahead_workers gauge",
                                             "runahead_workers_suspected gauge",
                                             "runahead_continuations_total counter",
                                             "runahead_beginnings_awaited_total counter",
                                             "runahead_known_prompt_tokens_total counter",
                                             "runahead_known_index_tokens gauge",
                                             "runahead_known_index_bytes gauge",
                                             "runahead_known_seconds_saved_total counter",
                                             "runahead_known_seconds_lost_total counter",
                                             "runahead_retry_budget gauge"}));
  EXPECT_EQ(CountSeries(registry, "runahead_time_to_first_token_seconds_count"), 3 * 2);
  EXPECT_EQ(CountSeries(registry, "runahead_ttft_stage_seconds_count"), 7 * 2);
  EXPECT_EQ(CountSeries(registry, "runahead_requests_total"), 17);
  EXPECT_EQ(CountSeries(registry, "runahead_request_duration_seconds_count"), 5);
  EXPECT_EQ(CountSeries(registry, "runahead_partition_lookups_total"), 6);
  EXPECT_EQ(CountSeries(registry, "runahead_table_reloads_total"), 2);
  EXPECT_EQ(CountSeries(registry, "runahead_workers"), 12);
  EXPECT_EQ(CountSeries(registry, "runahead_continuations_total"), 4);
  EXPECT_EQ(CountSeries(registry, "runahead_known_seconds_saved_total"), 2);
  EXPECT_EQ(Value(registry, "runahead_requests_total{code=\"RESOURCE_EXHAUSTED\",model=\"SmolLM2\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_queue_depth{priority=\"normal\"}"), 0);
}

TEST(RouterMetrics, WhatAKnownBeginningSavedAndLostStandsApart) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "m");
  const auto saved = [&registry](const char* as) {
    return Value(registry, absl::StrCat("runahead_known_seconds_saved_total{as=\"", as, "\"}"));
  };
  metrics.CountSavedByKnown(absl::Seconds(3), absl::Seconds(2));
  metrics.CountSavedByKnown(absl::Seconds(1), absl::Seconds(-4));
  EXPECT_EQ(saved("predicted"), 4);
  EXPECT_EQ(saved("measured"), 2);
  EXPECT_EQ(Value(registry, "runahead_known_seconds_lost_total"), 4);
}

TEST(RouterMetrics, WorkersBeyondThe64thShareASeriesOfSlots) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "m");
  for (int i = 0; i < 66; ++i) metrics.SetSlots("decode-" + std::to_string(i), {i, 1, 2});
  EXPECT_EQ(Value(registry, "runahead_decode_slots{state=\"running\",worker=\"decode-63\"}"), 63);
  EXPECT_EQ(Value(registry, "runahead_decode_slots{state=\"running\",worker=\"other\"}"), 64 + 65);
  EXPECT_EQ(Value(registry, "runahead_decode_slots{state=\"free\",worker=\"other\"}"), 4);
  metrics.SetSlots("decode-65", {});
  EXPECT_EQ(Value(registry, "runahead_decode_slots{state=\"running\",worker=\"other\"}"), 64);
  EXPECT_EQ(CountSeries(registry, "runahead_decode_slots"), 65 * 4);
}

TEST(RouterMetrics, AContinuationHasNoChain) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "m");
  const std::string ttft = "runahead_time_to_first_token_seconds_count";
  metrics.ChainPlanned(300, 0);
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"0\",model=\"m\",prompt_class=\"le1k\"}"), 0);
  metrics.ObserveTimeToFirstToken(300, 0, absl::Seconds(1));
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"0\",model=\"m\",prompt_class=\"le1k\"}"), 1);
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"1\",model=\"m\",prompt_class=\"le1k\"}"), 0);
}

// What a chain's requests count is there before they have anything to count: rate() needs a zero to begin with.
TEST(RouterMetrics, AWidthAppearsWhenAChainOfItIsPlanned) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "m");
  const std::string wide = "{chain_width=\"3\",model=\"m\",prompt_class=\"le1k\"}";
  const std::string ttft = "runahead_time_to_first_token_seconds";
  metrics.ChainPlanned(300, 3);
  EXPECT_EQ(Value(registry, ttft + "_count" + wide), 0);
  EXPECT_EQ(CountSeries(registry, ttft + "_count"), 6 + 1) << "of its class alone";
  EXPECT_EQ(CountSeries(registry, "runahead_ttft_stage_seconds_count"), 14 + 7);
  EXPECT_EQ(Value(registry, "runahead_ttft_stage_seconds_count{chain_width=\"3\",stage=\"prefill\"}"), 0);
  metrics.ObserveTimeToFirstToken(300, 3, absl::Seconds(78));
  EXPECT_EQ(Value(registry, ttft + "_count" + wide), 1);
  metrics.ChainPlanned(300, 3);
  metrics.ChainPlanned(5, 1);
  EXPECT_EQ(Value(registry, ttft + "_count" + wide), 1) << "planning another changes nothing";
  EXPECT_EQ(CountSeries(registry, ttft + "_count"), 6 + 1);
}

TEST(RouterMetrics, AClassOfLongPromptsAppearsWhenOneIsPlanned) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "m");
  const std::string ttft = "runahead_time_to_first_token_seconds_count";
  metrics.ChainPlanned(100'000, 1);
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"1\",model=\"m\",prompt_class=\"more\"}"), 0);
  EXPECT_EQ(CountSeries(registry, ttft), 6 + 1);
}

TEST(RouterMetrics, EveryMethodMovesItsSeries) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "m");
  metrics.ObserveTimeToFirstToken(300, 2, absl::Milliseconds(250));
  metrics.ObserveTimeToFirstToken(300, 40, absl::Seconds(1));
  metrics.ObserveTtftStage(TtftStage::kWorkerQueue, 1, absl::Seconds(2));
  metrics.ObserveInterTokenLatency(absl::Milliseconds(3));
  metrics.ObserveTimePerOutputToken(absl::Milliseconds(4));
  metrics.ObserveCancelToFree(absl::Milliseconds(5));
  metrics.CallBegan();
  metrics.CallBegan();
  metrics.CallBegan();
  metrics.RequestFinished(absl::StatusCode::kResourceExhausted, absl::Seconds(3));
  metrics.RequestFinished(static_cast<absl::StatusCode>(99), absl::Seconds(3));
  metrics.CallEnded();
  metrics.CountPromptTokens(300);
  metrics.CountGeneratedTokens(7);
  metrics.CountExpectedOutput(1024);
  metrics.CountPartitionLookup(PartitionLookup::kEven);
  metrics.CountPartitionLookup(PartitionLookup::kExtrapolated);
  metrics.CountTableReload(TableReload::kError);
  metrics.CountAdmissionRejection(AdmissionRejection::kQueueFull);
  metrics.SetQueue({2, 0, 3, 0, 0}, 1);
  metrics.ObserveQueue(QueueCause::kSlot, absl::Seconds(2));
  metrics.ObserveQueue(QueueCause::kSlot, absl::Seconds(1));
  metrics.ObserveFirstGap(absl::Seconds(6));
  metrics.SetWorkers(WorkerRole::kDecode, WorkerState::kLost, 2);
  metrics.SetEdges({3, 2, 1});

  const std::string ttft = "runahead_time_to_first_token_seconds_sum";
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"2\",model=\"m\",prompt_class=\"le1k\"}"), .25);
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"16\",model=\"m\",prompt_class=\"le1k\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_ttft_stage_seconds_sum{chain_width=\"1\",stage=\"worker_queue\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_inter_token_latency_seconds_sum{model=\"m\"}"), .003);
  EXPECT_EQ(Value(registry, "runahead_time_per_output_token_seconds_sum{model=\"m\"}"), .004);
  EXPECT_EQ(Value(registry, "runahead_cancel_to_free_seconds_sum"), .005);
  EXPECT_EQ(Value(registry, "runahead_requests_in_flight"), 2);
  EXPECT_EQ(Value(registry, "runahead_requests_total{code=\"RESOURCE_EXHAUSTED\",model=\"m\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_requests_total{code=\"UNKNOWN\",model=\"m\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_request_duration_seconds_sum{model=\"m\",outcome=\"refused\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_request_duration_seconds_sum{model=\"m\",outcome=\"failed\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_prompt_tokens_total"), 300);
  EXPECT_EQ(Value(registry, "runahead_generated_tokens_total"), 7);
  EXPECT_EQ(Value(registry, "runahead_expected_output_tokens_total"), 1024);
  EXPECT_EQ(Value(registry, "runahead_partition_lookups_total{result=\"even\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_partition_lookups_total{result=\"extrapolated\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_table_reloads_total{result=\"error\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_table_reloads_total{result=\"ok\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_admission_rejections_total{reason=\"queue_full\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_queue_depth{priority=\"normal\"}"), 4);
  EXPECT_EQ(Value(registry, "runahead_queue_requests{cause=\"session\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_queue_depth{priority=\"low\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_queue_requests{cause=\"slot\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_queue_seconds_total{cause=\"slot\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_queue_waits_total{cause=\"slot\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_first_gap_seconds_sum{model=\"m\"}"), 6);
  EXPECT_EQ(Value(registry, "runahead_workers{role=\"decode\",state=\"lost\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_edges{state=\"opening\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_edges{state=\"up\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_edges{state=\"broken\"}"), 1);
}

}  // namespace
}  // namespace runahead
