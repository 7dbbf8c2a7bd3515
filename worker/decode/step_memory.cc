#include "worker/decode/step_memory.h"

#include <algorithm>

#include "kernels/base/checks.h"
#include "kernels/base/kv_table.h"

namespace runahead {
namespace {

// Arrays of a step on the device (ids, positions, pages), and what allocations are rounded up to.
constexpr int64_t kSmallParts = 4 << 20;

}  // namespace

size_t DecodeStepBytes(const ModelConfig& config, int64_t max_batch, StepRowsAtMost rows, int64_t capacity_tokens) {
  const int64_t query_dim = config.heads * config.head_dim;
  // As if all were f32. The residual stream, twice its norm; q, k, v, q apart, and what attention gives; the MLP;
  // logits, counts for penalties, and what is drawn.
  const int64_t hidden_row = 3 * config.hidden + 3 * query_dim + 2 * config.kv_dim() + 3 * config.ffn;
  const int64_t row = hidden_row + 2 * config.vocab + 3 + 2 * kMostTopK;
  // Pieces of sequences that fill the store, each with a last one that is not full; a table may have a quarter more
  // rows.
  const int64_t pieces = 5 * (capacity_tokens / kSmallestPiece + max_batch) / 4 + 1;
  const int64_t partial = config.heads * (config.head_dim + 1);
  // Passes over prompts have memory of their own, logits among it; rows of output are in a step's, with the pieces of a
  // sequence each.
  const int64_t longest = std::min(config.context_length, capacity_tokens);
  const int64_t of_output = rows.of_output * (hidden_row + PieceCount(longest) * partial);
  const int64_t of_prompts = rows.of_prompts > 0 ? rows.of_prompts * hidden_row + pieces * partial : 0;
  const int64_t more = of_output + of_prompts;
  const int64_t logits = rows.of_prompts > 0 ? max_batch * config.vocab : 0;
  return static_cast<size_t>(4 * (max_batch * row + pieces * partial + more + logits) + kSmallParts);
}

}  // namespace runahead
