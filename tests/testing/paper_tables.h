// KV-Runahead's tables (arXiv 2405.05329) for Llama-7B on A100s in FP16, and what our planner says of them: the figures
// of docs/planning.md, which the library and the program are both held to.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/partition/cost_fit.h"
#include "scheduler/partition/cost_model.h"
#include "scheduler/partition/partition_table.h"

namespace runahead::testing {

// Seconds over links of 300 GB/s, on 4 and 8 GPUs. Lengths in units of 1024 tokens.
struct PaperRow {
  int64_t k = 0;
  double tsp4 = 0, kvr4 = 0, tsp8 = 0, kvr8 = 0;
};
inline constexpr PaperRow kPaperRows[] = {{1, 0.107, 0.097, 0.117, 0.098}, {2, 0.111, 0.100, 0.117, 0.103},
                                          {4, 0.20, 0.17, 0.12, 0.11},     {8, 0.54, 0.41, 0.30, 0.22},
                                          {12, 1.06, 0.76, 0.57, 0.41},    {16, 1.76, 1.24, 0.92, 0.65}};

// The single GPU, and with links of 10 GB/s two and four.
struct PaperSlowLinkRow {
  int64_t k = 0;
  double one = 0, two = 0, four = 0;
};
inline constexpr PaperSlowLinkRow kPaperSlowLinkRows[] = {
    {1, 0.10, 0.10, 0.10}, {2, 0.24, 0.16, 0.19}, {4, 0.65, 0.38, 0.36}, {8, 1.95, 0.99, 0.72}, {12, 3.95, 1.82, 1.15}};

// Table 3: over links of 10 and of 1 GB/s, on two and on four GPUs, at 1k, 2k, 4k, 8k and 12k. Beside the paper's
// seconds what our planner predicts of them, from TSP's columns over 300 GB/s alone, by a thorough search: for a chain
// that receives one layer ahead, as the paper's, and two, as ours.
inline constexpr int64_t kPaperTable3Thousands[] = {1, 2, 4, 8, 12};
struct PaperTable3Row {
  double link_bytes_per_s = 0;
  int width = 0;
  std::array<double, 5> paper = {};
  std::array<double, 5> one_ahead = {};
  std::array<double, 5> two_ahead = {};
};
inline constexpr PaperTable3Row kPaperTable3[] = {
    {10e9, 2, {0.10, 0.16, 0.38, 0.99, 1.82}, {0.10, 0.16, 0.37, 0.99, 1.87}, {0.10, 0.14, 0.32, 0.89, 1.72}},
    {10e9, 4, {0.10, 0.19, 0.36, 0.72, 1.15}, {0.10, 0.16, 0.28, 0.62, 1.08}, {0.10, 0.11, 0.18, 0.42, 0.79}},
    {1e9, 2, {0.11, 0.21, 0.84, 1.31, 2.28}, {0.12, 0.26, 0.67, 2.00, 3.98}, {0.11, 0.23, 0.55, 1.45, 2.60}},
    {1e9, 4, {0.19, 0.35, 0.93, 2.06, 2.30}, {0.12, 0.26, 0.68, 2.00, 3.99}, {0.11, 0.23, 0.55, 1.45, 2.60}},
};

inline double PaperKvr(const PaperRow& row, int width) {
  return width == 4 ? row.kvr4 : row.kvr8;
}

// 32 layers, K and V of 4096 values of 2 bytes in each. The paper's attention computes the rectangle.
inline CostModel PaperModel(double link_bytes_per_s) {
  CostModel model;
  model.layers = 32;
  model.kv_bytes_per_token = 2 * 32 * 4096 * 2;
  model.links[0].bytes_per_s = link_bytes_per_s;
  return model;
}

// The baseline's columns from `shortest_k` on, and the single GPU's.
inline std::vector<TimedRun> PaperTspRuns(int64_t shortest_k) {
  std::vector<TimedRun> runs;
  for (const PaperRow& row : kPaperRows) {
    if (row.k < shortest_k) continue;
    runs.push_back({Schedule::kTsp, EvenParts(row.k * 1024, 4).value(), row.tsp4});
    runs.push_back({Schedule::kTsp, EvenParts(row.k * 1024, 8).value(), row.tsp8});
  }
  return runs;
}
inline std::vector<TimedRun> PaperSingleRuns() {
  std::vector<TimedRun> runs;
  for (const PaperSlowLinkRow& row : kPaperSlowLinkRows) {
    runs.push_back({Schedule::kKvr, {row.k * 1024}, row.one});
  }
  return runs;
}

// All twelve entries. Up to 2k tokens (on 8 GPUs: 4k) they do not fall any further, which no sum of a fixed, a linear
// and an attention term follows: kernels cannot be started any faster. And at 1k they grow with the number of GPUs:
// latency. With these two constants beside the three all twelve entries are within 1.5%.
inline CostFit PaperTspFit() {
  FitChoice all;
  all.floor = all.latency = true;
  return FitCostModel(PaperModel(300e9), PaperTspRuns(1), all).value();
}
inline CostFit PaperSingleFit() {
  return FitCostModel(PaperModel(300e9), PaperSingleRuns(), {}).value();
}

// The same as a user writes it down for `plan simulate --fit`.
inline std::string PaperFitFile(const std::vector<TimedRun>& runs) {
  std::string text =
      "layers: 32\nkv_bytes_per_token: 524288\nlink_gbps: 2400\ncausal_skip: false\nreceive_ahead_layers: 1\nruns:\n";
  for (const TimedRun& run : runs) {
    int64_t tokens = 0;
    for (const int64_t part : run.parts) tokens += part;
    absl::StrAppend(&text, "- {tokens: ", tokens, ", seconds: ", run.seconds);
    if (run.schedule == Schedule::kTsp) absl::StrAppend(&text, ", schedule: tsp, width: ", run.parts.size());
    absl::StrAppend(&text, "}\n");
  }
  return text;
}

// How far a prediction is off the paper's KVR-S, in percent of it, at 4k, 8k, 12k and 16k: a row of docs/planning.md.
struct StatedErrors {
  bool tsp = false;  // fitted to the baseline's columns; false: to the single GPU's
  bool thorough = false;
  int width = 0;
  std::array<double, 4> percent = {};
};
inline constexpr int64_t kStatedThousands[] = {4, 8, 12, 16};
inline constexpr StatedErrors kStatedErrors[] = {
    {true, false, 4, {-8.4, -1.2, 0.7, -0.3}},      {true, false, 8, {-4.7, -5.5, -3.5, -2.6}},
    {true, true, 8, {-6.4, -8.2, -10.2, -10.1}},    {false, false, 4, {-22.3, -9.9, -6.2, -6.1}},
    {false, false, 8, {-41.5, -17.7, -11.2, -9.6}},
};

}  // namespace runahead::testing
