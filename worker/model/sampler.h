// Chooses a token from logits. A draw is a function of (seed, absolute position) and nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/penalty_counts.h"

namespace runahead {

// Ranges as in SamplingParams of inference.proto; checked by the router and, with check_sampling.h, by the workers.
struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint64_t seed = 0;
  int32_t logprobs = -1;  // alternatives; -1: no logprobs at all
};

bool HasPenalties(const SamplingOptions& options);

struct TokenLogprobPair {
  int32_t id = 0;
  float logprob = 0;
};

struct Sampled {
  int32_t id = 0;
  std::vector<TokenLogprobPair> logprobs;  // the chosen one first, then the likeliest others; empty where not asked for
};

// In this order: repetition penalty (prompt and output), presence and frequency penalties (output), temperature, top-k,
// top-p over what top-k left, min-p, draw. With temperature 0 the filters change nothing: the likeliest after
// penalties. logits: [vocab], all finite (INTERNAL else). `counts` are those of prompt and output so far, made for
// these options. `position` is the absolute position of the token that is drawn: as many come before it. Logprobs are
// those of the logits before penalties and temperature. Ties go to the smaller id. Ids outside the vocabulary are not
// penalised. Thread-safe; linear in the vocabulary, whatever the length of the sequence.
absl::StatusOr<Sampled> SampleToken(absl::Span<const float> logits, const SamplingOptions& options,
                                    const PenaltyCounts& counts, int64_t position);

// The draw behind SampleToken: uniform in [0, 1), the same for the same (seed, position) on every machine.
double SamplingUniform(uint64_t seed, int64_t position);

}  // namespace runahead
