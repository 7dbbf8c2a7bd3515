// A prefix whose KV comes from elsewhere than a worker.
#pragma once

#include <cstring>
#include <vector>

#include "tests/testing/expected_run.h"
#include "worker/prefill/job.h"

namespace runahead {

// The f32 KV of `run`, which may go on behind the prefix.
class GivenPrefix : public PrefixSource {
 public:
  GivenPrefix(const ExpectedRun& run, int64_t row_bytes) : row_bytes_(static_cast<size_t>(row_bytes)) {
    for (const std::vector<double>& layer : run.kv) layers_.emplace_back(layer.begin(), layer.end());
  }
  Event Load(int64_t layer, int64_t first, BufferRef into) override {
    const auto* const rows = reinterpret_cast<const std::byte*>(layers_[layer].data());
    std::memcpy(into.data(), rows + static_cast<size_t>(first) * row_bytes_, into.size);
    return Event();
  }
  void Drop() override {}

 private:
  const size_t row_bytes_;
  std::vector<std::vector<float>> layers_;
};

}  // namespace runahead
