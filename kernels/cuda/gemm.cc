#include "kernels/cuda/gemm.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/kernels.h"

namespace runahead {

GemmShape ProductAlone(const GemmShape& shape) {
  GemmShape product = shape;
  product.bias = false;
  product.activation.reset();
  if (SumBytes(shape) != 0) {
    product.out_dtype = DType::kF32;
    product.out_stride = shape.n;
  }
  return product;
}

size_t SumBytes(const GemmShape& shape) {
  return shape.out_dtype == DType::kF32 ? 0 : static_cast<size_t>(shape.m * shape.n) * sizeof(float);
}

cudaError_t FinishGemm(const GemmShape& shape, const GemmOperands& operands, void* sums, cudaStream_t stream) {
  const GemmShape product = ProductAlone(shape);
  const CudaMatrix from = {sums, product.out_dtype, shape.m, shape.n, product.out_stride};
  const CudaMatrix to = {operands.out, shape.out_dtype, shape.m, shape.n, shape.out_stride};
  return LaunchBias(from, operands.bias, shape.activation, to, stream);
}

absl::StatusOr<std::shared_ptr<const GemmPlan>> GemmPlans::Find(const GemmShape& shape) {
  MutexLock lock(mu_);
  if (const auto found = plans_.find(shape); found != plans_.end()) return found->second;
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const GemmPlan> plan, planner_->Plan(shape));
  if (plans_.size() >= kMost) plans_.clear();
  plans_[shape] = plan;
  return plan;
}

}  // namespace runahead
