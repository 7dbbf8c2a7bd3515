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
#include <vector>

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

// An edge of the line, whose ends stand in either order, or the way of hand-off from a prefill to a decode worker.
struct WorkerPath {
  enum class Kind { kEdge, kHandoff };
  Kind kind = Kind::kEdge;
  WorkerLife from, to;
  friend bool operator==(const WorkerPath&, const WorkerPath&) = default;
};

// Used by one thread at a time. An edge begins with generation 1 and is thought to work until an end says that it does
// not. Then it is made anew, with the next generation, after a pause: 0.1 s at first, twice as long each time that it
// breaks again, 5 s at most. A remade edge is used once both ends say that it is up. A path that a job failed over is
// doubted, and not used, until the prefill workers at its ends have been asked and have answered, kDoubtTimeout at
// most.
class EdgeStates {
 public:
  // An end that does not answer for so long is not waited for: its next report says how the path stands.
  static constexpr absl::Duration kDoubtTimeout = absl::Seconds(2);

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
  // A job failed over the path.
  void Doubt(const WorkerPath& path, absl::Time now);
  // The number of the last question that `life` is to be asked, for the doubts so far; 0: none.
  uint64_t Question(const WorkerLife& life) const;
  // `by` has reported all that it knew when it was asked this. True when Usable or Reaches may have changed.
  bool Answer(const WorkerLife& by, uint64_t question);
  // Ends doubts whose time is over: true when there were any.
  bool EndDoubts(absl::Time now);

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
  struct Doubted {
    WorkerPath path;
    uint64_t question;
    std::set<WorkerLife> unanswered;
    absl::Time until;
  };
  static WorkerPath EdgeBetween(const WorkerLife& a, const WorkerLife& b);
  bool IsDoubted(const WorkerPath& path) const;
  static Ends EndsOf(const WorkerLife& a, const WorkerLife& b) { return a < b ? Ends(a, b) : Ends(b, a); }

  std::map<Ends, Edge> edges_;
  std::set<Ends> unreachable_;  // prefill and decode
  RecentSet<WorkerLife> over_{kOverRemembered};
  std::vector<Doubted> doubts_;  // one a path
  uint64_t last_question_ = 0;
  std::map<WorkerLife, uint64_t> questions_;
};

}  // namespace runahead
