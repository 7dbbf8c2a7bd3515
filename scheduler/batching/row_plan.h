// How many rows of each sequence a decode step takes. Pure: state and limits are arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace runahead {

// The rows of a running sequence whose KV is not in the store, by what computes them; those of its prompt come first.
struct PendingRows {
  int64_t prompt = 0;
  int64_t output = 0;  // the last of them gives the next token; 0: the prompt's last row does

  // Nothing is to be made up for: the row of its last token gives the next one.
  bool decodes() const { return prompt == 0 && output == 1; }
};

// Rows that a step takes beside one of each sequence that decodes, at least 1.
struct RowBudget {
  int64_t all = 0;
  int64_t output = 0;  // of them of output at most: each such row has pieces of attention of its own
};

// How many rows beside one of each sequence that decodes a step takes at most: `longest` where none decodes; else
// `step_rows` for each prompt that waits for rows, at least one and at most `longest`. Prompts that wait together are
// done sooner so than one after the other, and what they hold the others up by adds up to less: a row of a large pass
// takes less time.
int64_t RowsBeside(absl::Span<const PendingRows> pending, int64_t step_rows, int64_t longest);

// Of each sequence of `pending`, which are in the order in which they joined, the rows that the next step takes: of its
// prompt while some of these are pending, else of its output. One that decodes has its row in any case. The others
// share the budget: the first one has as many as it can use. So each gets on, and none for ever after others.
std::vector<int64_t> GrantRows(absl::Span<const PendingRows> pending, RowBudget budget);

}  // namespace runahead
