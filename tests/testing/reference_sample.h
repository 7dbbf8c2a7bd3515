// Sampling without penalties by sorting everything, in double: what the filters mean, in the plainest words.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/base/op_params.h"

namespace runahead {

struct ReferenceDraw {
  int32_t id = 0;
  bool close = false;  // a border is within rounding: another id may be right too
};

inline ReferenceDraw ReferenceSample(const std::vector<float>& logits, const SampleParams& params) {
  constexpr double kRounding = 1e-5;
  const size_t vocab = logits.size();
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  ReferenceDraw draw{order[0]};
  if (params.temperature == 0) return draw;
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(vocab)) order.resize(params.top_k);

  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[order[0]]) / params.temperature);
  };
  double total = 0;
  for (const int32_t id : order) total += weight(id);
  if (params.top_p < 1) {
    double seen = 0;
    size_t kept = 0;
    while (kept < order.size() && seen < params.top_p * total) {
      seen += weight(order[kept++]);
      draw.close = draw.close || std::abs(seen - params.top_p * total) < kRounding * total;
    }
    order.resize(kept);
  }
  std::vector<int32_t> ids;
  total = 0;
  for (const int32_t id : order) {
    draw.close = draw.close || std::abs(weight(id) - params.min_p) < kRounding * params.min_p;
    if (weight(id) < params.min_p) continue;
    ids.push_back(id);
    total += weight(id);
  }
  std::sort(ids.begin(), ids.end());
  double seen = 0;
  bool drawn = false;
  for (const int32_t id : ids) {
    seen += weight(id);
    draw.close = draw.close || std::abs(seen - params.uniform * total) < kRounding * total;
    if (!drawn && seen > params.uniform * total) {
      draw.id = id;
      drawn = true;
    }
  }
  return draw;
}

}  // namespace runahead
