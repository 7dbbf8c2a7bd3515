// The kernels behind flash_attention.h, each in a file of its own, for they take long to compile. The arguments are
// what FlashPrefillTakes or FlashPiecesTake lets pass.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/flash_attention.h"

namespace runahead {

// For every GPU from compute capability 8.0 on.
cudaError_t LaunchPrefillAnyGpu(const FlashPrefillArgs& args, cudaStream_t stream);
// The same with a window, and only with one.
cudaError_t LaunchPrefillWindow(const FlashPrefillArgs& args, cudaStream_t stream);

// For compute capability 9.0 only, where there is one for the head_dim, the dtype and the kind (dense or not).
using PrefillLauncher = cudaError_t (*)(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperBf16Dim64(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperBf16Dim128(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperBf16Dim128Dense(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperF16Dim128(const FlashPrefillArgs& args, cudaStream_t stream);

struct FlashPiecesArgs {
  AttentionArgs attention;
  AttentionWork work;
  CudaMatrix partials;
  // [work.count][work.most_queries][heads][head_dim], for outputs that are not written to their places; where a run may
  // have several queries, behind all of them [work.count][work.most_queries][heads] for logarithms.
  float* workspace = nullptr;
};
cudaError_t LaunchDecodePieces(const FlashPiecesArgs& args, cudaStream_t stream);

}  // namespace runahead
