// Fractions for lengths beyond the ends of a partition table. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

struct SearchedLength {
  int64_t tokens = 0;
  absl::Span<const double> fractions;  // [width], adding up to 1
};

// Fractions for `tokens` beyond `outer`, the table's shortest or longest length; `middle` and `inner` are the next ones
// towards its inside. All four lengths differ, in that order up or down, and the widths are the same.
//
// Below the shortest length fractions go on linearly in the length; above the longest one linearly in its inverse.
// Why: a part of c tokens that ends at e costs a c + b c e, so the fractions that balance a chain depend on the length
// C only through b C / a: for short C they approach, in proportion to C, what the linear part alone asks for (even
// parts where the workers are alike), for long C, in proportion to 1 / C, what attention alone asks for. Both limits
// exist, and no knowledge of the workers is needed. How far: the slope is that of `middle` to `outer`, times the share
// of that very step that the same rule would have foretold from `inner` and `middle` (0 to 1, least squares). Where
// something else rules, as the time that short prompts take anyhow, or a slow link, nothing was foretold and the
// outermost fractions hold. At most: no fraction falls below half of the outermost's, and no two neighbours change
// order. In simulation, on 44 cost models (Llama-7B's, with slow links and slower workers, and random ones), this loses
// 3% against a search below and 5% above; holding the outermost fractions loses 5% and 8%.
std::vector<double> ExtrapolateFractions(const SearchedLength& inner, const SearchedLength& middle,
                                         const SearchedLength& outer, int64_t tokens);

}  // namespace runahead
