#include "kernels/cuda/flash_decode_plan.h"

#include <algorithm>
#include <bit>

namespace runahead {
namespace {

// A sequence longer than this many pieces of the smallest size gets larger ones instead: 64 fill a large GPU even where
// one sequence with 8 KV heads is all there is, and merging more takes longer than it gains.
constexpr int64_t kMostPieces = 64;

// Calls visit(span, its first position) for the spans that hold the sequence's positions.
template <typename Visit>
void ForSpans(const FlashDecodeSequence& sequence, const Visit& visit) {
  int64_t first = 0;
  for (const FlashSpan& span : sequence.spans) {
    if (first >= sequence.length) return;
    if (span.tokens > 0) visit(span, first);
    first += span.tokens;
  }
}

// The largest page whose multiples all spans start at.
int64_t PageTokens(std::span<const FlashDecodeSequence> sequences) {
  auto starts = static_cast<uint64_t>(kFlashSmallestPiece);
  for (const FlashDecodeSequence& sequence : sequences) {
    ForSpans(sequence, [&](const FlashSpan&, int64_t first) { starts |= static_cast<uint64_t>(first); });
  }
  return int64_t{1} << std::countr_zero(starts);
}

void AddPages(const FlashDecodeSequence& sequence, int64_t row_bytes, FlashDecodePlan& plan) {
  ForSpans(sequence, [&](const FlashSpan& span, int64_t first) {
    const int64_t tokens = std::min(span.tokens, sequence.length - first);
    for (int64_t token = 0; token < tokens; token += plan.page_tokens) {
      plan.pages.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(span.rows + token * row_bytes)) /
                           kFlashAlignment);
    }
  });
}

}  // namespace

int64_t FlashDecodePieceTokens(int64_t length) {
  int64_t tokens = kFlashSmallestPiece;
  while (tokens * kMostPieces < length) tokens *= 2;
  return tokens;
}

int64_t FlashDecodePieceRoom(int64_t pieces) {
  if (pieces <= 0) return 0;
  const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(pieces))) / 4);
  return (pieces + step - 1) / step * step;
}

bool FlashDecodeTakes(const FlashDecodeSequence& sequence) {
  bool aligned = true;
  ForSpans(sequence, [&](const FlashSpan& span, int64_t) {
    aligned = aligned && reinterpret_cast<uintptr_t>(span.rows) % kFlashAlignment == 0;
  });
  return aligned;
}

FlashDecodePlan PlanFlashDecode(std::span<const FlashDecodeSequence> sequences, int64_t row_bytes) {
  FlashDecodePlan plan;
  plan.page_tokens = static_cast<int32_t>(PageTokens(sequences));
  plan.rows.reserve(sequences.size());
  for (const FlashDecodeSequence& sequence : sequences) {
    const int64_t piece_tokens = FlashDecodePieceTokens(sequence.length);
    const auto first_piece = static_cast<int32_t>(plan.pieces.size());
    for (int64_t token = 0; token < sequence.length; token += piece_tokens) {
      plan.pieces.push_back({.first_page = static_cast<int32_t>(plan.pages.size() + token / plan.page_tokens),
                             .tokens = static_cast<int32_t>(std::min(piece_tokens, sequence.length - token)),
                             .query_row = sequence.query_row});
    }
    plan.rows.push_back({.first_piece = first_piece,
                         .pieces = static_cast<int32_t>(plan.pieces.size()) - first_piece,
                         .query_row = sequence.query_row});
    AddPages(sequence, row_bytes, plan);
  }
  plan.pieces.resize(static_cast<size_t>(FlashDecodePieceRoom(static_cast<int64_t>(plan.pieces.size()))));
  return plan;
}

size_t FlashDecodeWorkspaceBytes(int64_t pieces, int64_t heads, int64_t head_dim) {
  return static_cast<size_t>(pieces * heads * (head_dim + 1)) * sizeof(float);
}

}  // namespace runahead
