// What the next token of an output may be, as a function of the output so far, and of nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/grammar/grammar_compiler.h"
#include "server/grammar/structure_spec.h"
#include "worker/model/grammar_source.h"

namespace runahead {

// As DrawRules of worker.proto; check_sampling.h has the ranges.
struct DrawRules {
  // While the output has fewer tokens than min_tokens, none of end_ids is drawn.
  int32_t min_tokens = 0;
  std::vector<int32_t> end_ids = {};
  // Not empty each. The last id of one is not drawn where the output ends with those before it.
  std::vector<std::vector<int32_t>> bad_ids = {};
  std::optional<StructureSpec> structure = {};
};

// The grammar that the rules need, which `source` compiles; null where they have no structure. UNIMPLEMENTED where
// there is no source.
absl::StatusOr<std::shared_ptr<const WantedGrammar>> WantGrammar(const DrawRules& rules, GrammarSource* source);

// The mask of one sequence, kept by whoever draws its tokens. Memory only where rules forbid something. Not
// thread-safe.
class TokenMask {
 public:
  // Of an output without tokens. `grammar`: WantGrammar's; it need not be ready before Next is called.
  TokenMask(DrawRules rules, int64_t vocab, std::shared_ptr<const WantedGrammar> grammar = nullptr);

  // The next token of the output.
  void Append(int32_t id);

  // For the next draw, as Device::Sample's: MaskWords(vocab) words, or empty where every id is allowed. The same until
  // Append; valid until then. OUT_OF_RANGE where the output does not have the form that the rules ask for.
  absl::StatusOr<absl::Span<const uint32_t>> Next();

 private:
  // Takes the grammar behind the output.
  absl::Status Follow();
  void Forbid(int32_t id);

  DrawRules rules_;
  const int64_t vocab_;
  size_t looks_back_ = 0;        // tokens of the output that bad ids look at
  int64_t tokens_ = 0;           // of the output
  std::vector<int32_t> last_;    // of the output: at least looks_back_ tokens, if there are so many
  // But for forbidden_ the grammar's, or all ones without one; empty until something is forbidden.
  std::vector<uint32_t> words_;
  std::vector<int32_t> forbidden_;
  std::shared_ptr<const WantedGrammar> grammar_;  // null: none
  std::unique_ptr<GrammarState> state_;           // of grammar_; null before the first mask
  std::vector<int32_t> to_follow_;                // tokens of the output that state_ has not accepted
};

}  // namespace runahead
