// Bounds what xgrammar does for one form. Its copy here (xgrammar.cmake) counts its steps: a step is a state of its
// parser that it looks at, a tenth of a microsecond or so. That is the same on every machine, which a clock is not.
#pragma once

#include <cstdint>
#include <limits>

namespace runahead {

// Thrown where the work is too much. What xgrammar was working at is not to be used any more.
struct GrammarWorkTooMuch {};

inline thread_local int64_t grammar_work_left = std::numeric_limits<int64_t>::max();

// For xgrammar: a step.
inline void SpendGrammarWork() {
  if (--grammar_work_left < 0) throw GrammarWorkTooMuch();
}

// While it lives, this thread may do so many steps. Not nested.
class GrammarWork {
 public:
  explicit GrammarWork(int64_t steps) { grammar_work_left = steps; }
  ~GrammarWork() { grammar_work_left = std::numeric_limits<int64_t>::max(); }
  GrammarWork(const GrammarWork&) = delete;
  GrammarWork& operator=(const GrammarWork&) = delete;
};

}  // namespace runahead
