// What DrawRules forbid, in the plainest words: looks at all of the output, each time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/op_params.h"
#include "tests/testing/letter_tokenizer.h"
#include "worker/model/draw_rules.h"

namespace runahead::testing {

// Of tokens that are letters (letter_tokenizer.h): whether the choices leave `id` behind the output.
inline bool IsOfAChoice(const std::vector<std::string>& choices, absl::Span<const int32_t> output, int32_t id) {
  std::string text;
  for (const int32_t letter : output) text += static_cast<char>('a' + letter);
  const auto goes_on = [&](const std::string& choice) {
    if (id == kLettersEnd) return choice == text;
    return id < kLetters && choice.rfind(text + static_cast<char>('a' + id), 0) == 0;
  };
  return std::any_of(choices.begin(), choices.end(), goes_on);
}

// Of structures, choices only.
inline bool IsForbidden(const DrawRules& rules, absl::Span<const int32_t> output, int32_t id) {
  const auto end = std::count(rules.end_ids.begin(), rules.end_ids.end(), id);
  if (static_cast<int64_t>(output.size()) < rules.min_tokens && end > 0) return true;
  if (rules.structure.has_value() && !IsOfAChoice(rules.structure->choices, output, id)) return true;
  std::vector<int32_t> with(output.begin(), output.end());
  with.push_back(id);
  return std::any_of(rules.bad_ids.begin(), rules.bad_ids.end(), [&](const std::vector<int32_t>& bad) {
    return bad.size() <= with.size() && std::equal(bad.rbegin(), bad.rend(), with.rbegin());
  });
}

// A mask of all ids, as Device::Sample takes it.
inline std::vector<uint32_t> PlainMask(const DrawRules& rules, absl::Span<const int32_t> output, int64_t vocab) {
  std::vector<uint32_t> mask(MaskWords(vocab));
  for (int32_t id = 0; id < vocab; ++id) {
    if (!IsForbidden(rules, output, id)) mask[id / 32] |= 1u << (id % 32);
  }
  return mask;
}

}  // namespace runahead::testing
