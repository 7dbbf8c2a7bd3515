// The flags of sampling and stopping, and of what is kept, which `generate` and `chat` share.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runahead/v1/inference.pb.h"

namespace CLI {
class App;
}

namespace runahead {

// What was typed; what was not stays absent in the request, so that the service's defaults hold.
struct SamplingFlags {
  std::optional<int32_t> max_tokens, top_k;
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<uint64_t> seed;
  std::map<int32_t, float> logit_bias;
  std::optional<int32_t> min_tokens;
  std::vector<std::string> stop, bad_words;
  std::vector<int32_t> stop_ids;
  bool ignore_eos = false;
  bool no_cache = false;

  // Keeps references into *this.
  void AddTo(CLI::App& app);
  void FillIn(v1::GenerateRequest& request) const;
};

}  // namespace runahead
