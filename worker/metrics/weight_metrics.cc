#include "worker/metrics/weight_metrics.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace runahead {
namespace {

Gauge& AddBytes(MetricRegistry& registry, const char* form) {
  return registry.AddGauge("runahead_weights_bytes", "Memory that the model's weights take", {{"form", form}});
}

std::string MebibytesText(size_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string WeightsText(const WeightBytes& weights, int64_t tensor_bytes) {
  std::vector<std::string> forms;
  const auto add = [&](size_t bytes, const char* form) {
    if (bytes > 0) forms.push_back(MebibytesText(bytes) + form);
  };
  add(weights.int8, " int8");
  add(weights.stored, " as stored");
  add(weights.packed, " packed");
  return absl::StrFormat("%s of weights, %.2f times the tensors' %s: %s", MebibytesText(weights.total()),
                         static_cast<double>(weights.total()) / static_cast<double>(tensor_bytes),
                         MebibytesText(static_cast<size_t>(tensor_bytes)), absl::StrJoin(forms, ", "));
}

WeightMetrics::WeightMetrics(MetricRegistry& registry)
    : stored_(AddBytes(registry, "stored")), packed_(AddBytes(registry, "packed")), int8_(AddBytes(registry, "int8")) {}

void WeightMetrics::SetBytes(const WeightBytes& weights) {
  stored_.Set(static_cast<double>(weights.stored));
  packed_.Set(static_cast<double>(weights.packed));
  int8_.Set(static_cast<double>(weights.int8));
}

}  // namespace runahead
