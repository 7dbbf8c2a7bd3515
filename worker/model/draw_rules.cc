#include "worker/model/draw_rules.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/op_params.h"
#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<std::shared_ptr<const WantedGrammar>> WantGrammar(const DrawRules& rules, GrammarSource* source) {
  if (!rules.structure.has_value()) return nullptr;
  if (source == nullptr) return absl::UnimplementedError("structure: this worker compiles no forms of answers");
  return source->Want(*rules.structure);
}

TokenMask::TokenMask(DrawRules rules, int64_t vocab, std::shared_ptr<const WantedGrammar> grammar)
    : rules_(std::move(rules)), vocab_(vocab), grammar_(std::move(grammar)) {
  std::erase_if(rules_.bad_ids, [](const std::vector<int32_t>& ids) { return ids.empty(); });  // not checked yet
  for (const std::vector<int32_t>& ids : rules_.bad_ids) looks_back_ = std::max(looks_back_, ids.size() - 1);
}

void TokenMask::Append(int32_t id) {
  ++tokens_;
  if (grammar_ != nullptr) to_follow_.push_back(id);
  if (looks_back_ == 0) return;
  last_.push_back(id);
  // Only now and then: each token is moved once at most.
  if (last_.size() >= 2 * looks_back_ + 16) last_.erase(last_.begin(), last_.end() - static_cast<int64_t>(looks_back_));
}

absl::StatusOr<absl::Span<const uint32_t>> TokenMask::Next() {
  for (const int32_t id : forbidden_) words_[id / 32] |= 1u << (id % 32);
  forbidden_.clear();
  if (grammar_ != nullptr) {
    RUNAHEAD_RETURN_IF_ERROR(Follow());
    words_.resize(MaskWords(vocab_));
    RUNAHEAD_RETURN_IF_ERROR(state_->FillMask(absl::MakeSpan(words_)).status());
  }
  if (tokens_ < rules_.min_tokens) {
    for (const int32_t id : rules_.end_ids) Forbid(id);
  }
  for (const std::vector<int32_t>& ids : rules_.bad_ids) {
    const size_t before = ids.size() - 1;
    if (before <= last_.size() && std::equal(ids.begin(), ids.end() - 1, last_.end() - static_cast<int64_t>(before))) {
      Forbid(ids.back());
    }
  }
  if (forbidden_.empty() && grammar_ == nullptr) return absl::Span<const uint32_t>();
  return words_;
}

absl::Status TokenMask::Follow() {
  if (state_ == nullptr) {
    RUNAHEAD_RETURN_IF_ERROR(grammar_->ready().Wait());
    state_ = grammar_->grammar()->Begin();
  }
  for (const int32_t id : to_follow_) {
    const absl::Status accepted = state_->Accept(id);
    if (!accepted.ok()) return absl::OutOfRangeError(absl::StrCat("output_ids: ", accepted.message()));
  }
  to_follow_.clear();
  return absl::OkStatus();
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
