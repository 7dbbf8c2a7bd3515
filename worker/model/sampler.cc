#include "worker/model/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

struct Candidate {
  int32_t id = 0;
  float logit = 0;
  float weight = 0;  // its share of the draw; the likeliest has 1
};

// Rises with the logit, so that its digits split candidates into likelier and less likely ones.
uint32_t OrderKey(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Keeps the shortest prefix of the order (logit falling, id rising) whose weights add up to `target`. It does not sort:
// digit by digit of the key it finds where the prefix ends. `candidates` are in the order of ids and stay so.
template <typename Weight>
void KeepLikeliest(std::vector<Candidate>& candidates, double target, const Weight& weight) {
  std::vector<const Candidate*> border;  // those that share all digits seen so far with the last one kept
  border.reserve(candidates.size());
  for (const Candidate& candidate : candidates) border.push_back(&candidate);
  double above = 0;
  for (const int shift : {21, 10, 0}) {
    const uint32_t mask = shift == 0 ? 1023 : 2047;
    const auto digit = [=](const Candidate* c) { return (OrderKey(c->logit) >> shift) & mask; };
    std::array<double, 2048> sums{};
    uint32_t lowest = mask;
    for (const Candidate* c : border) {
      sums[digit(c)] += weight(*c);
      lowest = std::min(lowest, digit(c));
    }
    uint32_t last = mask;
    for (; last > lowest && above + sums[last] < target; --last) above += sums[last];
    border.erase(std::remove_if(border.begin(), border.end(), [&](const Candidate* c) { return digit(c) != last; }),
                 border.end());
  }
  // All that is left of the border is equal: its smallest ids complete the prefix.
  const float equal = border.front()->logit;
  const double missing = std::ceil((target - above) / weight(*border.front()));
  size_t ties = border.size();
  if (missing < static_cast<double>(ties)) ties = static_cast<size_t>(std::max(missing, 1.0));
  size_t kept = 0;
  for (const Candidate& c : candidates) {
    if (c.logit < equal || (c.logit == equal && ties == 0)) continue;
    if (c.logit == equal) --ties;
    candidates[kept++] = c;
  }
  candidates.resize(kept);
}

void KeepTopK(std::vector<Candidate>& candidates, int64_t k) {
  if (k < static_cast<int64_t>(candidates.size())) {
    KeepLikeliest(candidates, static_cast<double>(k), [](const Candidate&) { return 1.0; });
  }
}

double TotalWeight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

void KeepTopP(std::vector<Candidate>& candidates, double top_p) {
  const double target = top_p * TotalWeight(candidates);
  // n candidates below (1 - p) * total / n add up to less than 1 - p of the total, so none of them is in the prefix;
  // most of a vocabulary goes by this test alone. A little less, because sums are rounded.
  const double negligible = 0.99 * (1 - top_p) * target / (top_p * static_cast<double>(candidates.size()));
  candidates.erase(
      std::remove_if(candidates.begin(), candidates.end(), [=](const Candidate& c) { return c.weight < negligible; }),
      candidates.end());
  KeepLikeliest(candidates, target, [](const Candidate& c) { return c.weight; });
}

std::vector<Candidate> AllCandidates(absl::Span<const float> logits) {
  std::vector<Candidate> candidates(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) candidates[i] = {static_cast<int32_t>(i), logits[i], 0};
  return candidates;
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
void ApplyPenalties(const SamplingOptions& options, absl::Span<const int32_t> ids, size_t output_begin,
                    std::vector<Candidate>& candidates) {
  absl::flat_hash_map<int32_t, int> output_count;  // of every id seen; 0: in the prompt only
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < static_cast<int64_t>(candidates.size())) output_count[ids[i]] += i >= output_begin;
  }
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const auto& [id, count] : output_count) {
    float logit = candidates[id].logit;
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    if (count > 0) logit -= options.presence_penalty + options.frequency_penalty * static_cast<float>(count);
    candidates[id].logit = std::clamp(logit, -kLargest, kLargest);
  }
}

const Candidate& Likeliest(const std::vector<Candidate>& candidates) {
  return *std::max_element(candidates.begin(), candidates.end(),
                           [](const Candidate& a, const Candidate& b) { return a.logit < b.logit; });
}

// The filters after the penalties, then the draw.
int32_t Draw(const SamplingOptions& options, int64_t position, std::vector<Candidate>& candidates) {
  const float largest = Likeliest(candidates).logit;
  if (options.top_k > 0) KeepTopK(candidates, options.top_k);
  for (Candidate& c : candidates) c.weight = std::exp((c.logit - largest) / options.temperature);
  if (options.top_p < 1) KeepTopP(candidates, options.top_p);
  if (options.min_p > 0) {
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(),
                                    [&](const Candidate& c) { return c.weight < options.min_p; }),
                     candidates.end());
  }
  double left = SamplingUniform(options.seed, position) * TotalWeight(candidates);
  int32_t drawn = Likeliest(candidates).id;  // where rounding leaves a rest at the end
  for (const Candidate& c : candidates) {
    left -= c.weight;
    if (left < 0) return c.id;
    if (c.weight > 0) drawn = c.id;
  }
  return drawn;
}

std::vector<TokenLogprobPair> Logprobs(absl::Span<const float> logits, int32_t chosen, int32_t alternatives) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  const auto pair = [&](int32_t id) { return TokenLogprobPair{id, static_cast<float>(logits[id] - log_sum)}; };
  std::vector<TokenLogprobPair> result = {pair(chosen)};
  std::vector<Candidate> top = AllCandidates(logits);
  KeepTopK(top, int64_t{alternatives} + 1);
  std::stable_sort(top.begin(), top.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  for (const Candidate& c : top) {
    if (c.id != chosen && static_cast<int32_t>(result.size()) <= alternatives) result.push_back(pair(c.id));
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

double SamplingUniform(uint64_t seed, int64_t position) {
  return static_cast<double>(Mix(seed ^ Mix(static_cast<uint64_t>(position))) >> 11) * 0x1p-53;
}

absl::StatusOr<Sampled> SampleToken(absl::Span<const float> logits, const SamplingOptions& options,
                                    absl::Span<const int32_t> ids, size_t output_begin, int64_t position) {
  RUNAHEAD_RETURN_IF_ERROR(CheckFinite(logits));
  std::vector<Candidate> candidates = AllCandidates(logits);
  if (options.repetition_penalty != 1 || options.presence_penalty != 0 || options.frequency_penalty != 0) {
    ApplyPenalties(options, ids, output_begin, candidates);
  }
  Sampled sampled;
  sampled.id = options.temperature > 0 ? Draw(options, position, candidates) : Likeliest(candidates).id;
  if (options.logprobs >= 0) sampled.logprobs = Logprobs(logits, sampled.id, options.logprobs);
  return sampled;
}

}  // namespace runahead
