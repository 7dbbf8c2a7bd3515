#include "server/tokenizer/tokenizer_json_writer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/base/printable.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/merges.h"
#include "server/tokenizer/tokenizer_json_steps.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

const char* JsonBool(bool value) {
  return value ? "true" : "false";
}

bool IsAllUtf8(std::string_view text) {
  if (text.empty()) return true;
  const Utf8Run run = FirstUtf8Run(text);
  return run.valid && run.text.size() == text.size();
}

// Whether the library's decoder takes a token for a byte's.
bool IsByteName(absl::string_view text) {
  return text.size() == 6 && absl::StartsWith(text, "<0x") && absl::EndsWith(text, ">") &&
         absl::ascii_isxdigit(static_cast<unsigned char>(text[3])) &&
         absl::ascii_isxdigit(static_cast<unsigned char>(text[4]));
}

class TokenizerJsonWriter {
 public:
  explicit TokenizerJsonWriter(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {}

  absl::StatusOr<std::string> Write() {
    RUNAHEAD_RETURN_IF_ERROR(PlaceTexts());
    RUNAHEAD_RETURN_IF_ERROR(CheckBytes());
    RUNAHEAD_RETURN_IF_ERROR(CheckNames());
    RUNAHEAD_RETURN_IF_ERROR(CheckModel());
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string pre_tokenizer, PreTokenizerJson(vocabulary_));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string decoder, DecoderJson(vocabulary_));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string model, IsUnigram() ? UnigramJson() : BpeJson());
    const std::string bos = vocabulary_.adds_bos ? Text(*vocabulary_.bos) : std::string();
    return absl::StrCat(R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":)", AddedTokensJson(),
                        R"(,"normalizer":)", NormalizerJson(vocabulary_), R"(,"pre_tokenizer":)", pre_tokenizer,
                        R"(,"post_processor":)", PostProcessorJson(vocabulary_, bos), R"(,"decoder":)", decoder,
                        R"(,"model":)", model, "}\n");
  }

 private:
  template <typename... Parts>
  static absl::Status NoWay(const Parts&... parts) {
    return OneLine(
        absl::FailedPreconditionError(absl::StrCat("the vocabulary cannot be said in a tokenizer.json: ", parts...)));
  }

  bool IsUnigram() const { return vocabulary_.model == TokenModel::kUnigram; }
  bool IsByBytes() const { return vocabulary_.model == TokenModel::kByteBpe; }
  const std::string& Text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }
  // -1: no token has this text.
  int32_t Find(absl::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? -1 : found->second;
  }

  // A token that is found by another name than its text (runs of blanks) is written as that, which decodes to the same.
  absl::Status PlaceTexts() {
    texts_.reserve(vocabulary_.tokens.size());
    for (const VocabularyToken& token : vocabulary_.tokens) {
      texts_.push_back(token.kind == TokenKind::kUnused ? std::string() : token.text);
    }
    for (const NamedToken& named : vocabulary_.named) {
      std::string& text = texts_[static_cast<size_t>(named.id)];
      // Where it is found by that name only, a model that finds it by its text would find another.
      if (text != named.name && (IsUnigram() || named.name == kBlankMark)) {
        return NoWay("token ", named.id, ", '", text, "', is found as '", named.name, "'");
      }
      text = named.name;
    }
    for (size_t id = 0; id < texts_.size(); ++id) {
      const std::string& text = texts_[id];
      if (!IsAllUtf8(text)) return NoWay("token ", id, " is no UTF-8");
      if (text.empty() && !IsUnigram()) continue;  // a hole between the ids
      if (text.empty()) return NoWay("token ", id, " has no text, and a Unigram's tokens have no holes between them");
      const auto [first, added] = ids_.emplace(text, static_cast<int32_t>(id));
      if (!added) return NoWay("tokens ", first->second, " and ", id, " have the same text, '", text, "'");
    }
    if (ids_.empty()) return NoWay("no token has a text");
    for (const std::optional<int32_t> id :
         {vocabulary_.unknown, vocabulary_.adds_bos ? vocabulary_.bos : std::nullopt}) {
      if (id && Text(*id).empty()) return NoWay("token ", *id, " has no text, and the library calls it by that");
    }
    return absl::OkStatus();
  }

  // The library finds the tokens of bytes by how they are written.
  absl::Status CheckBytes() const {
    if (IsByBytes()) {
      for (int byte = 0; byte < 256; ++byte) {
        const int32_t id = Find(ByteToAlphabet(static_cast<unsigned char>(byte)));
        if (id != vocabulary_.byte_ids[static_cast<size_t>(byte)]) {
          return NoWay("byte ", byte, " does not have the token that is written like it");
        }
      }
      return absl::OkStatus();
    }
    for (int byte = 0; byte < 256 && FallsBack(); ++byte) {
      const std::string name = absl::StrFormat("<0x%02X>", byte);
      if (Find(name) != vocabulary_.byte_ids[static_cast<size_t>(byte)]) {
        return NoWay("byte ", byte, " does not have the token ", name, ", or it is no byte's");
      }
    }
    bool any = false, others = false;
    for (size_t id = 0; id < texts_.size(); ++id) {
      const bool is_byte = vocabulary_.tokens[id].kind == TokenKind::kByte;
      any = any || is_byte;
      others = others || (!is_byte && IsByteName(texts_[id]));
    }
    return any && others ? NoWay("some tokens are written like <0x41> and are no bytes") : absl::OkStatus();
  }

  // The library decodes all tokens by the byte alphabet, named ones among them.
  absl::Status CheckNames() const {
    for (const NamedToken& named : vocabulary_.named) {
      if (IsByBytes() && AlphabetToBytes(named.name) != named.name) {
        return NoWay("token ", named.id, ", '", named.name, "', would be decoded as bytes");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckModel() const {
    if (IsUnigram() && !vocabulary_.unknown) {
      return NoWay("it has no unknown token, which a Unigram needs where a text has what it does not know");
    }
    if (IsUnigram() && !vocabulary_.fuse_unknown) return NoWay("a Unigram's unknown tokens are always one");
    // Of bytes' tokens the library's setting would make such words, too.
    if (!IsByBytes() && vocabulary_.whole_words_first) return NoWay("whole words first, for words that are no bytes");
    return absl::OkStatus();
  }

  bool FallsBack() const {
    for (const int32_t id : vocabulary_.byte_ids) {
      if (id >= 0) return !IsByBytes();
    }
    return false;
  }

  absl::StatusOr<std::string> BpeJson() const {
    const std::string unknown = vocabulary_.unknown ? InJsonQuotes(Text(*vocabulary_.unknown)) : "null";
    std::string json = absl::StrCat(R"({"type":"BPE","dropout":null,"unk_token":)", unknown,
                                    R"(,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":)",
                                    JsonBool(vocabulary_.fuse_unknown), R"(,"byte_fallback":)", JsonBool(FallsBack()),
                                    R"(,"ignore_merges":)", JsonBool(vocabulary_.whole_words_first), R"(,"vocab":{)");
    const char* between = "";
    for (size_t id = 0; id < texts_.size(); ++id) {
      if (texts_[id].empty()) continue;
      absl::StrAppend(&json, between, InJsonQuotes(texts_[id]), ":", id);
      between = ",";
    }
    json += R"(},"merges":[)";
    between = "";
    for (const Merge& merge : vocabulary_.merges) {
      // Ours never makes a control token of what users write.
      if (vocabulary_.tokens[static_cast<size_t>(merge.result)].kind == TokenKind::kControl) continue;
      const std::string &left = Text(merge.left), &right = Text(merge.right);
      if (left.empty() || right.empty() || absl::StrCat(left, right) != Text(merge.result)) {
        return NoWay("'", left, "' and '", right, "' become '", Text(merge.result), "'");
      }
      absl::StrAppend(&json, between, "[", InJsonQuotes(left), ",", InJsonQuotes(right), "]");
      between = ",";
    }
    json += "]}";
    return json;
  }

  absl::StatusOr<std::string> UnigramJson() const {
    std::string json = absl::StrCat(R"({"type":"Unigram","unk_id":)", *vocabulary_.unknown, R"(,"byte_fallback":)",
                                    JsonBool(FallsBack()), R"(,"vocab":[)");
    for (size_t id = 0; id < texts_.size(); ++id) {
      absl::StrAppend(&json, id == 0 ? "[" : ",[", InJsonQuotes(texts_[id]), ",",
                      nlohmann::json(vocabulary_.scores[id]).dump(), "]");
    }
    json += "]}";
    return json;
  }

  std::string AddedTokensJson() const {
    std::string json = "[";
    absl::flat_hash_set<int32_t> known;
    for (const NamedToken& named : vocabulary_.named) {
      if (named.name.empty() || !known.insert(named.id).second) continue;
      // Control tokens are found in the text as it came, whatever a normaliser would make of their names.
      absl::StrAppend(&json, json.size() > 1 ? "," : "", R"({"id":)", named.id, R"(,"content":)",
                      InJsonQuotes(named.name), R"(,"single_word":)", JsonBool(named.single_word), R"(,"lstrip":)",
                      JsonBool(named.strip_left), R"(,"rstrip":)", JsonBool(named.strip_right), R"(,"normalized":)",
                      JsonBool(named.normalized && !named.control), R"(,"special":)", JsonBool(named.control), "}");
    }
    return json + "]";
  }

  const Vocabulary& vocabulary_;
  std::vector<std::string> texts_;  // by id; empty: none is written
  TokenIds ids_;                    // views into texts_
};

}  // namespace

absl::StatusOr<std::string> TokenizerJson(const Vocabulary& vocabulary) {
  return TokenizerJsonWriter(vocabulary).Write();
}

}  // namespace runahead
