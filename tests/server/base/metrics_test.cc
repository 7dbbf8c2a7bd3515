#include "server/base/metrics.h"

#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/decode_metrics.h"
#include "server/base/link_metrics.h"
#include "server/base/prefill_metrics.h"
#include "server/base/router_metrics.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

// "# TYPE" lines as "name type".
std::set<std::string> Types(const MetricRegistry& registry) {
  std::set<std::string> types;
  for (const absl::string_view line : absl::StrSplit(registry.Serialize(), '\n')) {
    if (absl::StartsWith(line, "# TYPE ")) types.emplace(line.substr(7));
  }
  return types;
}

double Value(const MetricRegistry& registry, const std::string& series) {
  for (const absl::string_view line : absl::StrSplit(registry.Serialize(), '\n')) {
    double value = 0;
    if (absl::StartsWith(line, series + " ") && absl::SimpleAtod(line.substr(series.size() + 1), &value)) return value;
  }
  ADD_FAILURE() << "no series " << series;
  return -1;
}

int CountSeries(const MetricRegistry& registry, const std::string& name) {
  int count = 0;
  for (const absl::string_view line : absl::StrSplit(registry.Serialize(), '\n')) {
    if (absl::StartsWith(line, name + "{") || absl::StartsWith(line, name + " ")) ++count;
  }
  return count;
}

TEST(PromptClass, BoundsAreInclusive) {
  const struct {
    int64_t tokens;
    const char* name;
  } cases[] = {{0, "le256"},     {256, "le256"},   {257, "le1k"},   {1024, "le1k"},
               {1025, "le4k"},   {4096, "le4k"},   {4097, "le16k"}, {16384, "le16k"},
               {16385, "le64k"}, {65536, "le64k"}, {65537, "more"}, {std::numeric_limits<int64_t>::max(), "more"}};
  for (const auto& c : cases) EXPECT_EQ(PromptClass(c.tokens), c.name) << c.tokens;
}

TEST(MetricRegistry, HasProcessMetricsAndBuildInfo) {
  MetricRegistry registry("cpu");
  EXPECT_THAT(Types(registry), IsSupersetOf({"runahead_build_info gauge", "process_cpu_seconds_total counter",
                                             "process_resident_memory_bytes gauge", "process_open_fds gauge",
                                             "process_start_time_seconds gauge"}));
  EXPECT_THAT(registry.Serialize(), AllOf(HasSubstr("device=\"cpu\""), HasSubstr("version=\"")));
  EXPECT_GT(Value(registry, "process_resident_memory_bytes"), 1e6);
  EXPECT_GE(Value(registry, "process_open_fds"), 3);
  // After 2020, and not in the future.
  EXPECT_GT(Value(registry, "process_start_time_seconds"), 1577836800);
  EXPECT_LE(Value(registry, "process_start_time_seconds"), static_cast<double>(time(nullptr)) + 1);
}

TEST(MetricRegistry, TheSameNameAndLabelsAreTheSameMetric) {
  MetricRegistry registry("none");
  registry.AddCounter("x_total", "X", {{"a", "1"}}).Increment(2);
  registry.AddCounter("x_total", "X", {{"a", "1"}}).Increment(3);
  registry.AddCounter("x_total", "X", {{"a", "2"}});
  EXPECT_EQ(Value(registry, "x_total{a=\"1\"}"), 5);
  EXPECT_EQ(Value(registry, "x_total{a=\"2\"}"), 0);
}

TEST(MetricRegistry, HostileLabelValuesStayOneLine) {
  MetricRegistry registry("none");
  registry.AddCounter("x_total", "X", {{"peer", "a\"b\\c\nd"}});
  EXPECT_THAT(registry.Serialize(), HasSubstr("x_total{peer=\"a\\\"b\\\\c\\nd\"} 0"));
}

TEST(MetricRegistry, CountsFromManyThreads) {
  MetricRegistry registry("none");
  Counter& counter = registry.AddCounter("x_total", "X");
  Histogram& histogram = registry.AddHistogram("y_seconds", "Y", TokenBuckets());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) {
        counter.Increment();
        histogram.Observe(.001);
        if (k % 250 == 0) registry.Serialize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Value(registry, "x_total"), 4000);
  EXPECT_EQ(Value(registry, "y_seconds_count"), 4000);
}

