#include "scheduler/batching/parking.h"

#include <algorithm>

namespace runahead {

std::optional<MemoryTurn> WhomToPark(absl::Span<const MemoryHolder> holders) {
  std::optional<MemoryTurn> first, last;
  for (const MemoryHolder& holder : holders) first = std::min(first.value_or(holder.turn), holder.turn);
  for (const MemoryHolder& holder : holders) {
    if (holder.turn == *first || holder.length < holder.guaranteed) continue;
    last = std::max(last.value_or(holder.turn), holder.turn);
  }
  return last;
}

}  // namespace runahead
