// The KvPort of a decode step: every row appends to its own sequence in the store and attends over all of it.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/kv/store.h"
#include "worker/model/kv_port.h"

namespace runahead {

// The sequence behind one row of the step; its input token's KV goes to row `position`.
struct StoreRow {
  const KvStore::Sequence* sequence = nullptr;
  int64_t position = 0;
};

// Used by one thread. The sequences stay open until the step's work is done.
class StoreKvPort final : public KvPort {
 public:
  explicit StoreKvPort(std::vector<StoreRow> rows);
  absl::Status Begin(int64_t layer) override;
  // One span a row.
  absl::StatusOr<std::vector<KvSpan>> Own(int64_t layer) override;
  // One sequence a row, with the store's own memory as its KV.
  absl::StatusOr<std::vector<AttentionSequence>> Publish(int64_t layer, Stream& compute) override;

 private:
  const std::vector<StoreRow> rows_;
};

}  // namespace runahead
