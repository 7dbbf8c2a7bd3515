#include "server/tokenizer/template_tokens.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/format/json_value.h"

namespace runahead {
namespace {

// Names in lists that both files have are there once.
using Token = std::vector<std::string>;
using Tokens = std::map<std::string, Token, std::less<>>;

constexpr std::string_view kList = kTokenNames.back();

bool IsTokenName(std::string_view name) {
  return std::find(kTokenNames.begin(), kTokenNames.end(), name) != kTokenNames.end();
}

// A token is a text, or an object that has it as `content`.
std::optional<std::string> NameOfToken(const JsonValue& json) {
  const JsonValue* content = json.object() == nullptr ? &json : json.Find("content");
  if (content == nullptr || content->text() == nullptr) return std::nullopt;
  return *content->text();
}

// The model does not have a token whose entry is null, or names no token.
Token NamesIn(const JsonValue& json) {
  Token names;
  const JsonValue::Array one = {json};
  for (const JsonValue& token : json.array() == nullptr ? one : *json.array()) {
    if (std::optional<std::string> name = NameOfToken(token)) names.push_back(*std::move(name));
  }
  return names;
}

void Add(const JsonValue& json, Tokens& tokens) {
  if (json.object() == nullptr) return;
  for (const auto& [key, member] : *json.object()) {
    if (!IsTokenName(key)) continue;
    Token& token = tokens[key];
    if (key != kList) token.clear();
    for (std::string& name : NamesIn(member)) {
      if (std::find(token.begin(), token.end(), name) == token.end()) token.push_back(std::move(name));
    }
  }
}

absl::StatusOr<JsonValue> JsonOf(const ModelFile& file, const char* key, const char* name) {
  if (!file.Has(key)) return JsonValue();
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, file.GetString(key));
  return ParseJson(text, absl::StrCat(file.path(), "/", name, ": the text"));
}

absl::StatusOr<Tokens> OfFolder(const ModelFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue config,
                            JsonOf(file, "tokenizer.huggingface.config", "tokenizer_config.json"));
  Tokens tokens;
  Add(config, tokens);
  if (config.Find("added_tokens_decoder") == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonValue map,
                              JsonOf(file, "tokenizer.huggingface.special_tokens_map", "special_tokens_map.json"));
    Add(map, tokens);
  }
  const JsonValue* const extra = config.Find("extra_special_tokens");
  if (extra == nullptr || extra->object() == nullptr) return tokens;
  for (const auto& [key, member] : *extra->object()) tokens.emplace(key, NamesIn(member));
  return tokens;
}

Tokens OfKeys(const ModelFile& file, const Tokenizer& tokenizer) {
  Tokens tokens;
  // gguf spells the second so.
  for (const auto& [name, key] : {std::pair("unk_token", "unknown"),
                                  {"sep_token", "seperator"},
                                  {"pad_token", "padding"},
                                  {"cls_token", "cls"},
                                  {"mask_token", "mask"}}) {
    const absl::StatusOr<uint64_t> id = file.GetUint(absl::StrCat("tokenizer.ggml.", key, "_token_id"));
    if (!id.ok() || *id >= static_cast<uint64_t>(tokenizer.vocab_size())) continue;
    tokens[name] = {std::string(tokenizer.TokenBytes(static_cast<int32_t>(*id)))};
  }
  return tokens;
}

jinja::Value Listed(const Token& names) {
  std::vector<jinja::Value> items;
  for (const std::string& name : names) items.push_back(TextValue(name, /*own=*/true));
  return std::make_shared<const jinja::List>(std::move(items));
}

}  // namespace

absl::StatusOr<ChatVariables> TemplateTokens(const ModelFile& file, const Tokenizer& tokenizer) {
  Tokens tokens;
  if (file.Has("tokenizer.huggingface.json")) {
    RUNAHEAD_ASSIGN_OR_RETURN(tokens, OfFolder(file));
  } else {
    tokens = OfKeys(file, tokenizer);
  }
  for (const auto& [name, id] : {std::pair("bos_token", tokenizer.bos_id()), {"eos_token", tokenizer.eos_id()}}) {
    if (id) tokens.try_emplace(name, Token{std::string(tokenizer.TokenBytes(*id))});
  }
  ChatVariables variables;
  for (const auto& [name, names] : tokens) {
    if (names.empty() || names[0].empty()) continue;
    variables.emplace_back(name, name == kList ? Listed(names) : TextValue(names[0], /*own=*/true));
  }
  return variables;
}

}  // namespace runahead
