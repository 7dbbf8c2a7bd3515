// What DrawRules forbid, in the plainest words: looks at all of the output, each time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/base/op_params.h"
#include "worker/model/draw_rules.h"

namespace runahead::testing {

inline bool IsForbidden(const DrawRules& rules, absl::Span<const int32_t> output, int32_t id) {
  const auto end = std::count(rules.end_ids.begin(), rules.end_ids.end(), id);
  if (static_cast<int64_t>(output.size()) < rules.min_tokens && end > 0) return true;
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
