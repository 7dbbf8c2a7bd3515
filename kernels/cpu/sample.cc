#include "kernels/cpu/sample.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/row_ops.h"

namespace runahead {
namespace {

constexpr size_t kLanes = 16;  // independent sums and maxima, so that the compiler can use vectors

double Sum(const float* x, size_t n) {
  double lanes[kLanes] = {}, total = 0;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane];
  }
  for (const double lane : lanes) total += lane;
  for (; i < n; ++i) total += x[i];
  return total;
}

float Largest(const float* x, size_t n) {
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, x[0]);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
  }
  float largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < n; ++i) largest = std::max(largest, x[i]);
  return largest;
}

// Tokens that may still be drawn, in the order of their ids; a column each, so that loops over them vectorise.
struct Candidates {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  std::vector<float> weights;  // shares of the draw, the likeliest has 1; empty until they are needed

  Candidates(const float* all, int64_t n) : ids(n), logits(all, all + n) { std::iota(ids.begin(), ids.end(), 0); }
  size_t size() const { return ids.size(); }
  float LargestLogit() const { return Largest(logits.data(), logits.size()); }
  // The smallest of the likeliest ids.
  int32_t Likeliest() const { return ids[std::find(logits.begin(), logits.end(), LargestLogit()) - logits.begin()]; }
  double TotalWeight() const { return Sum(weights.data(), weights.size()); }
  // Drops those for which `keep(index)` says no; it is asked once for each, in order.
  template <typename Keep>
  void Filter(const Keep& keep) {
    size_t kept = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (!keep(i)) continue;
      ids[kept] = ids[i];
      logits[kept] = logits[i];
      if (!weights.empty()) weights[kept] = weights[i];
      ++kept;
    }
    ids.resize(kept);
    logits.resize(kept);
    if (!weights.empty()) weights.resize(kept);
  }
};

// e^x for x <= 0, to a few units in the last place; e^-87 below that. Without branches, for the whole vocabulary.
inline float ExpNegative(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  // As whole numbers, for a comparison of floats would keep the compiler from vectorising; also takes -inf.
  const int32_t magnitude = std::bit_cast<int32_t>(x) & 0x7fffffff, limit = std::bit_cast<int32_t>(87.0f);
  x = -std::bit_cast<float>(magnitude < limit ? magnitude : limit);
  const float n = (x * 1.44269504f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts: the first product is exact
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(n)) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + exponent);
}

// Rises with the logit, so that its digits split candidates into likelier and less likely ones.
inline uint32_t OrderKey(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Keeps the shortest prefix of the order (logit falling, id rising) whose weights add up to `target`. It does not sort:
// digit by digit of the key it finds where the prefix ends.
template <typename Weight>
void KeepLikeliest(Candidates& candidates, double target, const Weight& weight) {
  std::vector<uint32_t> border(candidates.size());  // those that share all digits seen so far with the last one kept
  std::iota(border.begin(), border.end(), 0);
  double above = 0;
  for (const int shift : {21, 10, 0}) {
    const uint32_t mask = shift == 0 ? 1023 : 2047;
    const auto digit = [&, mask, shift](uint32_t i) { return (OrderKey(candidates.logits[i]) >> shift) & mask; };
    std::array<double, 2048> sums{};
    uint32_t lowest = mask;
    for (const uint32_t i : border) {
      sums[digit(i)] += weight(i);
      lowest = std::min(lowest, digit(i));
    }
    uint32_t last = mask;
    for (; last > lowest && above + sums[last] < target; --last) above += sums[last];
    border.erase(std::remove_if(border.begin(), border.end(), [&](uint32_t i) { return digit(i) != last; }),
                 border.end());
  }
  // All that is left of the border is equal: its smallest ids complete the prefix.
  const float equal = candidates.logits[border.front()];
  const double missing = std::ceil((target - above) / weight(border.front()));
  size_t ties = border.size();
  if (missing < static_cast<double>(ties)) ties = static_cast<size_t>(std::max(missing, 1.0));
  candidates.Filter([&](size_t i) {
    if (candidates.logits[i] != equal) return candidates.logits[i] > equal;
    return ties > 0 && ties-- > 0;
  });
}

void KeepTopK(Candidates& candidates, int64_t k) {
  if (k < static_cast<int64_t>(candidates.size())) {
    KeepLikeliest(candidates, static_cast<double>(k), [](uint32_t) { return 1.0; });
  }
}

void KeepTopP(Candidates& candidates, double top_p) {
  const double total = candidates.TotalWeight();
  // n candidates below (1 - p) * total / n add up to less than 1 - p of the total, so none of them is in the prefix;
  // most of a vocabulary goes by this test alone. A little less, because sums are rounded.
  const double negligible = 0.99 * (1 - top_p) * total / static_cast<double>(candidates.size());
  candidates.Filter([&](size_t i) { return candidates.weights[i] >= negligible; });
  KeepLikeliest(candidates, top_p * total, [&](uint32_t i) { return candidates.weights[i]; });
}

bool AllFinite(const float* logits, int64_t n) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t bad = 0;  // one pass without branches: this runs over the whole vocabulary for every token
  for (int64_t i = 0; i < n; ++i) bad |= (std::bit_cast<uint32_t>(logits[i]) & kExponent) == kExponent;
  return bad == 0;
}