TEST(RouterMetrics, DeclaresTheContractBeforeAnythingHappens) {
  MetricRegistry registry("none");
  RouterMetrics metrics(registry, "SmolLM2");
  EXPECT_THAT(Types(registry),
              IsSupersetOf(
                  {"runahead_time_to_first_token_seconds histogram", "runahead_time_per_output_token_seconds histogram",
                   "runahead_inter_token_latency_seconds histogram", "runahead_request_duration_seconds histogram",
                   "runahead_ttft_stage_seconds histogram", "runahead_cancel_to_free_seconds histogram",
                   "runahead_requests_total counter", "runahead_prompt_tokens_total counter",
                   "runahead_generated_tokens_total counter", "runahead_partition_lookups_total counter",
                   "runahead_table_reloads_total counter", "runahead_admission_rejections_total counter",
                   "runahead_requests_in_flight gauge", "runahead_queue_depth gauge", "runahead_workers gauge"}));
  EXPECT_EQ(CountSeries(registry, "runahead_time_to_first_token_seconds_count"), 6 * 16);
  EXPECT_EQ(CountSeries(registry, "runahead_ttft_stage_seconds_count"), 7 * 16);
  EXPECT_EQ(CountSeries(registry, "runahead_requests_total"), 17);
  EXPECT_EQ(CountSeries(registry, "runahead_request_duration_seconds_count"), 5);
  EXPECT_EQ(CountSeries(registry, "runahead_partition_lookups_total"), 6);
  EXPECT_EQ(CountSeries(registry, "runahead_table_reloads_total"), 2);
  EXPECT_EQ(CountSeries(registry, "runahead_workers"), 8);
  EXPECT_EQ(Value(registry, "runahead_requests_total{code=\"RESOURCE_EXHAUSTED\",model=\"SmolLM2\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_queue_depth{priority=\"normal\"}"), 0);
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
  metrics.RequestStarted();
  metrics.RequestStarted();
  metrics.RequestStarted();
  metrics.RequestFinished(absl::StatusCode::kResourceExhausted, absl::Seconds(3));
  metrics.RequestFinished(static_cast<absl::StatusCode>(99), absl::Seconds(3));
  metrics.CountPromptTokens(300);
  metrics.CountGeneratedTokens(7);
  metrics.CountPartitionLookup(PartitionLookup::kEven);
  metrics.CountPartitionLookup(PartitionLookup::kExtrapolated);
  metrics.CountTableReload(TableReload::kError);
  metrics.CountAdmissionRejection(AdmissionRejection::kQueueFull);
  metrics.SetQueueDepth(4);
  metrics.SetWorkers(WorkerRole::kDecode, WorkerState::kLost, 2);

  const std::string ttft = "runahead_time_to_first_token_seconds_sum";
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"2\",model=\"m\",prompt_class=\"le1k\"}"), .25);
  EXPECT_EQ(Value(registry, ttft + "{chain_width=\"16\",model=\"m\",prompt_class=\"le1k\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_ttft_stage_seconds_sum{chain_width=\"1\",stage=\"worker_queue\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_inter_token_latency_seconds_sum{model=\"m\"}"), .003);
  EXPECT_EQ(Value(registry, "runahead_time_per_output_token_seconds_sum{model=\"m\"}"), .004);
  EXPECT_EQ(Value(registry, "runahead_cancel_to_free_seconds_sum"), .005);
  EXPECT_EQ(Value(registry, "runahead_requests_in_flight"), 1);
  EXPECT_EQ(Value(registry, "runahead_requests_total{code=\"RESOURCE_EXHAUSTED\",model=\"m\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_requests_total{code=\"UNKNOWN\",model=\"m\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_request_duration_seconds_sum{model=\"m\",outcome=\"refused\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_request_duration_seconds_sum{model=\"m\",outcome=\"failed\"}"), 3);
  EXPECT_EQ(Value(registry, "runahead_prompt_tokens_total"), 300);
  EXPECT_EQ(Value(registry, "runahead_generated_tokens_total"), 7);
  EXPECT_EQ(Value(registry, "runahead_partition_lookups_total{result=\"even\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_partition_lookups_total{result=\"extrapolated\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_table_reloads_total{result=\"error\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_table_reloads_total{result=\"ok\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_admission_rejections_total{reason=\"queue_full\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_queue_depth{priority=\"normal\"}"), 4);
  EXPECT_EQ(Value(registry, "runahead_workers{role=\"decode\",state=\"lost\"}"), 2);
}

