#include "client/bench/bench_summary.h"

#include <algorithm>
#include <utility>

namespace runahead {
namespace {

bool Any(const Objectives& objectives) {
  return objectives.ttft || objectives.tpot || objectives.e2e;
}

bool Meets(const BenchRecord& record, const Objectives& objectives) {
  return (!objectives.ttft || record.ttft <= *objectives.ttft) && (!objectives.e2e || record.e2e <= *objectives.e2e) &&
         (!objectives.tpot || absl::Seconds(TpotOf(record)) <= *objectives.tpot);
}

void AddFailure(const absl::Status& status, std::vector<FailureKind>& failures) {
  std::string kind = FailureKindOf(status);
  const auto found =
      std::find_if(failures.begin(), failures.end(), [&](const FailureKind& known) { return known.kind == kind; });
  if (found != failures.end()) {
    ++found->count;
  } else {
    failures.push_back({std::move(kind), 1, std::string(status.message())});
  }
}

// How well this tool kept the times that it planned, whatever became of the requests.
void AddStart(const BenchRecord& record, BenchSummary& summary) {
  const double late_s = absl::ToDoubleSeconds(record.late);
  if (record.held) {
    ++summary.held;
    summary.most_held_s = std::max(summary.most_held_s, late_s);
    return;
  }
  if (record.late >= kLateStart) ++summary.late;
  summary.most_late_s = std::max(summary.most_late_s, late_s);
}

// Values of answers that came to their end.
struct Latencies {
  std::vector<double> ttft, tpot, itl, e2e;

  void Add(const BenchRecord& record) {
    ttft.push_back(absl::ToDoubleSeconds(record.ttft));
    e2e.push_back(absl::ToDoubleSeconds(record.e2e));
    if (record.output_tokens > 1) tpot.push_back(TpotOf(record));
    for (const absl::Duration pause : record.itls) itl.push_back(absl::ToDoubleSeconds(pause));
  }
};

}  // namespace

std::string FailureKindOf(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? "refused" : absl::StatusCodeToString(status.code());
}

double TpotOf(const BenchRecord& record) {
  if (record.output_tokens < 2) return 0;
  return absl::ToDoubleSeconds(record.e2e - record.ttft) / static_cast<double>(record.output_tokens - 1);
}

BenchSummary SummaryOf(const std::vector<BenchRecord>& records, const Objectives& objectives) {
  BenchSummary summary;
  Latencies latencies;
  int64_t good = 0;
  for (const BenchRecord& record : records) {
    summary.duration_s = std::max(summary.duration_s, absl::ToDoubleSeconds(record.end));
    AddStart(record, summary);
    if (record.interrupted) {
      ++summary.interrupted;
    } else if (!record.status.ok()) {
      ++summary.failed;
      AddFailure(record.status, summary.failures);
    } else {
      ++summary.completed;
      latencies.Add(record);
      summary.input_tokens += record.input_tokens;
      summary.output_tokens += record.output_tokens;
      summary.cached_tokens += record.cached_tokens;
      if (record.counted_by_events) ++summary.counted_by_events;
      if (Meets(record, objectives)) ++good;
    }
  }
  std::stable_sort(summary.failures.begin(), summary.failures.end(),
                   [](const FailureKind& a, const FailureKind& b) { return a.count > b.count; });
  const auto a_second = [&](int64_t count) {
    return summary.duration_s > 0 ? static_cast<double>(count) / summary.duration_s : 0;
  };
  summary.request_throughput = a_second(summary.completed);
  summary.output_throughput = a_second(summary.output_tokens);
  summary.total_throughput = a_second(summary.input_tokens + summary.output_tokens);
  if (Any(objectives)) summary.goodput = a_second(good);
  summary.ttft = DistributionOf(std::move(latencies.ttft));
  summary.tpot = DistributionOf(std::move(latencies.tpot));
  summary.itl = DistributionOf(std::move(latencies.itl));
  summary.e2e = DistributionOf(std::move(latencies.e2e));
  return summary;
}

}  // namespace runahead
