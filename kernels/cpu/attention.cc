#include "kernels/cpu/attention.h"

#include "kernels/base/status_macros.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_kernels.h"

namespace runahead {
namespace {

bool IsActivation(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

void Check(const CpuAttentionArgs& args) {
  const AttentionShape& shape = args.shape;
  RUNAHEAD_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0);
  RUNAHEAD_CHECK(shape.head_dim > 0 && shape.head_dim % 8 == 0 && shape.head_dim <= kMaxAttentionHeadDim);
  RUNAHEAD_CHECK(shape.scale > 0.0f && shape.window >= 0 && shape.soft_cap >= 0.0f);
  RUNAHEAD_CHECK(IsActivation(args.q.dtype) && IsActivation(args.out.dtype));
  RUNAHEAD_CHECK(args.table.base_rows() * shape.kv_row_bytes() <= static_cast<int64_t>(args.layer.size));
}

const PrefillKernels& ChoosePrefill(CpuIsa isa, const CpuAttentionArgs& args) {
  // KV of 16 bits has no more than bf16's products need. Few families cap scores: their layers do with the kernels of
  // f32 arithmetic.
  const bool bf16 = args.shape.kv_dtype != DType::kF32 && args.shape.soft_cap == 0.0f;
  if (bf16 && isa >= CpuIsa::kAmx) return AmxPrefillKernels();
  // On Intel vdpbf16ps takes twice as long as two vfmadd (seen: 70 against 137 GFLOP/s), on AMD half as long.
  if (bf16 && isa == CpuIsa::kAvx512Bf16 && FastestDType() == DType::kBF16) return Avx512Bf16PrefillKernels();
  return isa >= CpuIsa::kAvx512 ? Avx512PrefillKernels() : Avx2PrefillKernels();
}

}  // namespace

void RunCpuAttention(ThreadPool& pool, CpuIsa isa, const CpuAttentionArgs& args) {
  RUNAHEAD_CHECK(isa >= CpuIsa::kAvx2);
  Check(args);
  int64_t row = 0;
  for (const KvSequence& sequence : args.table.layout().sequences) {
    RunPrefillAttention(pool, ChoosePrefill(isa, args), args, sequence, row);
    row += sequence.queries;
  }
}

void AttendCpuPieces(ThreadPool& pool, CpuIsa isa, const CpuAttentionArgs& args) {
  RUNAHEAD_CHECK(isa >= CpuIsa::kAvx2);
  Check(args);
  RunPieces(pool, isa >= CpuIsa::kAvx512 ? Avx512DecodeKernels() : Avx2DecodeKernels(), args);
}

}  // namespace runahead
