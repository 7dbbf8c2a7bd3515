// The suites of the GPU benchmark (gpu.cc) and what they share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "tests/bench/gpu_report.h"

namespace runahead {

struct Bench {
  std::shared_ptr<Device> device;
  const Report& report;
  double seconds = 0;  // of measuring for each figure
  int64_t layers = 0;  // of the models that are run; at least 2
  bool tiny = false;   // sizes that any machine computes at once: to see that all runs

  // A size of the benchmark, or one that stands for it.
  int64_t Size(int64_t size, int64_t shrink = 256) const { return tiny ? std::max<int64_t>(1, size / shrink) : size; }
};

absl::Status BenchGemm(const Bench& bench);       // the products of a layer: TFLOP/s
absl::Status BenchAttention(const Bench& bench);  // a prompt's attention: TFLOP/s
absl::Status BenchPrefill(const Bench& bench);    // tokens/s, and the share of what the products alone reach
absl::Status BenchDecode(const Bench& bench);     // a step: ms, and the share of the memory's bandwidth
absl::Status BenchParts(const Bench& bench);      // each rank's part of a chain in turn, and what chains would take
absl::Status BenchHandoff(const Bench& bench);    // device to host: GB/s, alone and beside prefill
absl::Status BenchKvpr(const Bench& bench);       // decode from host memory: ms a step, gains predicted and measured

}  // namespace runahead
