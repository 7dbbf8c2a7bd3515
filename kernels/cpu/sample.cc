#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/row_ops.h"

namespace runahead {
namespace {

double TotalWeight(const std::vector<int32_t>& ids, const std::vector<float>& weights) {
  double total = 0;
  for (const int32_t id : ids) total += weights[id];
  return total;
}

// Keeps the shortest prefix of the order of `likelier` whose weights add up to `target`, which is above 0.
template <typename Likelier>
void KeepTopP(std::vector<int32_t>& ids, const std::vector<float>& weights, double target, const Likelier& likelier) {
  const auto less_likely = [&](int32_t a, int32_t b) { return likelier(b, a); };
  std::make_heap(ids.begin(), ids.end(), less_likely);
  auto end = ids.end();  // of the heap; what was taken from it stands behind
  for (double sum = 0; end != ids.begin() && sum < target; --end) {
    std::pop_heap(ids.begin(), end, less_likely);
    sum += weights[*(end - 1)];
  }
  ids.erase(ids.begin(), end);
}

int32_t SampleRow(const float* logits, int64_t n, const SampleParams& params) {
  if (!std::all_of(logits, logits + n, [](float logit) { return std::isfinite(logit); })) return -1;
  const int32_t likeliest = static_cast<int32_t>(std::max_element(logits, logits + n) - logits);
  if (params.temperature == 0) return likeliest;

  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  const auto likelier = [logits](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (params.top_k > 0 && params.top_k < n) {
    std::nth_element(ids.begin(), ids.begin() + params.top_k, ids.end(), likelier);
    ids.resize(params.top_k);
  }
  std::vector<float> weights(n);  // of what is left; the likeliest has 1
  for (const int32_t id : ids) {
    weights[id] = std::exp(std::max((logits[id] - logits[likeliest]) / params.temperature, -87.0f));
  }
  if (params.top_p < 1) KeepTopP(ids, weights, params.top_p * TotalWeight(ids, weights), likelier);
  ids.erase(std::remove_if(ids.begin(), ids.end(), [&](int32_t id) { return weights[id] < params.min_p; }), ids.end());

  std::sort(ids.begin(), ids.end());
  double left = params.uniform * TotalWeight(ids, weights);
  for (const int32_t id : ids) {
    left -= weights[id];
    if (left < 0) return id;
  }
  return likeliest;  // where rounding leaves a rest at the end
}

}  // namespace

void RowOps::Sample(const ConstTensor& logits, const std::vector<SampleParams>& params, const MutTensor& ids) const {
  ForRows(logits.rows, logits.cols,
          [&](int64_t t) { ids.row<int32_t>(t)[0] = SampleRow(logits.row<float>(t), logits.cols, params[t]); });
}

}  // namespace runahead
