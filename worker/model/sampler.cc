#include "worker/model/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

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

  explicit Candidates(absl::Span<const float> all) : ids(all.size()), logits(all.begin(), all.end()) {
    std::iota(ids.begin(), ids.end(), 0);
  }
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

absl::Status CheckFinite(absl::Span<const float> logits) {
  constexpr uint32_t kExponent = 0x7f800000u;
  uint32_t bad = 0;  // one pass without branches: this runs over the whole vocabulary for every token
  for (const float logit : logits) bad |= (std::bit_cast<uint32_t>(logit) & kExponent) == kExponent;
  if (bad == 0 && !logits.empty()) return absl::OkStatus();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InternalError(
          absl::StrFormat("the model's logit of token %d is %g: the sequence cannot go on", i, logits[i]));
    }
  }
  return absl::InternalError("the model gave no logits");
}

// Repetition divides a positive logit and multiplies a negative one, so that both fall.
void ApplyPenalties(const SamplingOptions& options, const PenaltyCounts& counts, Candidates& candidates) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const auto& [id, count] : counts.entries()) {
    if (id < 0 || id >= static_cast<int64_t>(candidates.size())) continue;
    float logit = candidates.logits[id];
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    if (count > 0) logit -= options.presence_penalty + options.frequency_penalty * static_cast<float>(count);
    candidates.logits[id] = std::clamp(logit, -kLargest, kLargest);
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

// The filters after the penalties, then the draw.
int32_t Draw(const SamplingOptions& options, int64_t position, Candidates& candidates) {
  const float largest = candidates.LargestLogit(), temperature = options.temperature;
  if (options.top_k > 0) KeepTopK(candidates, options.top_k);
  const size_t count = candidates.size();
  candidates.weights.resize(count);
  const float* logits = candidates.logits.data();
  float* weights = candidates.weights.data();
  for (size_t i = 0; i < count; ++i) weights[i] = ExpNegative((logits[i] - largest) / temperature);
  if (options.top_p < 1) KeepTopP(candidates, options.top_p);
  if (options.min_p > 0) candidates.Filter([&](size_t i) { return candidates.weights[i] >= options.min_p; });
  return DrawByWeight(candidates, SamplingUniform(options.seed, position));
}

std::vector<TokenLogprobPair> Logprobs(absl::Span<const float> logits, int32_t chosen, int32_t alternatives) {
  const float largest = Largest(logits.data(), logits.size());
  std::vector<float> shares(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) shares[i] = ExpNegative(logits[i] - largest);
  const double log_sum = largest + std::log(Sum(shares.data(), shares.size()));
  const auto pair = [&](int32_t id) { return TokenLogprobPair{id, static_cast<float>(logits[id] - log_sum)}; };
  std::vector<TokenLogprobPair> result = {pair(chosen)};
  Candidates top(logits);
  KeepTopK(top, int64_t{alternatives} + 1);
  std::stable_sort(top.ids.begin(), top.ids.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  for (const int32_t id : top.ids) {
    if (id != chosen && static_cast<int32_t>(result.size()) <= alternatives) result.push_back(pair(id));
  }
  return result;
}

// The finaliser of splitmix64: every bit of the input moves every bit of the output.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

bool HasPenalties(const SamplingOptions& options) {
  return options.repetition_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0;
}

double SamplingUniform(uint64_t seed, int64_t position) {
  return static_cast<double>(Mix(seed ^ Mix(static_cast<uint64_t>(position))) >> 11) * 0x1p-53;
}

absl::StatusOr<Sampled> SampleToken(absl::Span<const float> logits, const SamplingOptions& options,
                                    const PenaltyCounts& counts, int64_t position) {
  RUNAHEAD_RETURN_IF_ERROR(CheckFinite(logits));
  Candidates candidates(logits);
  if (HasPenalties(options)) ApplyPenalties(options, counts, candidates);
  Sampled sampled;
  sampled.id = options.temperature > 0 ? Draw(options, position, candidates) : candidates.Likeliest();
  if (options.logprobs >= 0) sampled.logprobs = Logprobs(logits, sampled.id, options.logprobs);
  return sampled;
}

}  // namespace runahead
