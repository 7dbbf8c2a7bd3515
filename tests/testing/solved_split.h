// A split that does not learn.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/recompute/split_solver.h"
#include "worker/decode/kvpr/split_source.h"

namespace runahead::testing {

// Each step as the solver splits it by costs that stay as they are given, whatever a step takes.
class SolvedSplit final : public SplitSource {
 public:
  explicit SolvedSplit(const LaneCosts& costs) : costs_(costs) {}
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes) override {
    return SolveLanes(SplitObjective::kStep, costs_, shapes);
  }
  void Observe(const LanePlan&, const LaneMeasurement&) override {}
  void Restart(const LaneCosts&) override {}
  LaneCosts costs() const override { return costs_; }

 private:
  const LaneCosts costs_;
};

}  // namespace runahead::testing
