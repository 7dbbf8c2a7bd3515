#include "kernels/cuda/kernels.h"
namespace runahead {
cudaError_t LaunchLayerNorm(const CudaMatrix&, const float*, const float*, float, const CudaMatrix&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchActivate(const CudaMatrix&, Activation, const CudaMatrix&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchBias(const CudaMatrix&, const float*, std::optional<Activation>, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchGatherRows(const CudaMatrix&, const int32_t*, const CudaMatrix&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchScatterRows(const CudaMatrix&, const int32_t*, const CudaMatrix&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchQuantizeKv(const CudaMatrix&, const KvQuant&, std::byte*, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchDequantizeKv(const std::byte*, const KvQuant&, const CudaMatrix&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t LaunchSample(const CudaMatrix&, const SampleParams*, const CudaMatrix&, cudaStream_t) { return cudaErrorNotSupported; }
}
