// The rows of a decode step by sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/decode/step_loop.h"

namespace runahead {

// All rows that a step has of one sequence: at positions that follow each other.
struct SequenceRows {
  absl::Span<const DecodeRow> rows;  // at least one; as long as the step's rows

  const KvStore::Sequence& sequence() const { return *rows.front().sequence; }
  int64_t count() const { return static_cast<int64_t>(rows.size()); }
  int64_t position() const { return rows.front().position; }   // of the first: KV of all before it is in the store
  int64_t length() const { return rows.back().position + 1; }  // that the last one sees
};

// In the order of the step. INVALID_ARGUMENT where the rows of a sequence do not stand together, or have a gap.
absl::StatusOr<std::vector<SequenceRows>> BySequence(absl::Span<const DecodeRow> rows);

// Which rows of the step want logits.
std::vector<int64_t> LogitRows(absl::Span<const DecodeRow> rows);

}  // namespace runahead
