// Ops whose rows do not depend on each other: checked arguments in, rows spread over the pool. They block until done.
// A row's result is bitwise the same whatever rows are beside it and however many threads there are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/stored_weights.h"

namespace runahead {

struct RowOps {
  const CpuKernels& kernels;
  ThreadPool& pool;

  // As the methods of Device with these names (kernels/base/device.h).
  void Embed(const StoredWeights& table, const std::vector<int32_t>& ids, const MutTensor& out) const;
  void RmsNorm(const ConstTensor& x, const ConstTensor& weight, float eps, const MutTensor& out) const;
  void RopeStore(const ConstTensor& qkv, const AttentionShape& shape, const ConstTensor& rotation,
                 const std::vector<int32_t>& positions, const MutTensor& q, const std::vector<KvSpan>& kv) const;
  void LayerNorm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                 const MutTensor& out) const;
  void SwiGlu(const ConstTensor& gate_up, const MutTensor& out) const;
  void Activate(const ConstTensor& x, Activation activation, const MutTensor& out) const;
  void GatherRows(const ConstTensor& x, const std::vector<int32_t>& rows, const MutTensor& out) const;
  void QuantizeKv(const ConstTensor& rows, const KvQuant& quant, const BufferRef& out) const;
  void DequantizeKv(const ConstBufferRef& from, const KvQuant& quant, const MutTensor& out) const;
  void TopK(const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
            const MutTensor& log_sum) const;
  void Sample(const ConstTensor& logits, const std::vector<SampleParams>& params, const MutTensor& counts,
              const MutTensor& ids, const MutTensor& values) const;

  // What Linear does last: out = activation(sums + bias). sums: f32, may be out; bias: f32 [1, cols], or none.
  void FinishLinear(const ConstTensor& sums, const ConstTensor& bias, std::optional<Activation> activation,
                    const MutTensor& out) const;

 private:
  // body(row) for all rows; several rows a task when they are short, inline when all of it is short.
  template <typename Body>
  void ForRows(int64_t rows, int64_t elements_per_row, const Body& body) const;
};

template <typename Body>
void RowOps::ForRows(int64_t rows, int64_t elements_per_row, const Body& body) const {
  // Elements that one task handles at least: some ten microseconds of work, against one to hand it over.
  constexpr int64_t kTaskElements = 16 << 10;
  const int64_t step = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements_per_row));
  pool.ParallelFor((rows + step - 1) / step, [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * step);
    for (int64_t row = task * step; row < end; ++row) body(row);
  });
}

}  // namespace runahead
