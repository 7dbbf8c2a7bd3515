// Ops whose rows do not depend on each other: checked arguments in, rows spread over the pool. They block until done.
// A row's result is bitwise the same whatever rows are beside it and however many threads there are.
#pragma once

#include <cstdint>
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
  void SwiGlu(const ConstTensor& gate_up, const MutTensor& out) const;
  void TopK(const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
            const MutTensor& log_sum) const;

 private:
  // body(row) for all rows; several rows a task when they are short, inline when all of it is short.
  template <typename Body>
  void ForRows(int64_t rows, int64_t elements_per_row, const Body& body) const;
};

}  // namespace runahead
