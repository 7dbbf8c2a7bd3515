// The kernels behind flash_attention.h, each in a file of its own, for they take long to compile. The arguments are
// what FlashPrefillTakes or FlashDecodeTakes lets pass.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/flash_attention.h"

namespace runahead {

// For every GPU from compute capability 8.0 on.
cudaError_t LaunchPrefillAnyGpu(const FlashPrefillArgs& args, cudaStream_t stream);

// For compute capability 9.0 only, where there is one for the head_dim, the dtype and the kind (dense or not).
using PrefillLauncher = cudaError_t (*)(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperBf16Dim64(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperBf16Dim128(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperBf16Dim128Dense(const FlashPrefillArgs& args, cudaStream_t stream);
cudaError_t LaunchPrefillHopperF16Dim128(const FlashPrefillArgs& args, cudaStream_t stream);

// What the pieces' launch leaves for the merge's, in FlashDecodeArgs::workspace: of every piece and head the weighted
// mean of V, and log2 of the sum of the weights, exp(scale * q.k).
struct FlashPartials {
  float* means = nullptr;  // [pieces, heads, head_dim]
  float* logs = nullptr;   // [pieces, heads]
};
inline FlashPartials PartialsIn(const FlashDecodeArgs& args) {
  auto* means = reinterpret_cast<float*>(args.workspace);
  return {means, means + args.piece_count * args.heads * args.head_dim};
}

cudaError_t LaunchDecodePieces(const FlashDecodeArgs& args, cudaStream_t stream);
cudaError_t LaunchDecodeMerge(const FlashDecodeArgs& args, cudaStream_t stream);

}  // namespace runahead
