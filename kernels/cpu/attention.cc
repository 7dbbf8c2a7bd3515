#include "kernels/cpu/attention.h"

#include "kernels/base/status_macros.h"
#include "kernels/cpu/attention_internal.h"
#include "kernels/cpu/attention_kernels.h"

namespace runahead {
namespace {

bool Supported(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

void Check(const CpuAttentionArgs& args) {
  const AttentionShape& shape = args.shape;
  RUNAHEAD_CHECK(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0);
  RUNAHEAD_CHECK(shape.head_dim > 0 && shape.head_dim % 8 == 0 && shape.head_dim <= kMaxAttentionHeadDim);
  RUNAHEAD_CHECK(shape.scale > 0.0f);
  RUNAHEAD_CHECK(Supported(args.q_dtype) && Supported(args.out_dtype) && Supported(shape.kv_dtype));
  RUNAHEAD_CHECK(args.q_stride >= shape.heads * shape.head_dim && args.out_stride >= shape.heads * shape.head_dim);
  for (const AttentionSequence& sequence : args.sequences) {
    int64_t tokens = 0;
    for (const KvSpan& span : sequence.kv) {
      RUNAHEAD_CHECK(span.tokens >= 0 && span.rows.size >= static_cast<size_t>(span.tokens * shape.kv_row_bytes()));
      tokens += span.tokens;
    }
    RUNAHEAD_CHECK(sequence.queries >= 0 && sequence.queries <= sequence.length && sequence.length <= tokens);
    RUNAHEAD_CHECK(sequence.dense_length == 0 ||
                   (sequence.dense_length >= sequence.length && sequence.dense_length <= tokens));
  }
}

const PrefillKernels& ChoosePrefill(CpuIsa isa, const CpuAttentionArgs& args) {
  const bool bf16 = args.q_dtype == DType::kBF16 && args.shape.kv_dtype == DType::kBF16;
  if (bf16 && isa >= CpuIsa::kAmx) return AmxPrefillKernels();
  // On Intel vdpbf16ps takes twice as long as two vfmadd (seen: 70 against 137 GFLOP/s), on AMD half as long.
  if (bf16 && isa == CpuIsa::kAvx512Bf16 && FastestDType() == DType::kBF16) return Avx512Bf16PrefillKernels();
  return isa >= CpuIsa::kAvx512 ? Avx512PrefillKernels() : Avx2PrefillKernels();
}

}  // namespace

void RunCpuAttention(ThreadPool& pool, CpuIsa isa, const CpuAttentionArgs& args) {
  RUNAHEAD_CHECK(isa >= CpuIsa::kAvx2);
  Check(args);
  for (const AttentionSequence& sequence : args.sequences) {
    if (sequence.queries > 1) RunPrefillAttention(pool, ChoosePrefill(isa, args), args, sequence);
  }
  RunDecodeAttention(pool, isa >= CpuIsa::kAvx512 ? Avx512DecodeKernels() : Avx2DecodeKernels(), args);
}

}  // namespace runahead
