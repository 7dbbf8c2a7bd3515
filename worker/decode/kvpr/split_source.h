// Where a KVPR step's split comes from.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/monotonic.h"
#include "scheduler/recompute/split_controller.h"

namespace runahead {

// Belongs to the decode loop's thread.
class SplitSource {
 public:
  virtual ~SplitSource() = default;
  // How the next step is cut. A step's plan may be asked for while the step before runs.
  virtual absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes) = 0;
  // What the step of `plan` took.
  virtual void Observe(const LanePlan& plan, const LaneMeasurement& measured) = 0;
  // No step is under way, and the costs were measured anew.
  virtual void Restart(const LaneCosts& profile) = 0;
  // The costs as it knows them.
  virtual LaneCosts costs() const = 0;
  // Why the last plan was not the solver's split, and since when (MonotonicNow). kNone where it is, or none is wanted.
  virtual SplitRest rest() const { return SplitRest::kNone; }
  virtual absl::Time rest_since() const { return absl::InfinitePast(); }
  // Those by which is decided what stays resident.
  virtual LaneCosts tier_costs() const { return costs(); }
};

// The solver's split, corrected by what steps take.
class ControlledSplit final : public SplitSource {
 public:
  explicit ControlledSplit(SplitController controller) : controller_(std::move(controller)) {}
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes) override {
    return controller_.Plan(shapes, MonotonicNow());
  }
  void Observe(const LanePlan& plan, const LaneMeasurement& measured) override { controller_.Observe(plan, measured); }
  void Restart(const LaneCosts& profile) override { controller_.Restart(profile); }
  LaneCosts costs() const override { return controller_.costs(); }
  SplitRest rest() const override { return controller_.rest(); }
  absl::Time rest_since() const override { return controller_.rest_since(); }

 private:
  SplitController controller_;
};

// The same in all sequences: for experiments, and 0 for decode without recomputation.
class FixedSplit final : public SplitSource {
 public:
  // `recomputed`: l, as far as there is X. `on_host`: positions of the host lane, whole pieces in front of the window,
  // as far as there are some.
  FixedSplit(int64_t recomputed, const LaneCosts& costs, int64_t on_host = 0)
      : recomputed_(recomputed), on_host_(on_host), costs_(costs) {}
  absl::StatusOr<LanePlan> Plan(absl::Span<const LaneShape> shapes) override;
  void Observe(const LanePlan&, const LaneMeasurement&) override {}
  void Restart(const LaneCosts& profile) override { costs_ = profile; }
  LaneCosts costs() const override { return costs_; }
  // With recomputation so slow that no X comes to stay: l would have to be larger for it.
  LaneCosts tier_costs() const override;

 private:
  int64_t OnHost(const LaneShape& shape) const;

  const int64_t recomputed_, on_host_;
  LaneCosts costs_;
};

}  // namespace runahead
