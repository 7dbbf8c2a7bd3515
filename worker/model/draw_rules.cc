#include "worker/model/draw_rules.h"

#include <algorithm>
#include <utility>

#include "kernels/base/op_params.h"

namespace runahead {

TokenMask::TokenMask(DrawRules rules, int64_t vocab) : rules_(std::move(rules)), vocab_(vocab) {
  std::erase_if(rules_.bad_ids, [](const std::vector<int32_t>& ids) { return ids.empty(); });  // not checked yet
  for (const std::vector<int32_t>& ids : rules_.bad_ids) looks_back_ = std::max(looks_back_, ids.size() - 1);
}

void TokenMask::Append(int32_t id) {
  ++tokens_;
  if (looks_back_ == 0) return;
  last_.push_back(id);
  // Only now and then: each token is moved once at most.
  if (last_.size() >= 2 * looks_back_ + 16) last_.erase(last_.begin(), last_.end() - static_cast<int64_t>(looks_back_));
}

// What else forbids ids, such as a grammar, takes them out of words_ behind the rules here: then the mask is not empty,
// whether the rules forbid anything or not.
absl::StatusOr<absl::Span<const uint32_t>> TokenMask::Next() {
  for (const int32_t id : forbidden_) words_[id / 32] |= 1u << (id % 32);
  forbidden_.clear();
  if (tokens_ < rules_.min_tokens) {
    for (const int32_t id : rules_.end_ids) Forbid(id);
  }
  for (const std::vector<int32_t>& ids : rules_.bad_ids) {
    const size_t before = ids.size() - 1;
    if (before <= last_.size() && std::equal(ids.begin(), ids.end() - 1, last_.end() - static_cast<int64_t>(before))) {
      Forbid(ids.back());
    }
  }
  if (forbidden_.empty()) return absl::Span<const uint32_t>();
  return words_;
}

void TokenMask::Forbid(int32_t id) {
  if (id < 0 || id >= vocab_) return;
  if (words_.empty()) {
    words_.assign(MaskWords(vocab_), ~0u);
    if (vocab_ % 32 != 0) words_.back() = (1u << (vocab_ % 32)) - 1;
  }
  words_[id / 32] &= ~(1u << (id % 32));
  forbidden_.push_back(id);
}

}  // namespace runahead
