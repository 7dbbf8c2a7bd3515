// The counts of a whole sequence, taken anew from its ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/model/penalty_counts.h"

namespace runahead::testing {

// `ids`: prompt and output; the output starts at index `output_begin`.
inline PenaltyCounts CountPenalties(const SamplingOptions& options, const std::vector<int32_t>& ids,
                                    size_t output_begin) {
  const absl::Span<const int32_t> all = ids;
  PenaltyCounts counts(options, all.subspan(0, output_begin));
  for (const int32_t id : all.subspan(output_begin)) counts.AddOutput(id);
  return counts;
}

}  // namespace runahead::testing
