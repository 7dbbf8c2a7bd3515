#include "kernels/cuda/gemm.h"

#include "kernels/base/status_macros.h"

namespace runahead {

absl::StatusOr<std::shared_ptr<const GemmPlan>> GemmPlans::Find(const GemmShape& shape) {
  MutexLock lock(mu_);
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second;
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const GemmPlan> plan, planner_->Plan(shape));
  if (plans_.size() >= kMost) plans_.clear();
  plans_[shape] = plan;
  return plan;
}

}  // namespace runahead
