// Bounds what xgrammar does for one form. Its copy here (xgrammar_mends.cmake) counts its steps: a step is a state of its
// parser that it looks at, some 25 ns. That is the same on every machine, which a clock is not. It makes few of a
// form's masks when it compiles it, and the others when they are needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

namespace runahead {

// Thrown where the work is too much. What xgrammar was working at is not to be used any more.
struct GrammarWorkTooMuch {};

// A state of a form's parser, as far as its mask depends on it.
struct MaskStateId {
  int32_t rule = 0, sequence = 0, element = 0, part = 0;
  bool operator==(const MaskStateId& other) const {
    return rule == other.rule && sequence == other.sequence && element == other.element && part == other.part;
  }
};

// Where xgrammar finds, and leaves, the masks of a form's states that it did not make when it compiled the form.
// Thread-safe.
class FormMasks {
 public:
  virtual ~FormMasks() = default;
  // Null: it is not there, or not any more.
  virtual std::shared_ptr<const void> Find(const MaskStateId& id) = 0;
  virtual void Keep(const MaskStateId& id, std::shared_ptr<const void> mask, size_t bytes) = 0;
};

// For xgrammar: of a character that an expression repeats more often, so many are written out behind the others. Tokens
// of more characters are judged each time an answer comes there: of SmolLM2's 49,152 those are 75, of Gemma's 262,144
// they are 21.
inline constexpr int kWrittenOut = 24;

inline constexpr int64_t kNoWorkBound = std::numeric_limits<int64_t>::max();

inline thread_local int64_t grammar_work_left = kNoWorkBound;
inline thread_local int64_t mask_work_left = 0;          // for masks of states
inline thread_local FormMasks* masks_of_form = nullptr;  // null: the form is being compiled

// For xgrammar: a step, or as much as `steps`.
inline void SpendGrammarWork() {
  if (--grammar_work_left < 0) throw GrammarWorkTooMuch();
}
inline void SpendGrammarWork(int64_t steps) {
  grammar_work_left = grammar_work_left < steps ? -1 : grammar_work_left - steps;
  if (grammar_work_left < 0) throw GrammarWorkTooMuch();
}

// For xgrammar: calls `make`, which makes the mask of a state; its steps count as the work of masks only.
template <typename Make>
void SpendMaskWork(Make make) {
  struct Swapped {
    Swapped() { std::swap(grammar_work_left, mask_work_left); }
    ~Swapped() { std::swap(grammar_work_left, mask_work_left); }
  };
  const Swapped swapped;
  make();
}

// For xgrammar: as SpendMaskWork, when a form is compiled. Where the work ends, the mask is left for later.
template <typename Make>
void MakeMaskAhead(Make make) {
  if (mask_work_left <= 0) return;
  try {
    SpendMaskWork(make);
  } catch (const GrammarWorkTooMuch&) {
  }
}

// While it lives, this thread may do so many steps, and others for masks of states. Not nested.
class GrammarWork {
 public:
  GrammarWork(int64_t steps, int64_t mask_steps, FormMasks* masks) : steps_(steps), mask_steps_(mask_steps) {
    grammar_work_left = steps;
    mask_work_left = mask_steps;
    masks_of_form = masks;
  }
  ~GrammarWork() {
    grammar_work_left = kNoWorkBound;
    mask_work_left = 0;
    masks_of_form = nullptr;
  }
  GrammarWork(const GrammarWork&) = delete;
  GrammarWork& operator=(const GrammarWork&) = delete;

  int64_t done() const { return steps_ - grammar_work_left + mask_steps_ - mask_work_left; }
  // Whether masks were left for later.
  bool masks_spent() const { return mask_work_left <= 0; }

 private:
  const int64_t steps_, mask_steps_;
};

}  // namespace runahead
