// The KV table of the CPU's device: the layout as it is, and the pieces of decode attention in one flat array.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/kv_table.h"

namespace runahead {

// A piece of a sequence's last query whose KV the table has. For the queries before it that is a piece, or several of
// their own, as far as they see it.
struct CpuPiece {
  int32_t sequence = 0;
  int32_t begin = 0;  // its positions are [begin, end)
  int32_t end = 0;
};

class CpuKvTable final : public KvTable, public std::enable_shared_from_this<CpuKvTable> {
 public:
  // INVALID_ARGUMENT for a layout that cannot be.
  static absl::StatusOr<std::shared_ptr<const CpuKvTable>> Make(KvLayout layout);

  // In rising order. None where attention is not by pieces.
  absl::Span<const CpuPiece> held() const { return held_; }
  // The partials of a query row are rows [first_piece(row), first_piece(row + 1)). Not where attention is not by
  // pieces.
  int64_t first_piece(int64_t row) const { return first_pieces_[row]; }
  // The query rows of a sequence are [first_row(i), first_row(i) + its queries).
  int64_t first_row(int64_t sequence) const { return first_rows_[sequence]; }

 private:
  CpuKvTable(KvLayout layout, std::vector<int64_t> first_pieces);

  std::vector<CpuPiece> held_;
  std::vector<int64_t> first_rows_;
  const std::vector<int64_t> first_pieces_;  // and the end of the last
};

}  // namespace runahead
