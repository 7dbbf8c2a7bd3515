// Which prompts one worker computes together, in one pass. Pure. The worker keeps to it; the router reckons with it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace runahead {

// Rows of such a pass, at most. A pass reads all weights, however few its rows: SmolLM2-135M takes 0.86 ms a row for 14
// rows in int8, 0.45 for 126 and for 252 (bf16: 1.9, 0.5, 0.4; docs/measurements.md). Every prompt has its first token
// at the pass's end, so it is to be no longer than what makes rows cheap.
inline constexpr int64_t kRowsTogether = 128;

// Whether a prompt of so many tokens, all of which one worker computes, may go with others that have `taken` rows.
inline bool FitTogether(int64_t taken, int64_t tokens) {
  return taken + tokens <= kRowsTogether;
}

// What a prompt takes of the time of its pass, at least: others may share it.
inline double ShareOfPass(int64_t tokens) {
  return std::min(1.0, static_cast<double>(tokens) / static_cast<double>(kRowsTogether));
}

}  // namespace runahead
