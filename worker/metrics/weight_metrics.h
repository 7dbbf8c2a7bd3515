// What a model's weights take, for the log and the metrics. Names and labels: docs/metrics.md.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/weights.h"
#include "server/base/metrics.h"

namespace runahead {

// "87.1 MiB of weights, 1.00 times the tensors' 86.9 MiB: 87.1 MiB int8": the forms that there are, beside
// `tensor_bytes` of the file.
std::string WeightsText(const WeightBytes& weights, int64_t tensor_bytes);

// Thread-safe; lives no longer than the registry.
class WeightMetrics {
 public:
  explicit WeightMetrics(MetricRegistry& registry);
  void SetBytes(const WeightBytes& weights);

 private:
  Gauge& stored_;
  Gauge& packed_;
  Gauge& int8_;
};

}  // namespace runahead
