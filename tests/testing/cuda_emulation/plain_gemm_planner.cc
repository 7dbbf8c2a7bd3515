// What stands for cuBLASLt where CUDA is emulated.
#include <utility>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "tests/testing/cuda_emulation/plain_gemm.h"

namespace runahead {
namespace {

class PlainPlan final : public GemmPlan {
 public:
  explicit PlainPlan(const GemmShape& shape) : shape_(shape) {}
  size_t workspace_bytes() const override { return 0; }
  cudaError_t Run(const GemmOperands& operands, cudaStream_t stream) const override {
    const PlainGemmArgs args{operands.x,   operands.w,      operands.out,      shape_.m,     shape_.n,         shape_.k,
                             shape_.x_stride, shape_.out_stride, shape_.dtype, shape_.out_dtype, shape_.accumulate};
    const cudaError_t code = LaunchPlainGemm(args, stream);
    const CudaMatrix out{operands.out, shape_.out_dtype, shape_.m, shape_.n, shape_.out_stride};
    if (code != cudaSuccess) return code;
    if (shape_.bias) return LaunchBias(out, operands.bias, shape_.activation, out, stream);
    return shape_.activation.has_value() ? LaunchActivate(out, *shape_.activation, out, stream) : cudaSuccess;
  }

 private:
  const GemmShape shape_;
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
