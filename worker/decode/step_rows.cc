#include "worker/decode/step_rows.h"

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"

namespace runahead {

absl::StatusOr<std::vector<SequenceRows>> BySequence(absl::Span<const DecodeRow> rows) {
  std::vector<SequenceRows> sequences;
  absl::flat_hash_set<const KvStore::Sequence*> seen;
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    const DecodeRow& row = rows[first];
    if (!seen.insert(row.sequence).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("row %d of a step: the rows of its sequence must stand together", first));
    }
    for (end = first + 1; end < rows.size() && rows[end].sequence == row.sequence; ++end) {
      if (rows[end].position != rows[end - 1].position + 1) {
        return absl::InvalidArgumentError(
            absl::StrFormat("row %d of a step: position %d of its sequence, and the row before it has %d", end,
                            rows[end].position, rows[end - 1].position));
      }
    }
    sequences.push_back({rows.subspan(first, end - first)});
  }
  return sequences;
}

std::vector<int64_t> LogitRows(absl::Span<const DecodeRow> rows) {
  std::vector<int64_t> wanted;
  for (size_t row = 0; row < rows.size(); ++row) {
    if (rows[row].wants_logits) wanted.push_back(static_cast<int64_t>(row));
  }
  return wanted;
}

}  // namespace runahead
