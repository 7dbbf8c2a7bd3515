// How a store keeps KV and X.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/device.h"
#include "kernels/base/row_form.h"
#include "worker/kv/lease_table.h"

namespace runahead {

// How a store keeps KV shorter than it arrives: quantised once, when a slice is in. Recomputed rows and those of decode
// pass the same quantisation before anybody attends to them.
struct KvQuantisation {
  KvQuant quant;
  DType dtype = DType::kF32;  // of rows as they arrive
  Device* host = nullptr;     // computes on host memory; outlives the store
};

// How a store keeps X shorter than it arrives: in KvStoreOptions::x_form, a quantised one, as decode's own rows are.
struct XQuantisation {
  RowForm arrives = RowForm::kF32;
  int64_t columns = 0;     // of a row
  Device* host = nullptr;  // as KvQuantisation's
};

struct KvStoreOptions {
  int64_t layers = 0;
  int64_t row_bytes = 0;        // K and V of one token in one layer: AttentionShape::kv_row_bytes()
  int64_t capacity_tokens = 0;  // rounded down to whole blocks
  uint64_t incarnation = 0;
  absl::Duration lease_life = kLeaseLife;
  MemoryKind tier = MemoryKind::kHost;  // where the arena is
  // Of host memory that slices of KV pass through where the host cannot write the arena, or KV is quantised. At least a
  // layer of the whole store, for a slice may be as large; 0: that much. X that is quantised has a layer of its own.
  int64_t bounce_bytes = 0;
  // X of one token in one layer, as it is kept; 0: the store keeps none. For stores in host memory. And in which form.
  int64_t x_row_bytes = 0;
  RowForm x_form = RowForm::kF32;
  std::optional<XQuantisation> x_quantisation = {};  // none: it is kept as it arrives
  std::optional<KvQuantisation> quantisation = {};   // for stores in host memory, whose rows are whole groups
  bool keeps = true;                                 // KV of sequences that ended may stay (KvStore::keeps)
  // Of each layer's attention (Model::windows): what of a prompt the first query behind it does not see is not waited
  // for. Empty: there are none.
  std::vector<int64_t> windows = {};

  // K and V of one token in one layer, as the arena has them; and how many values they are, where they are quantised.
  int64_t stored_row_bytes() const;
  int64_t row_values() const;
  // X of one token in one layer, as it arrives.
  int64_t arriving_x_row_bytes() const;
  RowForm arriving_x_form() const;
};

}  // namespace runahead
