// Chooses a token from logits. A draw is a function of (seed, absolute position) and nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace runahead {

// Ranges as in SamplingParams of inference.proto; checked by the router.
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
// penalties. logits: [vocab], all finite (INTERNAL else). ids: prompt and output so far; output starts at index
// `output_begin`. `position` is the absolute position of the token that is drawn (= ids.size()). Logprobs are those of
// the logits before penalties and temperature. Ties go to the smaller id. Ids outside the vocabulary are not penalised.
// Thread-safe; linear in the vocabulary.
absl::StatusOr<Sampled> SampleToken(absl::Span<const float> logits, const SamplingOptions& options,
                                    absl::Span<const int32_t> ids, size_t output_begin, int64_t position);

// The draw behind SampleToken: uniform in [0, 1), the same for the same (seed, position) on every machine.
double SamplingUniform(uint64_t seed, int64_t position);

}  // namespace runahead
