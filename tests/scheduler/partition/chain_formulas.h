// The closed formulas of KV-Runahead (arXiv 2405.05329, its sections on traffic and on the lower bound).
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace runahead {

// (K, V) entries, pairs of rows of one layer, that an all-gather of K and V exchanges: Net_tsp(C, p) = (p - 1) C.
inline int64_t TspTrafficEntries(int64_t tokens, int64_t width) {
  return (width - 1) * tokens;
}

// The same for KV-Runahead with even parts: Net_kvr(C, p) = (p - 1) / 2 * C, a half when p is even and C odd.
inline double KvrEvenTrafficEntries(int64_t tokens, int64_t width) {
  return static_cast<double>((width - 1) * tokens) / 2;
}

// With any parts: every worker but the last sends all that lies before its end.
inline int64_t KvrTrafficEntries(absl::Span<const int64_t> parts) {
  int64_t entries = 0;
  int64_t end = 0;
  for (size_t i = 0; i + 1 < parts.size(); ++i) entries += end += parts[i];
  return entries;
}

// No partition is faster for a prompt so long that attention is all: TTFT*(p) = TTFT(1) / 2 * (1 / p + 1 / p^2).
inline double TtftLowerBound(double single_ttft_s, int64_t width) {
  const double p = static_cast<double>(width);
  return single_ttft_s / 2 * (1 / p + 1 / (p * p));
}

}  // namespace runahead
