// Loops that decode the same sequences from the same positions on, in turn; and what KVPR's steps were.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/bench/decode_batch.h"
#include "tests/bench/gpu_timing.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {

class KvprTurns {
 public:
  // Tokens of room that a batch needs behind the position at which turns begin.
  static constexpr int64_t kRoom = 20;

  // A step of KVPR, and the costs of a layer as steps had measured them by then.
  struct Taken {
    LaneRows rows;
    LaneCosts costs;
    double device_s = 0;  // for which the device was busy
    double overlap = 0;   // StepTimes::OverlapRatio
  };

  struct Case {
    std::string name;
    DecodeBatch* batch = nullptr;
    int64_t first_warm = 0, warm = 0;  // steps before those that are timed: in the first turn, in the others
    std::unique_ptr<StepLoop> loop = {};
    // Of the steps that were timed.
    std::vector<double> seconds = {};
    std::vector<Taken> taken = {};  // none of plain decode

    Timing timing() const { return TimingOf(seconds, 1); }
    double BusyShare() const;  // of the device, in all of them
  };

  // All that is given outlives the turns. `device`: the models'.
  explicit KvprTurns(Device& device) : device_(device) {}

  // Plain decode, which reads KV where it lies.
  void AddPlain(std::string name, const Model& model, DecodeBatch& batch);
  // KVPR without recomputation and host lane, and by the solver, which follows what steps take. Errors are those of
  // KvprLoop::Create.
  absl::Status AddPlainKvpr(std::string name, const Model& model, DecodeBatch& batch, const LaneCosts& costs,
                            const KvprOptions& options);
  absl::Status AddSolver(std::string name, const Model& model, DecodeBatch& batch, const LaneCosts& costs,
                         const KvprOptions& options);

  // Of each case in turn, for about `seconds` each and at least five turns; from `position` on, up to which the batches
  // have tokens.
  absl::Status Run(int64_t position, double seconds);

  const std::deque<Case>& cases() const { return cases_; }

 private:
  absl::Status AddKvpr(Case added, const Model& model, std::unique_ptr<SplitSource> split, KvprOptions options);

  Device& device_;
  std::deque<Case> cases_;  // stay where they are: loops add to them
};

// How many times as fast as the last step of `before` the model says that of `after` is: by the costs that the latter's
// steps had measured, but for weights, which either has where it has them. Both are of KVPR.
double PredictedGain(const KvprTurns::Case& before, const KvprTurns::Case& after);

}  // namespace runahead
