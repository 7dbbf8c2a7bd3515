// How a token is chosen from logits: what a request says of it, and what comes back.
#pragma once

#include <cstdint>
#include <vector>

namespace runahead {

struct LogitBias {
  int32_t id = 0;
  float bias = 0;
};

inline constexpr int32_t kMostLogprobs = 20;  // alternatives

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
  int32_t logprobs = -1;                   // alternatives; -1: no logprobs at all
  std::vector<LogitBias> logit_bias = {};  // each id once
};

bool HasPenalties(const SamplingOptions& options);

struct TokenLogprobPair {
  int32_t id = 0;
  float logprob = 0;
};

// Of one place in a text: the token that stands there first, then the likeliest others.
using TokenLogprobPairs = std::vector<TokenLogprobPair>;

struct Sampled {
  int32_t id = 0;
  TokenLogprobPairs logprobs;  // the chosen one first, then the likeliest others; empty where not asked for
};

// The draw for the token at an absolute position, before which as many tokens come: uniform in [0, 1), a function of
// (seed, position) and nothing else, the same on every machine.
double SamplingUniform(uint64_t seed, int64_t position);

}  // namespace runahead
