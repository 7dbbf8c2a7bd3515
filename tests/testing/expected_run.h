// What a run over a prompt must come to, made without anything that plans, chains, hands off or stores.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/testing/model_fixture.h"

namespace runahead {

struct ExpectedRun {
  std::vector<std::vector<double>> logits;  // [vocab] after each token, or after the last one alone
  std::vector<std::vector<double>> kv;      // a layer each: [tokens][K|V][kv_dim]
  int64_t kv_dim = 0;

  int64_t tokens() const { return static_cast<int64_t>(kv[0].size()) / (2 * kv_dim); }
  // Of the prompt's first tokens: what comes later changes nothing before it. Where there are logits of each token.
  ExpectedRun First(int64_t tokens) const;
};

// By the scalar reference in double, straight from the file: shares no code with what is tested but the file's reader.
// For prompts of some hundred tokens on small models.
ExpectedRun ReferenceRun(const LoadedModel& loaded, const std::vector<int32_t>& ids);
// By one pass of the model over plain buffers, which llama_test compares with the scalar reference: where that one
// takes too long, and in 16 bits.
ExpectedRun PlainRun(const LoadedModel& loaded, const std::vector<int32_t>& ids);

}  // namespace runahead
