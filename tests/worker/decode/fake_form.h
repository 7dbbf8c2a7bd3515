// A form of answers that is known without a vocabulary, and whose masks a test may hold up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "worker/model/grammar_source.h"

namespace runahead::testing {

// Token i of an answer is an id that leaves i when divided by kFormStep.
inline constexpr int64_t kFormStep = 3;
inline bool HasFakeForm(int64_t i, int32_t id) {
  return id % kFormStep == i % kFormStep;
}

// `before_mask` is called before each mask is made, with the tokens of the answer so far, on the thread that makes it.
class FakeForm final : public CompiledGrammar {
 public:
  explicit FakeForm(std::function<void(int64_t tokens)> before_mask) : before_mask_(std::move(before_mask)) {}
  size_t bytes() const override { return 0; }
  std::unique_ptr<GrammarState> Begin() const override { return std::make_unique<State>(before_mask_); }

 private:
  class State final : public GrammarState {
   public:
    explicit State(std::function<void(int64_t tokens)> before_mask) : before_mask_(std::move(before_mask)) {}
    absl::Status Accept(int32_t id) override {
      if (!HasFakeForm(tokens_, id)) return absl::InvalidArgumentError("the fake form has no such token here");
      ++tokens_;
      return absl::OkStatus();
    }
    absl::StatusOr<bool> FillMask(absl::Span<uint32_t> allowed) override {
      before_mask_(tokens_);
      std::fill(allowed.begin(), allowed.end(), 0);
      for (int32_t id = 0; id < static_cast<int32_t>(32 * allowed.size()); ++id) {
        if (HasFakeForm(tokens_, id)) allowed[id / 32] |= 1u << (id % 32);
      }
      return true;
    }
    bool Complete() const override { return false; }
    bool Ended() const override { return false; }
    std::unique_ptr<GrammarState> Copy() const override { return std::make_unique<State>(*this); }

   private:
    std::function<void(int64_t tokens)> before_mask_;
    int64_t tokens_ = 0;
  };

  std::function<void(int64_t tokens)> before_mask_;
};

// Forms by the text of the specification.
inline std::shared_ptr<GrammarSource> FakeForms(
    std::function<std::shared_ptr<const CompiledGrammar>(const std::string& text)> form) {
  return std::make_shared<GrammarSource>(
      [form = std::move(form)](const StructureSpec& spec) -> absl::StatusOr<std::shared_ptr<const CompiledGrammar>> {
        return form(spec.text);
      });
}

}  // namespace runahead::testing
