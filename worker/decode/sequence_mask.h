// What the next tokens of sequences may be, found out beside the steps that draw them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/base/task_thread.h"
#include "worker/model/draw_rules.h"

namespace runahead {

// The TokenMask of one sequence. Used by one thread.
class SequenceMask {
 public:
  SequenceMask(DrawRules rules, int64_t vocab, std::shared_ptr<const WantedGrammar> grammar);

  // The next token of the output. Not while a MaskMaker makes the mask.
  void Append(int32_t id);

  // Whether Next need not wait for a MaskMaker: always, where the answer has no form.
  bool made() const;
  // TokenMask::Next, where it is made.
  absl::StatusOr<absl::Span<const uint32_t>> Next();

 private:
  friend class MaskMaker;
  struct State;
  std::shared_ptr<State> state_;  // shared with the maker, while it makes the mask
};

// Makes masks of answers that have a form. Most take microseconds; a form with large counts takes longer than a step
// for each. Those of forms that say so (CompiledGrammar::takes_long) have a thread of their own, so that no other waits
// for them. Used by one thread.
class MaskMaker {
 public:
  // `on_made` is called behind each mask, on a thread of the maker.
  explicit MaskMaker(std::function<void()> on_made);
  // What nobody has begun to make is never made.
  ~MaskMaker();

  // Has the mask made, unless it is, or is being made. The form's grammar must be ready.
  void Make(const SequenceMask& mask);

 private:
  const std::function<void()> on_made_;
  TaskThread quick_{"masks"}, slow_{"long masks"};
};

}  // namespace runahead
