// When a prompt that one worker prefills may run between two layers of a longer one there. Pure. The worker keeps to
// it; the router reckons with it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace runahead {

// One token of short prompts for so many of the longer one's part. A short prompt's tokens take no longer than the long
// one's, whose attention looks further back: no worker keeps a prompt waiting for more than a quarter of its own time.
inline constexpr int64_t kTokensPerInterleaved = 4;

// Shorter prompts count as this many tokens: a pass takes about as long, however few its tokens.
inline constexpr int64_t kLeastInterleaved = 32;

// What is left for short prompts between the layers of one part.
class InterleaveBudget {
 public:
  InterleaveBudget() = default;  // lets nothing in
  // `part_tokens`: of the longer prompt on this worker.
  explicit InterleaveBudget(int64_t part_tokens) : left_(part_tokens / kTokensPerInterleaved) {}

  bool Fits(int64_t tokens) const { return std::max(tokens, kLeastInterleaved) <= left_; }
  // The longest that fits; 0 when none does.
  int64_t Longest() const { return left_ < kLeastInterleaved ? 0 : left_; }
  void Take(int64_t tokens) { left_ -= std::max(tokens, kLeastInterleaved); }
  void GiveBack(int64_t tokens) { left_ += std::max(tokens, kLeastInterleaved); }  // what was taken and not used

 private:
  int64_t left_ = 0;
};

}  // namespace runahead
