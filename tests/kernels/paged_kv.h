// The KV of sequences in pages of one base, which lie in no order, with NaN in every row that is nobody's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/base/kv_table.h"

namespace runahead {

struct PagedKv {
  KvLayout layout;
  std::vector<float> rows;  // [base rows][row elements]
};

// kv[i]: rows of sequence i by position, `row` elements each. page_tokens 0: the longest sequence fits a page.
// Sequences need no first_page.
inline PagedKv PageKv(std::vector<KvSequence> sequences, const std::vector<std::vector<float>>& kv, int64_t row,
                      int64_t page_tokens) {
  PagedKv paged;
  KvLayout& layout = paged.layout;
  layout.page_tokens = page_tokens;
  for (const KvSequence& sequence : sequences) {
    if (page_tokens > 0) break;
    layout.page_tokens = std::max({layout.page_tokens, sequence.length, sequence.dense_length});
  }
  layout.sequences = std::move(sequences);
  int64_t listed = 0;
  for (KvSequence& sequence : layout.sequences) {
    sequence.first_page = listed;
    listed += layout.PagesOf(sequence);
  }
  const auto spare = static_cast<int64_t>(layout.sequences.size()) + 1;
  layout.pages.resize(listed + spare);
  std::iota(layout.pages.begin(), layout.pages.end(), 0);
  std::shuffle(layout.pages.begin(), layout.pages.end(), std::mt19937(static_cast<uint32_t>(listed)));
  layout.pages.resize(listed);
  paged.rows.assign((listed + spare) * layout.page_tokens * row, std::numeric_limits<float>::quiet_NaN());
  for (size_t i = 0; i < layout.sequences.size(); ++i) {
    const KvSequence& sequence = layout.sequences[i];
    for (int64_t at = sequence.begin; at < std::max(sequence.end, sequence.dense_length); ++at) {
      std::copy_n(kv[i].begin() + at * row, row, paged.rows.begin() + layout.RowOf(sequence, at) * row);
    }
  }
  return paged;
}

}  // namespace runahead
