// The ranges of sampling options and of rules for draws, for the workers' services.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "worker/model/draw_rules.h"
#include "worker/model/sampling.h"

namespace runahead {

// Ids of one request that have a bias.
inline constexpr int64_t kMostBiases = 1024;
// Sequences of ids that an output may not have: of so many texts, each as it stands and behind a space. And the ids of
// one of them: a token is a byte at least, of which a normaliser may make some more.
inline constexpr int64_t kMostBadIds = 2 * 64;
inline constexpr int64_t kLongestBadIds = 4096;

// INVALID_ARGUMENT "sampling.<field>: what is wrong", with the names of SamplingParams. Token ids are below `vocab`.
absl::Status CheckSampling(const SamplingOptions& sampling, int64_t vocab);

// The same "rules.<field>: what is wrong", with the names of DrawRules in worker.proto.
absl::Status CheckDrawRules(const DrawRules& rules, int64_t vocab);

}  // namespace runahead
