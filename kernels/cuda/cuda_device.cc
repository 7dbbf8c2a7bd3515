#include "kernels/cuda/cuda_device.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_device_impl.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

// Ampere: bf16, and what our kernels are compiled for.
constexpr int kLeastCapability = 80;
constexpr int kMostHeadDim = 256;

int DriverSupports(cudaDeviceAttr attribute, int ordinal) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, ordinal) == cudaSuccess ? value : 0;
}

// Taken from the driver that is there: linking it would keep the plugin from loading where it is not.
absl::StatusOr<StreamWaitValue> FindWaitValue() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  RUNAHEAD_RETURN_IF_ERROR(
      CudaStatus(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, cudaEnableDefault, &found),
                 "asking the driver for cuStreamWaitValue32"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::FailedPreconditionError("the GPU's driver has no cuStreamWaitValue32: install a newer one");
  }
  return reinterpret_cast<StreamWaitValue>(function);
}

std::vector<DType> DTypesOf(DType compute) {
  if (compute == DType::kF32) return {DType::kF32};
  return {DType::kF32, compute};
}

}  // namespace

CudaDevice::CudaDevice(std::shared_ptr<const CudaContext> context, DType compute_dtype,
                       std::unique_ptr<GemmPlanner> planner)
    : context_(std::move(context)),
      name_(absl::StrCat("cuda:", context_->ordinal)),
      dtype_(compute_dtype),
      dtypes_(DTypesOf(compute_dtype)),
      gemm_plans_(std::move(planner)),
      uploader_(context_, compute_dtype) {}

OpLimits CudaDevice::limits() const {
  return {.dtypes = dtypes_, .kv_dtypes = dtypes_, .most_head_dim = kMostHeadDim, .most_vocab = kMostSampleVocab};
}

absl::StatusOr<std::shared_ptr<Buffer>> CudaDevice::Allocate(size_t bytes, MemoryKind kind) {
  return kind == MemoryKind::kDevice ? context_->memory->AllocateDevice(bytes)
                                     : context_->memory->AllocatePinned(bytes);
}

std::unique_ptr<Stream> CudaDevice::NewStream(std::string_view) {
  return std::make_unique<CudaStream>(context_);
}

absl::StatusOr<std::shared_ptr<const Weights>> CudaDevice::LoadWeights(const WeightSource& source, unsigned uses) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  if ((uses & (kUsePrefill | kUseDecode)) == 0) return absl::InvalidArgumentError("weights that no op may use");
  return uploader_.Upload(source, (uses & kUseStreamed) != 0 ? MemoryKind::kHost : MemoryKind::kDevice);
}

absl::StatusOr<std::shared_ptr<const Weights>> CudaDevice::WeightsAt(const Weights& streamed, const BufferRef& slot) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightsAt(streamed, slot));
  return std::make_shared<CudaWeights>(slot, MemoryKind::kDevice, dtype_, streamed.rows(), streamed.cols());
}

Event CudaDevice::Record(Stream& stream) {
  return CudaStreamOf(stream).Record();
}

std::shared_ptr<const TimeMark> CudaDevice::MarkTime(Stream& stream) {
  return CudaStreamOf(stream).MarkTime();
}

void CudaDevice::WaitFor(Stream& stream, const Event& event) {
  CudaStreamOf(stream).WaitFor(event);
}

void CudaDevice::Call(Stream& stream, std::function<void()> function) {
  CudaStreamOf(stream).Call(std::move(function));
}

void CudaDevice::BeginStep(Stream& stream) {
  CudaStreamOf(stream).BeginStep();
}

void CudaDevice::EndStep(Stream& stream) {
  CudaStreamOf(stream).EndStep();
}

absl::StatusOr<std::shared_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options) {
  int count = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&count); code != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(absl::StrCat("CUDA shows no GPU: ", cudaGetErrorString(code)));
  }
  if (options.ordinal < 0 || options.ordinal >= count) {
    return absl::InvalidArgumentError(absl::StrCat("GPU ", options.ordinal, " of ", count));
  }
  RUNAHEAD_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.ordinal), "choosing the GPU"));
  const int capability = 10 * DriverSupports(cudaDevAttrComputeCapabilityMajor, options.ordinal) +
                         DriverSupports(cudaDevAttrComputeCapabilityMinor, options.ordinal);
  if (capability < kLeastCapability) {
    return absl::FailedPreconditionError(absl::StrCat("GPU ", options.ordinal, " has compute capability ",
                                                      capability / 10, ".", capability % 10,
                                                      ", and 8.0 (A100) is the least: take another, or device: cpu"));
  }
  // Attention reads KV in pinned host memory under the host's address.
  if (!DriverSupports(cudaDevAttrCanUseHostPointerForRegisteredMem, options.ordinal)) {
    return absl::FailedPreconditionError("this GPU does not reach pinned host memory under the host's addresses");
  }
  auto context = std::make_shared<CudaContext>();
  context->ordinal = options.ordinal;
  RUNAHEAD_ASSIGN_OR_RETURN(context->wait_value, FindWaitValue());
  RUNAHEAD_ASSIGN_OR_RETURN(context->memory, CudaMemory::Create(options.ordinal, options.memory_budget));
  RUNAHEAD_ASSIGN_OR_RETURN(context->flags, CudaFlags::Create(*context->memory));
  context->clock = std::make_shared<CudaClock>(options.ordinal);
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<GemmPlanner> planner, NewGemmPlanner());
  return std::make_shared<CudaDevice>(std::move(context), options.compute_dtype, std::move(planner));
}

}  // namespace runahead
