#include "server/tokenizer/vocabulary_json_config.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/template_tokens.h"

namespace runahead {
namespace {

absl::StatusOr<std::set<std::string>> SpecialNames(const JsonView& config) {
  std::set<std::string> names;
  const auto add = [&names](const JsonView& token) -> absl::Status {
    RUNAHEAD_ASSIGN_OR_RETURN(std::string name, ReadJsonTokenName(token));
    names.insert(std::move(name));
    return absl::OkStatus();
  };
  for (const std::string_view name : kTokenNames) {
    const absl::string_view key(name.data(), name.size());
    if (!config.Has(key)) continue;
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView token, config.Get(key));
    RUNAHEAD_RETURN_IF_ERROR(token.IsArray() ? token.ForElements(add) : add(token));
  }
  return names;
}

}  // namespace

absl::StatusOr<NamedToken> ReadJsonNamedToken(const JsonView& token) {
  NamedToken named;
  RUNAHEAD_ASSIGN_OR_RETURN(named.name, token.GetString("content"));
  RUNAHEAD_ASSIGN_OR_RETURN(named.control, token.GetBool("special", false));
  RUNAHEAD_ASSIGN_OR_RETURN(named.strip_left, token.GetBool("lstrip", false));
  RUNAHEAD_ASSIGN_OR_RETURN(named.strip_right, token.GetBool("rstrip", false));
  RUNAHEAD_ASSIGN_OR_RETURN(named.single_word, token.GetBool("single_word", false));
  RUNAHEAD_ASSIGN_OR_RETURN(named.normalized, token.GetBool("normalized", true));
  return named;
}

absl::StatusOr<std::string> ReadJsonTokenName(const JsonView& token) {
  return token.IsObject() ? token.GetString("content") : token.String();
}

absl::StatusOr<std::vector<NamedToken>> ReadJsonConfigTokens(const JsonView& config) {
  std::map<int32_t, NamedToken> by_id;
  if (config.Has("added_tokens_decoder")) {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView decoder, config.Get("added_tokens_decoder"));
    RUNAHEAD_RETURN_IF_ERROR(decoder.ForMembers([&](absl::string_view key, const JsonView& token) -> absl::Status {
      int32_t id = 0;
      if (!absl::SimpleAtoi(key, &id)) return token.Error("its name must be a token's id");
      RUNAHEAD_ASSIGN_OR_RETURN(by_id[id], ReadJsonNamedToken(token));
      by_id[id].id = id;
      return absl::OkStatus();
    }));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::set<std::string> special, SpecialNames(config));
  std::vector<NamedToken> tokens;
  for (auto& [id, token] : by_id) {
    token.control = token.control || special.contains(token.name);
    tokens.push_back(std::move(token));
  }
  for (const std::string& name : special) tokens.push_back({.name = name, .id = -1, .control = true});
  return tokens;
}

const BeginClass* FindBeginClass(absl::string_view name) {
  static constexpr BeginClass kClasses[] = {{"LlamaTokenizer", "<s>", true},
                                            {"CodeLlamaTokenizer", "<s>", true},
                                            {"GemmaTokenizer", "<bos>", true},
                                            {"CohereTokenizer", "<BOS_TOKEN>", true},
                                            {"GPTNeoXTokenizer", "<|endoftext|>", false}};
  const auto found = std::find_if(std::begin(kClasses), std::end(kClasses),
                                  [&](const BeginClass& one) { return absl::StripSuffix(name, "Fast") == one.name; });
  return found == std::end(kClasses) ? nullptr : found;
}

}  // namespace runahead
