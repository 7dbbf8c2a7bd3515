#include "kernels/cpu/cpu_kv_table.h"

#include <algorithm>
#include <utility>

#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Of each query row the first of its pieces, and the end of the last.
std::vector<int64_t> FirstPieces(const KvLayout& layout) {
  std::vector<int64_t> first = {0};
  if (!layout.has_pieces()) return first;
  for (const KvSequence& sequence : layout.sequences) {
    for (int64_t length = sequence.length - sequence.queries + 1; length <= sequence.length; ++length) {
      first.push_back(first.back() + PieceCount(length));
    }
  }
  return first;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CpuKvTable>> CpuKvTable::Make(KvLayout layout) {
  RUNAHEAD_RETURN_IF_ERROR(CheckKvLayout(layout));
  std::vector<int64_t> first_pieces = FirstPieces(layout);
  return std::shared_ptr<const CpuKvTable>(new CpuKvTable(std::move(layout), std::move(first_pieces)));
}

CpuKvTable::CpuKvTable(KvLayout checked, std::vector<int64_t> first_pieces)
    : KvTable(std::move(checked), first_pieces.back()), first_pieces_(std::move(first_pieces)) {
  const std::vector<KvSequence>& sequences = layout().sequences;
  const bool has_pieces = layout().has_pieces();
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const KvSequence& sequence = sequences[i];
    first_rows_.push_back(row);
    row += sequence.queries;
    if (!has_pieces) continue;
    // A piece is in the table as a whole or not at all: ranges end at borders of pieces.
    const int64_t tokens = PieceTokens(sequence.length);
    for (int64_t begin = sequence.begin; begin < sequence.end; begin += tokens) {
      const int64_t end = std::min(begin + tokens, sequence.length);
      held_.push_back({static_cast<int32_t>(i), static_cast<int32_t>(begin), static_cast<int32_t>(end)});
    }
  }
}

}  // namespace runahead
