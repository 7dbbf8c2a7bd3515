// A KvTable with its arrays on the GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/kv_table.h"
#include "kernels/cuda/kv_arrays.h"

namespace runahead {

// On the GPU, valid for what is enqueued behind their upload on the stream of the table, in its step.
struct CudaKvArrays {
  const int32_t* positions = nullptr;  // of each query row
  const int64_t* own_rows = nullptr;   // of each query row
  const AttentionItem* items = nullptr;
  const PieceRange* ranges = nullptr;
  AttentionWork work;
  const int64_t* pages = nullptr;
};

class CudaKvTable final : public KvTable {
 public:
  CudaKvTable(KvLayout layout, int64_t pieces) : KvTable(std::move(layout), pieces) {}

  CudaKvArrays arrays;
  std::shared_ptr<const void> memory;  // of the arrays: every launch that reads them holds it
  std::vector<int64_t> first_rows;     // of each sequence: where its KV begins, if it is consecutive rows; else -1
  int32_t page_tokens = 0;             // of the kernels' pages
  int64_t most_queries = 0;            // of a sequence
};

inline const CudaKvTable& CudaTableOf(const KvTable& table) {
  return static_cast<const CudaKvTable&>(table);
}

}  // namespace runahead
