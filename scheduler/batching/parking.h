// Where decode has too little memory: which sequence gives its memory up, and which comes back first. Pure: state is
// an argument.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "scheduler/batching/step_plan.h"

namespace runahead {

// Tokens that a sequence which came back can give before it may be parked again, whatever it took to compute it again:
// a block of them. Before it comes back there is memory for its length and for these.
inline constexpr int64_t kGuaranteedTokens = 256;

// The order in which sequences have memory: the smallest comes first.
struct MemoryTurn {
  bool parked_first = false;  // of low priority: behind all others
  SequenceNumber number = 0;  // the older, the smaller
  friend auto operator<=>(const MemoryTurn&, const MemoryTurn&) = default;
};

// A sequence that may be parked, as far as it and the others allow it, and that has memory now.
struct MemoryHolder {
  MemoryTurn turn;
  int64_t length = 0;      // tokens so far
  int64_t guaranteed = 0;  // length that it may reach before it is parked; 0: it was never parked
};

// Chooses which of `holders`, in any order, is parked so that one of them can grow: the one whose turn comes last. The
// one whose turn comes first is never parked, nor is one that is shorter than was guaranteed to it. The choice may be
// the one that wants to grow. Nothing: none may be parked, and the one that wants to grow waits.
std::optional<MemoryTurn> WhomToPark(absl::Span<const MemoryHolder> holders);

}  // namespace runahead
