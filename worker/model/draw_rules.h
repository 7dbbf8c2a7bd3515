// What the next token of an output may be, as a function of the output so far, and of nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace runahead {

// As DrawRules of worker.proto; check_sampling.h has the ranges.
struct DrawRules {
  // While the output has fewer tokens than min_tokens, none of end_ids is drawn.
  int32_t min_tokens = 0;
  std::vector<int32_t> end_ids = {};
  // Not empty each. The last id of one is not drawn where the output ends with those before it.
  std::vector<std::vector<int32_t>> bad_ids = {};
};

// The mask of one sequence, kept by whoever draws its tokens. Memory only where rules forbid something. Not
// thread-safe.
class TokenMask {
 public:
  // Of an output without tokens.
  TokenMask(DrawRules rules, int64_t vocab);

  // The next token of the output.
  void Append(int32_t id);

  // For the next draw, as Device::Sample's: MaskWords(vocab) words, or empty where every id is allowed. The same until
  // Append; valid until then.
  absl::StatusOr<absl::Span<const uint32_t>> Next();

 private:
  void Forbid(int32_t id);

  DrawRules rules_;
  const int64_t vocab_;
  size_t looks_back_ = 0;        // tokens of the output that bad ids look at
  int64_t tokens_ = 0;           // of the output
  std::vector<int32_t> last_;    // of the output: at least looks_back_ tokens, if there are so many
  std::vector<uint32_t> words_;  // but for forbidden_, all ones; empty until something is forbidden
  std::vector<int32_t> forbidden_;
};

}  // namespace runahead
