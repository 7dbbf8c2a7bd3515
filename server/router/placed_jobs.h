// The prompts that one prefill worker was given and has not finished, and what they let one expect of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/overtaking.h"

namespace runahead {

struct PlacedJob {
  uint64_t placement = 0;    // by which it is found
  bool overtakes = false;    // those that bear it, but for the one that is computed and does not
  bool alone = false;        // one worker computes the whole prompt
  int64_t tokens = 0;        // of the whole prompt
  double expected_s = 0;     // what it takes of the allowance of those
  absl::Duration computing;  // predicted, for the whole prompt
  absl::Time end;            // predicted
  absl::Duration layer;      // predicted
  Allowance allowance = {};  // of others that overtake it
};

// For one thread at a time.
class PlacedJobs {
 public:
  // What the planner asks: a copy of it is cheap.
  struct Outlook {
    int unfinished = 0;                            // places that are taken: those that overtake have none
    int64_t room = 0;                              // tokens of one more prompt in the last place, with those there
    absl::Time done = absl::InfinitePast();        // predicted: all of them
    absl::Time place_free = absl::InfinitePast();  // predicted; the past where there is a place now
    Allowance interleave = {};                     // of all that may be overtaken
    Allowance overtake = {};                       // of those behind the one that is computed
    double layer_s = 0;                            // predicted, of that one, with those that overtake it already

    // Fills in the fields of `view` that say how busy the worker is.
    void Fill(absl::Time now, WorkerView& view) const;
  };

  // How many it overtakes. One that overtakes needs one that is computed, and keeps those that it overtakes waiting for
  // as long as it takes. A short one that is alone shares the last place with others such, as far as they go together
  // (together.h) and are not computed yet; any other takes a place.
  size_t Add(PlacedJob job);

  // The job of this placement has ended on the worker. Nothing happens where it is unknown.
  void Finish(uint64_t placement);

  // The same for one that the worker was not told of: what it took from others goes back to them.
  void Withdraw(uint64_t placement);

  const Outlook& outlook() const { return outlook_; }
  bool empty() const { return jobs_.empty(); }

 private:
  struct Given : PlacedJob {
    std::vector<uint64_t> overtaken = {};  // their placements
    uint64_t place = 0;                    // of one that does not overtake: the placement of the first that has it
  };

  Given* Computed();          // the first that overtakes nobody; null when there is none
  const Given* Last() const;  // likewise the last
  std::optional<Given> Remove(uint64_t placement);
  int64_t RoomInLastPlace(uint64_t computed) const;
  void LookAhead();

  std::vector<Given> jobs_;  // in their order
  Outlook outlook_;
};

}  // namespace runahead
