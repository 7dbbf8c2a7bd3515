// What stands for cuBLASLt where CUDA is emulated.
#include <utility>

#include "kernels/cuda/gemm.h"
#include "tests/testing/cuda_emulation/plain_gemm.h"

namespace runahead {
namespace {

class PlainPlan final : public GemmPlan {
 public:
  explicit PlainPlan(const GemmShape& shape) : GemmPlan(shape) {}
  size_t workspace_bytes() const override { return finished_ ? 0 : SumBytes(shape_); }
  cudaError_t Run(const GemmOperands& operands, cudaStream_t stream) const override {
    const GemmShape product = finished_ ? shape_ : ProductAlone(shape_);
    void* const sums = workspace_bytes() == 0 ? operands.out : operands.workspace;
    const PlainGemmArgs args{
        operands.x,       operands.w,         sums,          product.m,         product.n,         product.k,
        product.x_stride, product.out_stride, product.dtype, product.out_dtype, product.accumulate};
    const cudaError_t code = LaunchPlainGemm(args, stream);
    return code != cudaSuccess || finished_ ? code : FinishGemm(shape_, operands, sums, stream);
  }

 private:
  const bool finished_ = !shape_.bias && !shape_.activation.has_value();  // by the product alone
};

class PlainPlanner final : public GemmPlanner {
 public:
  absl::StatusOr<std::shared_ptr<const GemmPlan>> Plan(const GemmShape& shape) override {
    return std::make_shared<const PlainPlan>(shape);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<GemmPlanner>> NewGemmPlanner() {
  return std::make_unique<PlainPlanner>();
}

}  // namespace runahead
