#include "scheduler/placement/overtaking.h"

#include <algorithm>
#include <limits>

namespace runahead {
namespace {

// The one that takes least of those that `may(its index)` and that all before them bear. The first of these says whose
// turn it is.
template <typename May>
std::optional<size_t> Shortest(absl::Span<const WaitingPrompt> waiting, const May& may) {
  std::optional<size_t> shortest;
  double bearable_s = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < waiting.size(); ++i) {
    const WaitingPrompt& one = waiting[i];
    const bool shorter =
        !shortest || (one.expected_s < waiting[*shortest].expected_s && one.tenant == waiting[*shortest].tenant &&
                      one.priority == waiting[*shortest].priority);
    if (shorter && one.expected_s <= bearable_s && may(i)) shortest = i;
    bearable_s = std::min(bearable_s, BearsS(one.expected_s, one.allowance));
  }
  return shortest;
}

}  // namespace

std::optional<size_t> WhoBegins(absl::Span<const WaitingPrompt> waiting) {
  return Shortest(waiting, [&](size_t i) { return i == 0 || (waiting[i].may_overtake && waiting[i].expected_s > 0); });
}

std::optional<size_t> WhoOvertakes(absl::Span<const WaitingPrompt> waiting, double room_s) {
  const Allowance room = Allowance::Left(room_s);
  return Shortest(waiting, [&](size_t i) { return waiting[i].may_overtake && room.Fits(waiting[i].expected_s); });
}

}  // namespace runahead