float Penalised(const SampleParams& params, int32_t count, float logit) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  if (count == 0) return logit;
  const int32_t in_output = count - 1;
  logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
  if (in_output > 0) logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(in_output);
  return std::clamp(logit, -kLargest, kLargest);
}

float Biased(float logit, float bias) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  return std::clamp(logit + bias, -kLargest, kLargest);
}

// Bias, then penalties. logits: as the model has them, and all of them.
void Adjust(const SampleParams& params, const DrawTables& tables, std::vector<float>& logits) {
  if (tables.bias != nullptr) {
    for (size_t id = 0; id < logits.size(); ++id) logits[id] = Biased(logits[id], tables.bias[id]);
  }
  if (tables.counts == nullptr) return;
  std::array<float, kMostTokenCounts> before;  // of ids whose counts are otherwise
  for (int32_t i = params.kept; i < params.known; ++i) before[i] = logits[params.tokens[i].id];
  for (size_t id = 0; id < logits.size(); ++id) {
    if (tables.counts[id] != 0) logits[id] = Penalised(params, tables.counts[id], logits[id]);
  }
  for (int32_t i = params.kept; i < params.known; ++i) {
    const auto [id, count] = params.tokens[i];
    logits[id] = Penalised(params, count, before[i]);
  }
}

// The first candidate at which the running sum of weights passes `uniform` of their total; by blocks, then one by one.
int32_t DrawByWeight(const Candidates& candidates, double uniform) {
  constexpr size_t kBlock = 1024;
  const std::vector<float>& weights = candidates.weights;
  double left = uniform * candidates.TotalWeight();
  for (size_t begin = 0; begin < weights.size(); begin += kBlock) {
    const size_t end = std::min(weights.size(), begin + kBlock);
    const double block = Sum(weights.data() + begin, end - begin);
    if (left >= block) {
      left -= block;
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      left -= weights[i];
      if (left < 0) return candidates.ids[i];
    }
  }
  return candidates.Likeliest();  // where rounding leaves a rest at the end
}

// The filters, then the draw.
int32_t Draw(const SampleParams& params, Candidates& candidates) {
  const float largest = candidates.LargestLogit(), temperature = params.temperature;
  if (params.top_k > 0) KeepTopK(candidates, params.top_k);
  const size_t count = candidates.size();
  candidates.weights.resize(count);
  const float* logits = candidates.logits.data();
  float* weights = candidates.weights.data();
  for (size_t i = 0; i < count; ++i) weights[i] = ExpNegative((logits[i] - largest) / temperature);
  if (params.top_p < 1) KeepTopP(candidates, params.top_p);
  if (params.min_p > 0) candidates.Filter([&](size_t i) { return candidates.weights[i] >= params.min_p; });
  return DrawByWeight(candidates, params.uniform);
}

}  // namespace

DrawTables RowTables(const SampleParams& params, const SampleTables& tables) {
  DrawTables own;
  if (params.counts_row >= 0) own.counts = tables.counts.row<const int32_t>(params.counts_row);
  if (params.bias_row >= 0) own.bias = tables.bias.row<const float>(params.bias_row);
  if (params.allowed_row >= 0) own.allowed = tables.allowed.row<const uint32_t>(params.allowed_row);
  return own;
}

int32_t SampleRow(const float* logits, int64_t n, const SampleParams& params, const DrawTables& tables) {
  if (!AllFinite(logits, n)) return kNotFinite;
  const bool as_it_is = tables.counts == nullptr && tables.bias == nullptr && tables.allowed == nullptr;
  if (as_it_is && params.temperature == 0) {
    return static_cast<int32_t>(std::find(logits, logits + n, Largest(logits, n)) - logits);
  }
  Candidates candidates(logits, n);
  Adjust(params, tables, candidates.logits);
  if (tables.allowed != nullptr) {
    candidates.Filter([&](size_t id) { return (tables.allowed[id / 32] >> (id % 32) & 1) != 0; });
    if (candidates.size() == 0) return kNothingAllowed;
  }
  return params.temperature > 0 ? Draw(params, candidates) : candidates.Likeliest();
}

void RowOps::Sample(const ConstTensor& logits, const std::vector<SampleParams>& params, const SampleTables& tables,
                    const MutTensor& ids, const MutTensor& values) const {
  for (const SampleParams& own : params) {  // before any row of the same sequence reads them
    for (int32_t i = 0; i < own.kept && own.counts_row >= 0; ++i) {
      tables.counts.row<int32_t>(own.counts_row)[own.tokens[i].id] = own.tokens[i].count;
    }
  }
  ForRows(logits.rows, logits.cols, [&](int64_t t) {
    const SampleParams& own = params[t];
    const int32_t id = SampleRow(logits.row<float>(t), logits.cols, own, RowTables(own, tables));
    ids.row<int32_t>(t)[0] = id;
    values.row<float>(t)[0] = id < 0 ? 0.0f : logits.row<float>(t)[id];
  });
}

}  // namespace runahead
