#include "kernels/cuda/flash_attention.h"

#include "kernels/cuda/flash_kernels.h"

namespace runahead {
namespace {

// Hopper's own instructions are in kernels for compute capability 9.0 and nothing before or after it.
cudaError_t IsHopper(bool& result) {
  int device = 0, major = 0, minor = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      error != cudaSuccess) {
    return error;
  }
  if (const cudaError_t error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
      error != cudaSuccess) {
    return error;
  }
  result = major == 9 && minor == 0;
  return cudaSuccess;
}

// Those whose compilation is worth its time; nullptr: there is none.
PrefillLauncher HopperPrefill(const FlashPrefillArgs& args) {
  const bool bf16 = args.q.dtype == DType::kBF16;
  if (args.window > 0) return nullptr;
  if (args.dense_length > 0) return bf16 && args.head_dim == 128 ? &LaunchPrefillHopperBf16Dim128Dense : nullptr;
  if (args.head_dim == 64) return bf16 ? &LaunchPrefillHopperBf16Dim64 : nullptr;
  if (args.head_dim == 128) return bf16 ? &LaunchPrefillHopperBf16Dim128 : &LaunchPrefillHopperF16Dim128;
  return nullptr;
}

}  // namespace

cudaError_t LaunchFlashPrefill(const FlashPrefillArgs& args, cudaStream_t stream) {
  if (!FlashPrefillTakes(args)) return cudaErrorInvalidValue;
  const PrefillLauncher hopper = HopperPrefill(args);
  bool is_hopper = false;
  if (hopper != nullptr) {
    if (const cudaError_t error = IsHopper(is_hopper); error != cudaSuccess) return error;
  }
  const PrefillLauncher any = args.window > 0 ? &LaunchPrefillWindow : &LaunchPrefillAnyGpu;
  const PrefillLauncher launch = is_hopper ? hopper : any;
  for (const FlashPrefillArgs& part : FlashPrefillParts(args, MostFlashQueries(args))) {
    if (const cudaError_t error = launch(part, stream); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchFlashPieces(const AttentionArgs& args, const AttentionWork& work, const CudaMatrix& partials,
                              std::byte* workspace, cudaStream_t stream) {
  if (!FlashPiecesTake(args) || !IsFlashAligned(workspace)) return cudaErrorInvalidValue;
  if (work.count == 0) return cudaSuccess;
  return LaunchDecodePieces({args, work, partials, reinterpret_cast<float*>(workspace)}, stream);
}

}  // namespace runahead
