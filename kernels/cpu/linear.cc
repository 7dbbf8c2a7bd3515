#include "kernels/cpu/linear.h"

#include <memory>
#include <optional>
#include <utility>

#include "kernels/base/memory.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/for_rows.h"

namespace runahead {
namespace {

const float* BiasOf(const LinearOptions& options) {
  return options.bias.ref.buffer == nullptr ? nullptr : options.bias.row<float>(0);
}

bool NeedsFinish(const LinearOptions& options) {
  return BiasOf(options) != nullptr || options.activation.has_value();
}

}  // namespace

absl::StatusOr<Tensor> CpuLinear::SumsFor(const CpuWeights& w, const LinearOptions& options, const MutTensor& out) {
  // What bias and activation are still to be applied to stays in f32, and so do products in 8 bits.
  const bool in_f32 = w.int8() != nullptr || (options.batch_invariant && NeedsFinish(options));
  if (out.dtype == DType::kF32 || !in_f32) return out;
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory,
                            AllocateHostMemory(out.rows * out.cols * sizeof(float), nullptr));
  return MakeTensor(BufferRef::Whole(std::move(memory)), DType::kF32, out.rows, out.cols);
}

void CpuLinear::Run(const CpuWeights& w, const ConstTensor& x, const LinearOptions& options, const MutTensor& sums,
                    const MutTensor& out) const {
  if (w.int8() != nullptr) return RunInt8(*w.int8(), x, options, sums, out);
  if (options.batch_invariant) return RunStored(*w.stored(), x, options, sums, out);
  w.MultiplyPacked(gemm, x, options, out);
}

void CpuLinear::RunStored(const StoredWeights& w, const ConstTensor& x, const LinearOptions& options,
                          const MutTensor& sums, const MutTensor& out) const {
  w.Matvec(kernels, pool,
           {.x = x.row<float>(0),
            .x_stride = x.stride,
            .m = x.rows,
            .out = sums.ref.data(),
            .out_stride = sums.stride,
            .out_dtype = sums.dtype,
            .accumulate = options.accumulate,
            .begin_row = options.first_row,
            .end_row = options.first_row + out.cols});
  if (NeedsFinish(options)) Finish(sums, options, out);
}

void CpuLinear::RunInt8(const Int8Weights& w, const ConstTensor& x, const LinearOptions& options, const MutTensor& sums,
                        const MutTensor& out) const {
  const bool finish_after = out.dtype != DType::kF32;
  w.Multiply(kernels, *int8, pool,
             {.x = x.row<float>(0),
              .x_stride = x.stride,
              .m = x.rows,
              .out = sums.row<float>(0),
              .out_stride = sums.stride,
              .first_row = options.first_row,
              .cols = out.cols,
              .accumulate = options.accumulate,
              .bias = finish_after ? nullptr : BiasOf(options),
              .activation = finish_after ? std::nullopt : options.activation});
  if (finish_after) Finish(sums, options, out);
}

void CpuLinear::Finish(const ConstTensor& sums, const LinearOptions& options, const MutTensor& out) const {
  const float* const bias = BiasOf(options);
  ForRows(pool, sums.rows, sums.cols, [&](int64_t t) {
    ChangeRow(RowBytes(sums, t), sums.dtype, sums.cols, RowBytes(out, t), out.dtype,
              [&](int64_t begin, int64_t n, float* values) {
                FinishLinear(kernels, bias == nullptr ? nullptr : bias + begin, options.activation, values, n);
              });
  });
}

}  // namespace runahead
