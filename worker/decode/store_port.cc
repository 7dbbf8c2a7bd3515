#include "worker/decode/store_port.h"

#include <utility>

namespace runahead {

StoreKvPort::StoreKvPort(std::vector<StoreRow> rows) : rows_(std::move(rows)) {}

absl::Status StoreKvPort::Begin(int64_t) {
  return absl::OkStatus();
}

absl::StatusOr<std::vector<KvSpan>> StoreKvPort::Own(int64_t layer) {
  std::vector<KvSpan> own;
  own.reserve(rows_.size());
  for (const StoreRow& row : rows_) own.push_back(row.sequence->Row(layer, row.position));
  return own;
}

absl::StatusOr<std::vector<AttentionSequence>> StoreKvPort::Publish(int64_t layer, Stream&) {
  std::vector<AttentionSequence> sequences;
  sequences.reserve(rows_.size());
  for (const StoreRow& row : rows_) {
    const int64_t index = static_cast<int64_t>(sequences.size());
    sequences.push_back({index, 1, row.position + 1, row.sequence->Spans(layer)});
  }
  return sequences;
}

}  // namespace runahead
