// When a request may expect its first token, so that one whose deadline comes before that need not wait in vain. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace runahead {

// The router fills in what it knows when the request comes. A 0 says that it does not know, and adds nothing.
struct FirstTokenView {
  double prefill_s = 0;         // what its prompt takes
  double backlog_s = 0;         // until some prefill worker has done what it was given
  double ahead_s = 0;           // what the prompts of those that go first take, of one worker each
  int64_t prefill_workers = 1;  // that share them
  int64_t slots_ahead = 0;      // requests that go first and want a slot of a decode worker
  int64_t free_slots = 0;
  double slots_per_s = 0;           // how often slots were given back lately
  std::vector<double> ends_s = {};  // until sequences that have a slot end at the latest, of all decode workers
};

// Seconds from now; rather too few than too many, for nobody is to be refused who would have been in time. 0 where
// nothing that is known goes first: such a prompt runs at once, and shows what prompts take.
inline double ExpectFirstToken(FirstTokenView view) {
  const double place_s =
      view.backlog_s + view.ahead_s / static_cast<double>(std::max<int64_t>(1, view.prefill_workers));
  const int64_t must_end = view.slots_ahead + 1 - view.free_slots;
  double slot_s = must_end > 0 && view.slots_per_s > 0 ? static_cast<double>(must_end) / view.slots_per_s : 0;
  if (must_end > 0 && must_end <= static_cast<int64_t>(view.ends_s.size())) {
    const auto last = view.ends_s.begin() + (must_end - 1);
    std::nth_element(view.ends_s.begin(), last, view.ends_s.end());
    slot_s = std::min(slot_s, *last);
  }
  if (place_s <= 0 && slot_s <= 0) return 0;
  // Its prompt is computed while the last of these is still decoded.
  return std::max(place_s + view.prefill_s, slot_s);
}

}  // namespace runahead
