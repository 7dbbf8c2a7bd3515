// Two kinds of loops share a pool of threads by turns. Pure.
#pragma once

#include <array>
#include <optional>

#include "absl/time/time.h"

namespace runahead {

// What a loop belongs to: steps of decode go first, for somebody waits for each of their tokens.
enum class LoopKind { kOrdinary, kFirst };

// Where both kinds have loops, each has the pool for half of the time, in short turns: those that go first begin at
// once, and are ahead of the others by kMostLead and an item at most. So a step takes about twice as long as alone, and
// so does what runs beside it. With u the time that a kind has had the pool:
//   first to ordinary: u(first) - u(ordinary) >= kMostLead; ordinary to first: u(ordinary) >= u(first).
// A kind that comes after a rest begins level with the other: time that nobody wanted is not owed. For one thread at a
// time.
class TurnOrder {
 public:
  // A turn costs what wakes threads and fills their caches: some 50 us.
  static constexpr absl::Duration kMostLead = absl::Milliseconds(2);
  // Between two loops of a step the pool is kept for the next one, for so long at most.
  static constexpr absl::Duration kBetweenLoops = absl::Microseconds(100);

  // Whether a loop of the kind may run from now on. Where not, the kind waits: ask again once Pass was true, and now
  // and then.
  bool Take(LoopKind kind, absl::Time now);
  // Between two items of the loop that runs: whether the other kind has the turn from now on. The loop goes on when
  // Take allows it.
  bool Pass(absl::Time now);
  // A loop of the kind is over, by `now`; where that was said before, nothing happens. The turn is kept for the kind,
  // or is the other's, which Pass says too.
  void End(LoopKind kind, absl::Time now);
  // It does not wait any more.
  void Withdraw(LoopKind kind);

  // The kind that has the turn; nothing at first.
  std::optional<LoopKind> turn() const { return turn_; }
  // Whether one waits that has not the turn.
  bool waiting() const { return waits_[0] || waits_[1]; }

 private:
  void Count(absl::Time now);
  void Give(LoopKind kind, absl::Time now);
  bool Over(absl::Time now) const;

  std::optional<LoopKind> turn_;
  bool running_ = false;  // a loop of turn_ has begun and not ended
  absl::Time counted_;    // until then turn_'s time is in used_
  std::array<absl::Duration, 2> used_ = {};
  std::array<absl::Time, 2> ended_ = {absl::InfinitePast(), absl::InfinitePast()};  // the last loop of each kind
  std::array<bool, 2> waits_ = {};
};

}  // namespace runahead
