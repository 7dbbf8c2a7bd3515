// The prompts that one prefill worker was given and has not finished, and what they let one expect of it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/interleave.h"

namespace runahead {

struct PlacedJob {
  uint64_t placement = 0;            // by which it is found
  bool interleaved = false;          // it runs between two layers of the one that is computed
  int64_t tokens = 0;                // of the whole prompt
  absl::Duration computing;          // predicted, for the whole prompt
  absl::Time end;                    // predicted
  absl::Duration layer;              // predicted
  InterleaveBudget interleave = {};  // what is left of it for others
};

// For one thread at a time.
class PlacedJobs {
 public:
  // What the planner asks: a copy of it is cheap.
  struct Outlook {
    int unfinished = 0;                            // but for interleaved ones
    absl::Time done = absl::InfinitePast();        // predicted: all of them, interleaved ones too
    absl::Time place_free = absl::InfinitePast();  // predicted; the past where there is a place now
    InterleaveBudget interleave = {};  // of the one that is computed; none while another runs between its layers
    double layer_s = 0;                // predicted, of that one

    // Fills in the fields of `view` that say how busy the worker is.
    void Fill(absl::Time now, WorkerView& view) const;
  };

  // An interleaved one needs one that is computed, and keeps all others waiting for as long as it takes.
  void Add(PlacedJob job);

  // The job of this placement has ended on the worker. Nothing happens where it is unknown.
  void Finish(uint64_t placement);

  // The same for one that the worker was not told of: what it took from others goes back to them.
  void Withdraw(uint64_t placement);

  const Outlook& outlook() const { return outlook_; }
  bool empty() const { return jobs_.empty(); }

 private:
  struct Given : PlacedJob {
    uint64_t longer = 0;  // an interleaved one's: the placement between whose layers it runs
  };

  Given* Computed();  // the first that is not interleaved; null when there is none
  std::optional<Given> Remove(uint64_t placement);
  void LookAhead();

  std::vector<Given> jobs_;  // in their order
  Outlook outlook_;
};

}  // namespace runahead
