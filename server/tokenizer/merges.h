// The merges of a byte-pair vocabulary, from the forms in which files have them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace runahead {

// `left` and `right`, side by side, become `result`.
struct Merge {
  int32_t left;
  int32_t right;
  int32_t result;
};

// Ids of tokens by their text; a text that stands twice counts by its first id. The views are the caller's.
using TokenIds = absl::flat_hash_map<absl::string_view, int32_t>;

// The merge of two tokens that are named. INVALID_ARGUMENT says that a part or the result is no token.
absl::StatusOr<Merge> MergeOf(const TokenIds& ids, absl::string_view left, absl::string_view right);

// The same from "left right".
absl::StatusOr<Merge> MergeOf(const TokenIds& ids, absl::string_view pair);

// All pairs of tokens that make another one, by rank: the result's score, falling; then, as transformers orders them
// when it converts such a vocabulary, the longer left part, the longer right part, the lower id of the result. `scores`
// by id; `mergeable` says which tokens are parts and results, none of them longer than kMaxPieceBytes.
std::vector<Merge> MergesByScore(const TokenIds& ids, absl::Span<const std::string_view> tokens,
                                 absl::Span<const double> scores, const std::vector<bool>& mergeable);

}  // namespace runahead