TEST(PrefillMetrics, EveryMethodMovesItsSeries) {
  MetricRegistry registry("cpu");
  PrefillMetrics metrics(registry);
  LinkMetrics link(registry, "prefill-1");
  EXPECT_EQ(CountSeries(registry, "runahead_prefill_wait_seconds_count"), 16);
  metrics.ObserveCompute(0, absl::Seconds(1));
  metrics.ObserveWait(15, absl::Seconds(2));
  metrics.ObserveRingStall(absl::Seconds(3));
  metrics.ObserveHandoff(absl::Seconds(4));
  metrics.CountTokens(5);
  metrics.CountInterleaved();
  metrics.CountHandoffBytes(HandoffKind::kKv, 6);
  metrics.CountHandoffRetry();
  metrics.SetBufferBytes(8);
  link.ObserveSend(9, absl::Seconds(10));
  link.ObserveReceive(11, absl::Seconds(12));

  EXPECT_EQ(Value(registry, "runahead_prefill_compute_seconds_sum{position=\"0\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_prefill_wait_seconds_sum{position=\"15\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_prefill_ring_stall_seconds_sum"), 3);
  EXPECT_EQ(Value(registry, "runahead_handoff_seconds_sum"), 4);
  EXPECT_EQ(Value(registry, "runahead_prefill_tokens_total"), 5);
  EXPECT_EQ(Value(registry, "runahead_prefill_interleaved_total"), 1);
  EXPECT_EQ(Value(registry, "runahead_handoff_bytes_total{kind=\"kv\"}"), 6);
  EXPECT_EQ(Value(registry, "runahead_handoff_bytes_total{kind=\"x\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_handoff_retries_total{cause=\"corrupt\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_prefill_buffer_bytes"), 8);
  EXPECT_EQ(Value(registry, "runahead_link_bytes_total{direction=\"send\",peer=\"prefill-1\"}"), 9);
  EXPECT_EQ(Value(registry, "runahead_link_seconds_sum{direction=\"send\",peer=\"prefill-1\"}"), 10);
  EXPECT_EQ(Value(registry, "runahead_link_bytes_total{direction=\"receive\",peer=\"prefill-1\"}"), 11);
  EXPECT_EQ(Value(registry, "runahead_link_seconds_sum{direction=\"receive\",peer=\"prefill-1\"}"), 12);
}

TEST(DecodeMetrics, EveryMethodMovesItsSeries) {
  MetricRegistry registry("cpu");
  DecodeMetrics metrics(registry);
  metrics.ObserveStep(8, absl::Milliseconds(500));
  metrics.SetKvBytes(KvTier::kDevice, 1);
  metrics.SetKvCapacityBytes(KvTier::kHost, 2);
  metrics.SetLeases(3);
  metrics.CountLeasesExpired(4);
  metrics.CountChecksumFailure();

  EXPECT_EQ(Value(registry, "runahead_decode_step_seconds_sum"), .5);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_sum"), 8);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"4\"}"), 0);
  EXPECT_EQ(Value(registry, "runahead_decode_batch_size_bucket{le=\"8\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kv_bytes{tier=\"device\"}"), 1);
  EXPECT_EQ(Value(registry, "runahead_kv_capacity_bytes{tier=\"host\"}"), 2);
  EXPECT_EQ(Value(registry, "runahead_kv_leases"), 3);
  EXPECT_EQ(Value(registry, "runahead_kv_leases_expired_total"), 4);
  EXPECT_EQ(Value(registry, "runahead_handoff_checksum_failures_total"), 1);
}

// The first cell of every row of docs/metrics.md that names a metric.
std::set<std::string> DocumentedNames() {
  std::ifstream file("docs/metrics.md");
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "| `runahead_") || absl::StartsWith(line, "| `process_")) {
      names.insert(line.substr(3, line.find('`', 3) - 3));
    }
  }
  return names;
}

TEST(Documentation, ListsWhatIsCountedAndNothingElse) {
  MetricRegistry registry("cpu");
  RouterMetrics router(registry, "m");
  PrefillMetrics prefill(registry);
  LinkMetrics link(registry, "p");
  DecodeMetrics decode(registry);
  std::set<std::string> counted;
  for (const std::string& type : Types(registry)) counted.insert(type.substr(0, type.find(' ')));
  EXPECT_EQ(DocumentedNames(), counted);
}

}  // namespace
}  // namespace runahead
