#include "server/router/draw_rules.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/validation.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// As it stands in a text, and as the next word of one.
absl::Status AddBadWord(const std::string& field, const std::string& word, const Tokenizer& tokenizer,
                        const ModelInfo& model, v1::DrawRules& rules) {
  std::vector<int32_t> first;
  for (const std::string& text : {word, absl::StrCat(" ", word)}) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer.Encode(text, {.add_bos = false}));
    if (ids.empty()) return InvalidField(field, "the tokenizer makes no token of it");
    RUNAHEAD_RETURN_IF_ERROR(CheckTokens(field.c_str(), ids, model));
    if (ids == first) continue;
    rules.add_bad_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    first = ids;
  }
  return absl::OkStatus();
}

}  // namespace

bool HasDrawRules(const v1::GenerateRequest& request) {
  return request.stop().min_tokens() > 0 || !request.stop().bad_words().empty() || request.has_structure();
}

absl::StatusOr<v1::DrawRules> ResolveDrawRules(const v1::GenerateRequest& request, const Tokenizer& tokenizer,
                                               const ModelInfo& model) {
  v1::DrawRules rules;
  rules.set_min_tokens(request.stop().min_tokens());
  if (request.has_structure()) *rules.mutable_structure() = request.structure();
  if (rules.min_tokens() > 0 || rules.has_structure()) {
    rules.mutable_end_ids()->Add(request.stop().stop_ids().begin(), request.stop().stop_ids().end());
    for (const int32_t id : tokenizer.end_ids()) {
      if (id < model.vocabulary_size) rules.add_end_ids(id);
    }
  }
  const auto& words = request.stop().bad_words();
  for (int i = 0; i < words.size(); ++i) {
    RUNAHEAD_RETURN_IF_ERROR(AddBadWord(absl::StrCat("stop.bad_words[", i, "]"), words[i], tokenizer, model, rules));
  }
  return rules;
}

int64_t DrawRulesBytes(const v1::DrawRules& rules) {
  constexpr int64_t kCopies = 3;  // here, and in messages to the tail and to the decode worker
  return kCopies * static_cast<int64_t>(rules.ByteSizeLong() + rules.bad_ids_size() * sizeof(v1::TokenIds)) +
         static_cast<int64_t>(rules.end_ids_size() * sizeof(int32_t));
}

}  // namespace runahead
