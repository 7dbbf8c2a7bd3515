#include "kernels/cpu/cpu_kv_table.h"

#include <algorithm>
#include <utility>

#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

int64_t PiecesOf(const KvSequence& sequence) {
  const int64_t tokens = PieceTokens(sequence.length);
  return sequence.queries > 1 ? 0 : (sequence.length + tokens - 1) / tokens;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CpuKvTable>> CpuKvTable::Make(KvLayout layout) {
  RUNAHEAD_RETURN_IF_ERROR(CheckKvLayout(layout));
  int64_t pieces = 0;
  for (const KvSequence& sequence : layout.sequences) pieces += PiecesOf(sequence);
  return std::shared_ptr<const CpuKvTable>(new CpuKvTable(std::move(layout), pieces));
}

CpuKvTable::CpuKvTable(KvLayout checked, int64_t pieces) : KvTable(std::move(checked), pieces) {
  const std::vector<KvSequence>& sequences = layout().sequences;
  held_.reserve(pieces);
  first_pieces_.reserve(sequences.size() + 1);
  int64_t row = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const KvSequence& sequence = sequences[i];
    first_pieces_.push_back(row);
    const int64_t tokens = PieceTokens(sequence.length);
    for (int64_t left = PiecesOf(sequence), begin = 0; left > 0; --left, ++row, begin += tokens) {
      // A piece is in the table as a whole or not at all: ranges end at borders of pieces.
      if (begin < sequence.begin || begin >= sequence.end) continue;
      const int64_t end = std::min(begin + tokens, sequence.length);
      held_.push_back({row, static_cast<int32_t>(i), static_cast<int32_t>(begin), static_cast<int32_t>(end)});
    }
  }
  first_pieces_.push_back(row);
}

}  // namespace runahead
