// From what is known of each request to the figures of a load. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/bench/bench_record.h"
#include "client/bench/objectives.h"
#include "client/bench/statistics.h"

namespace runahead {

// Failures of one kind: "refused", or the name of a status code.
struct FailureKind {
  std::string kind;
  int64_t count = 0;
  std::string first_message;
};

// "refused" for RESOURCE_EXHAUSTED, which is HTTP's 429, else the code's name.
std::string FailureKindOf(const absl::Status& status);

// Times in seconds. Only requests that were answered to their end count in them, and in tokens.
struct BenchSummary {
  int64_t completed = 0;
  int64_t failed = 0;
  int64_t interrupted = 0;
  std::vector<FailureKind> failures;  // the most frequent first
  double duration_s = 0;              // from the beginning to the end of the last request
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  double request_throughput = 0;  // a second, as the others
  double output_throughput = 0;
  double total_throughput = 0;
  std::optional<double> goodput;  // requests a second that met all objectives, where there are some
  Distribution ttft;
  Distribution tpot;  // of answers of several tokens: (e2e - ttft) / (tokens - 1)
  Distribution itl;   // of all answers together
  Distribution e2e;
  int64_t counted_by_events = 0;  // answers whose tokens nobody counted but us
  int64_t late = 0;               // sent kLateStart or more after their time, for which this tool is to blame
  double most_late_s = 0;         // among all that were not held
  int64_t held = 0;               // waited until fewer were under way
  double most_held_s = 0;
};

// What a timer of a busy machine may be off by, and nobody sees in an answer's times.
inline constexpr absl::Duration kLateStart = absl::Milliseconds(10);

BenchSummary SummaryOf(const std::vector<BenchRecord>& records, const Objectives& objectives);

// Of an answer of at least two tokens, in seconds; else 0.
double TpotOf(const BenchRecord& record);

}  // namespace runahead
