// The law by which short prompts overtake long ones that wait for the same workers. Pure. The router keeps to it in its
// queue, a worker among the jobs that it was given.
//
// Turns have an order (fair_order.h). A prompt i that nobody overtakes has its first token
//   A_i = f_i + e_i
// after it came: e_i is what it takes, f_i what stands before it then. One that takes half as long at most may overtake
// it, which is to be computed before it though its turn is later, as long as all that do take a quarter of A_i
// together:
//   e_j <= e_i / kOvertakerShare   and   e_j + sum of e_k <= A_i / kOvertakenShare
// for each i that j overtakes, over all k that overtook i before.
// So i has its first token after 1.25 A_i at the latest, and the pass under way when its turn comes: who overtakes
// anybody that stands before i overtakes i, too, and counts in its sum. The sum only grows, and is the age that raises
// i: once it is used up nobody overtakes i any more.
//
// Of those that may go, the one that takes least goes first. It has the turn of the first of them, so it is of the same
// tenant and priority: between tenants turns stay as they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "scheduler/placement/fair_order.h"

namespace runahead {

// Those that overtake a prompt take at most one part in so many of what it takes with the wait in front of it.
inline constexpr int kOvertakenShare = 4;

// A prompt that is about as long gains no more than the other loses, and nobody knows exactly what a prompt takes.
inline constexpr int kOvertakerShare = 2;

// How long those that overtake one prompt may still take.
class Allowance {
 public:
  Allowance() = default;  // nobody overtakes it
  static Allowance Left(double left_s) { return Allowance(left_s); }
  // `takes_s`: A_i above, in seconds.
  static Allowance Of(double takes_s) { return Allowance(takes_s / kOvertakenShare); }

  double left_s() const { return left_s_; }
  // What takes nothing is not known, and overtakes nobody.
  bool Fits(double expected_s) const { return expected_s > 0 && expected_s <= left_s_; }
  void Take(double expected_s) { left_s_ -= expected_s; }
  void GiveBack(double expected_s) { left_s_ += expected_s; }  // what was taken and not used

 private:
  explicit Allowance(double left_s) : left_s_(left_s) {}

  double left_s_ = 0;
};

struct WaitingPrompt {
  double expected_s = 0;      // what it takes; 0: not known
  Allowance allowance = {};   // of those that overtake it
  bool may_overtake = false;  // it waits for no other worker; the first in turn needs not
  absl::string_view tenant = {};
  RequestPriority priority = RequestPriority::kNormal;
};

// What one may take at most that is to overtake a prompt.
inline double BearsS(double expected_s, const Allowance& allowance) {
  return std::min(allowance.left_s(), expected_s / kOvertakerShare);
}

// The index of the prompt that is to begin now. `waiting` is in the order of turns. The first of them may begin in any
// case: so nothing only where there are none.
std::optional<size_t> WhoBegins(absl::Span<const WaitingPrompt> waiting);

// The index of the prompt that is to begin before what has its workers already, which bears one that takes `room_s` at
// most. Nothing where none may.
std::optional<size_t> WhoOvertakes(absl::Span<const WaitingPrompt> waiting, double room_s);

}  // namespace runahead
