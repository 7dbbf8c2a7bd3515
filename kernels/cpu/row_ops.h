// Ops whose rows do not depend on each other: checked arguments in, rows spread over the pool. They block until done.
// A row's result is bitwise the same whatever rows are beside it and however many threads there are.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/device.h"
#include "kernels/base/thread_pool.h"
#include "kernels/cpu/cpu_weights.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/simd/kernels.h"

namespace runahead {

struct RowOps {
  const CpuKernels& kernels;
  ThreadPool& pool;

  // As the methods of Device with these names (kernels/base/device.h).
  void Embed(const CpuWeights& table, const std::vector<int32_t>& ids, bool accumulate, const MutTensor& out) const;
  void RmsNorm(const ConstTensor& x, const ConstTensor& weight, float eps, const MutTensor& out) const;
  void HeadNorm(const MutTensor& x, int64_t head_dim, const ConstTensor& weight, float eps) const;
  void Rope(const MutTensor& x, int64_t head_dim, const Rotation& rotation, const KvTable& table,
            int64_t first_row) const;
  void StoreQkv(const ConstTensor& qkv, const AttentionShape& shape, const MutTensor& q, const KvTable& table,
                int64_t first_row, const BufferRef& layer) const;
  void LayerNorm(const ConstTensor& x, const ConstTensor& weight, const ConstTensor& bias, float eps,
                 const MutTensor& out) const;
  void GatedActivate(const ConstTensor& gate_up, Activation activation, const MutTensor& out) const;
  void Activate(const ConstTensor& x, Activation activation, const MutTensor& out) const;
  void Scale(const ConstTensor& x, float factor, bool accumulate, const MutTensor& out) const;
  void SoftCap(const MutTensor& x, float cap) const;
  void GatherRows(const ConstTensor& x, const std::vector<int32_t>& rows, const MutTensor& out) const;
  void ExchangeRows(const ConstTensor& x, const std::vector<RowMove>& rows, const MutTensor& out) const;
  void QuantizeKv(const ConstTensor& rows, const KvQuant& quant, const BufferRef& out) const;
  void DequantizeKv(const ConstBufferRef& from, const KvQuant& quant, const MutTensor& out) const;
  void TopK(const ConstTensor& logits, int64_t k, const MutTensor& ids, const MutTensor& values,
            const MutTensor& log_sum) const;
  void Sample(const ConstTensor& logits, const std::vector<SampleParams>& params, const SampleTables& tables,
              const MutTensor& ids, const MutTensor& values) const;

 private:
  template <typename Body>
  void ForRows(int64_t rows, int64_t elements_per_row, const Body& body) const {
    runahead::ForRows(pool, rows, elements_per_row, body);
  }
};

}  // namespace runahead
