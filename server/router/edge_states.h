// How the edges of the line and the ways of hand-off stand, as the workers at their ends say. Pure: time is an
// argument.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/recent_set.h"
#include "runahead/v1/worker.pb.h"
#include "server/base/backoff.h"
#include "server/router/router_metrics.h"

namespace runahead {

// A worker process between two losses of its control stream: what is keyed by it ends with it.
struct WorkerLife {
  uint64_t incarnation = 0;
  uint32_t epoch = 0;
  friend auto operator<=>(const WorkerLife&, const WorkerLife&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const WorkerLife& life) {
    return H::combine(std::move(h), life.incarnation, life.epoch);
  }
};

WorkerLife LifeOf(const v1::Capabilities& worker);

// Used by one thread at a time. An edge begins with generation 1 and is thought to work until an end says that it does
// not. Then it is made anew, with the next generation, after a pause: 0.1 s at first, twice as long each time that it
// breaks again, 5 s at most. A remade edge is used once both ends say that it is up.
class EdgeStates {
 public:
  // The generation in which the two are to open their edge now; either order names the same edge.
  uint32_t Generation(const WorkerLife& a, const WorkerLife& b);
  bool Usable(const WorkerLife& a, const WorkerLife& b) const;
  EdgeState StateOf(const WorkerLife& a, const WorkerLife& b) const;
  // Whether `decode` can be handed KV by `prefill`.
  bool Reaches(const WorkerLife& prefill, const WorkerLife& decode) const;

  // What `by` says of a path of its own. What it says of an earlier generation, or of a life that is over, is too late,
  // and ignored. True when Usable or Reaches has changed.
  bool Report(const WorkerLife& by, const v1::PathState& state, absl::Time now);
  // Gives edges whose pause is over their next generation: true when there is one, and its ends are to be told.
  bool Renew(absl::Time now);
  // `life` is over.
  void Forget(const WorkerLife& life);

 private:
  static constexpr size_t kOverRemembered = 256;
  using Ends = std::pair<WorkerLife, WorkerLife>;  // the lesser first
  struct Edge {
    uint32_t generation = 1;
    bool broken = false;
    bool up[2] = {false, false};  // as each end says
    Backoff backoff{absl::Milliseconds(100), absl::Seconds(5)};
    bool usable() const { return !broken && (generation == 1 || (up[0] && up[1])); }
  };
  static Ends EndsOf(const WorkerLife& a, const WorkerLife& b) { return a < b ? Ends(a, b) : Ends(b, a); }

  std::map<Ends, Edge> edges_;
  std::set<Ends> unreachable_;  // prefill and decode
  RecentSet<WorkerLife> over_{kOverRemembered};
};

}  // namespace runahead
