#include "scheduler/placement/expected_output.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace runahead {
namespace {

// Expected tokens are rounded up to a multiple of this, so that a class whose answers all have one length has some
// room.
constexpr int64_t kRound = 16;
// Prompts of 2^23 tokens and more are one class.
constexpr int kLastPromptClass = 24;

int ClassOf(int64_t tokens) {
  return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, tokens)));
}

int PromptClass(int64_t tokens) {
  return std::min(ClassOf(tokens), kLastPromptClass);
}

// The largest of its class.
int32_t LargestLike(int32_t tokens) {
  const int64_t largest = (int64_t{1} << ClassOf(tokens)) - 1;
  return static_cast<int32_t>(std::min<int64_t>(largest, std::numeric_limits<int32_t>::max()));
}

}  // namespace

int32_t ExpectedOutput::Recent::NineOfTen() const {
  std::array<int32_t, kRecent> sorted = tokens;
  const size_t known = std::min<uint64_t>(seen, kRecent);
  const size_t at = (known * 9 + 9) / 10 - 1;
  std::nth_element(sorted.begin(), sorted.begin() + at, sorted.begin() + known);
  return sorted[at];
}

int32_t ExpectedOutput::Expect(int64_t prompt_tokens, int32_t max_tokens) const {
  const int most = ClassOf(max_tokens);
  const auto own = by_both_.find({PromptClass(prompt_tokens), most});
  const auto like = by_most_.find(most);
  int64_t expected = kUnknown;
  if (own != by_both_.end() && own->second.Enough()) {
    expected = own->second.NineOfTen();
  } else if (like != by_most_.end() && like->second.Enough()) {
    expected = like->second.NineOfTen();
  }
  const int64_t rounded = (expected + kRound - 1) / kRound * kRound;
  return static_cast<int32_t>(std::clamp<int64_t>(rounded, 1, std::max(1, max_tokens)));
}

void ExpectedOutput::Learn(int64_t prompt_tokens, int32_t max_tokens, int32_t output_tokens, bool whole) {
  if (!whole && output_tokens <= Expect(prompt_tokens, max_tokens)) return;
  // One that ended at its max_tokens had more to say: of the class's other max_tokens it would have filled each.
  const int32_t learned = output_tokens >= max_tokens ? LargestLike(max_tokens) : output_tokens;
  const int most = ClassOf(max_tokens);
  by_both_[{PromptClass(prompt_tokens), most}].Add(learned);
  by_most_[most].Add(learned);
}

}  // namespace runahead
