// The token that a sequence must get, from its logits alone: what the product draws step by step, said at once.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/sample.h"
#include "worker/model/penalty_counts.h"
#include "worker/model/sampling.h"

namespace runahead::testing {

inline int32_t SampleToken(const std::vector<float>& logits, const SamplingOptions& options,
                           const PenaltyCounts& counts, int64_t position, absl::Span<const uint32_t> allowed = {}) {
  const SampleParams params{.temperature = options.temperature,
                            .top_k = options.top_k,
                            .top_p = options.top_p,
                            .min_p = options.min_p,
                            .uniform = SamplingUniform(options.seed, position),
                            .repetition_penalty = options.repetition_penalty,
                            .presence_penalty = options.presence_penalty,
                            .frequency_penalty = options.frequency_penalty};
  const auto vocab = static_cast<int64_t>(logits.size());
  std::vector<int32_t> of_ids(vocab);
  for (const auto& [id, in_output] : counts.entries()) {
    if (id >= 0 && id < vocab) of_ids[id] = 1 + in_output;
  }
  std::vector<float> bias(vocab);
  for (const LogitBias& of : options.logit_bias) bias[of.id] = of.bias;
  DrawTables tables;
  if (HasPenalties(options)) tables.counts = of_ids.data();
  if (!options.logit_bias.empty()) tables.bias = bias.data();
  if (!allowed.empty()) tables.allowed = allowed.data();
  return SampleRow(logits.data(), vocab, params, tables);
}

}  // namespace runahead::testing
