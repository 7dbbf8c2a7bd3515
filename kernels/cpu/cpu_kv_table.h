// The KV table of the CPU's device: the layout as it is, and the pieces of decode attention in one flat array.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/kv_table.h"

namespace runahead {

// A piece of a sequence with one query whose KV the table has.
struct CpuPiece {
  int64_t row = 0;  // of the partials
  int32_t sequence = 0;
  int32_t begin = 0;  // its positions are [begin, end)
  int32_t end = 0;
};

class CpuKvTable final : public KvTable, public std::enable_shared_from_this<CpuKvTable> {
 public:
  // INVALID_ARGUMENT for a layout that cannot be.
  static absl::StatusOr<std::shared_ptr<const CpuKvTable>> Make(KvLayout layout);

  // In rising order of rows. None of sequences with more queries.
  absl::Span<const CpuPiece> held() const { return held_; }
  // The partials of a sequence are rows [first_piece(i), first_piece(i + 1)).
  int64_t first_piece(int64_t sequence) const { return first_pieces_[sequence]; }

 private:
  CpuKvTable(KvLayout layout, int64_t pieces);

  std::vector<CpuPiece> held_;
  std::vector<int64_t> first_pieces_;  // and the end of the last
};

}  // namespace runahead
