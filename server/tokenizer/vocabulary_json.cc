// Vocabularies of Hugging Face folders: tokenizer.json, tokenizer_config.json.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/vocabulary.h"
#include "server/tokenizer/vocabulary_json_config.h"
#include "server/tokenizer/vocabulary_json_steps.h"

namespace runahead {
namespace {

class JsonVocabularyReader {
 public:
  JsonVocabularyReader(const ModelFile& file, JsonView root) : file_(file), root_(std::move(root)) {}

  absl::StatusOr<Vocabulary> Read() {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView model, root_.Get("model"));
    RUNAHEAD_RETURN_IF_ERROR(ReadConfig());
    RUNAHEAD_RETURN_IF_ERROR(ReadSteps());
    RUNAHEAD_RETURN_IF_ERROR(ReadModelKind(model));
    RUNAHEAD_RETURN_IF_ERROR(ReadTexts(model));
    RUNAHEAD_RETURN_IF_ERROR(ReadAddedTokens());
    RUNAHEAD_RETURN_IF_ERROR(ReadConfigTokens());
    RUNAHEAD_RETURN_IF_ERROR(PlaceTokens());
    RUNAHEAD_RETURN_IF_ERROR(ReadModel(model));
    RUNAHEAD_RETURN_IF_ERROR(ReadBegin());
    RUNAHEAD_RETURN_IF_ERROR(ReadConfigBegin());
    RUNAHEAD_RETURN_IF_ERROR(ReadIdKeys(file_, vocabulary_));
    return std::move(vocabulary_);
  }

 private:
  absl::Status ReadConfig() {
    constexpr char kConfig[] = "tokenizer.huggingface.config";
    if (!file_.Has(kConfig)) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, file_.GetString(kConfig));
    RUNAHEAD_ASSIGN_OR_RETURN(config_, JsonView::Parse(text, absl::StrCat(file_.path(), ": tokenizer_config.json")));
    return absl::OkStatus();
  }

  absl::Status ReadSteps() {
    bool byte_level = false;
    if (root_.Has("normalizer")) {
      RUNAHEAD_ASSIGN_OR_RETURN(const JsonView normalizer, root_.Get("normalizer"));
      RUNAHEAD_RETURN_IF_ERROR(ReadJsonNormalizer(normalizer, vocabulary_));
    }
    if (root_.Has("pre_tokenizer")) {
      RUNAHEAD_ASSIGN_OR_RETURN(const JsonView pre_tokenizer, root_.Get("pre_tokenizer"));
      RUNAHEAD_RETURN_IF_ERROR(ReadJsonPreTokenizer(pre_tokenizer, vocabulary_, byte_level));
    }
    if (root_.Has("decoder")) {
      RUNAHEAD_ASSIGN_OR_RETURN(const JsonView decoder, root_.Get("decoder"));
      RUNAHEAD_RETURN_IF_ERROR(ReadJsonDecoder(decoder, byte_level, vocabulary_, decodes_bytes_));
    } else {
      RUNAHEAD_RETURN_IF_ERROR(DecodeAsEncoded(root_, byte_level, vocabulary_, decodes_bytes_));
    }
    vocabulary_.model = byte_level ? TokenModel::kByteBpe : TokenModel::kPieceBpe;
    return absl::OkStatus();
  }

  absl::Status ReadModelKind(const JsonView& model) {
    std::string type = model.Has("merges") ? "BPE" : "without a type";  // older files do not say
    if (model.Has("type")) {
      RUNAHEAD_ASSIGN_OR_RETURN(type, model.GetString("type"));
    }
    if (type == "Unigram" && vocabulary_.model != TokenModel::kByteBpe) {
      vocabulary_.model = TokenModel::kUnigram;
      return absl::OkStatus();
    }
    if (type == "BPE") return absl::OkStatus();
    return model.Error("type '", type, "' is not supported here; 'BPE' is, and 'Unigram' without ByteLevel");
  }

  absl::Status AddText(const JsonView& place, const std::string& text, int64_t id) {
    if (id < 0) return place.Error("id ", id, " is negative");
    const auto [known, added] = texts_.emplace(id, text);
    if (!added && known->second != text) {
      return place.Error("id ", id, " is '", text, "' here, and '", known->second, "' elsewhere");
    }
    return absl::OkStatus();
  }

  absl::Status ReadTexts(const JsonView& model) {
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView vocab, model.Get("vocab"));
    if (vocabulary_.model != TokenModel::kUnigram) {
      return vocab.ForMembers([&](absl::string_view text, const JsonView& id) -> absl::Status {
        RUNAHEAD_ASSIGN_OR_RETURN(const int64_t value, id.Int());
        return AddText(id, std::string(text), value);
      });
    }
    return vocab.ForElements([&](const JsonView& entry) -> absl::Status {
      std::vector<JsonView> pair;
      RUNAHEAD_RETURN_IF_ERROR(entry.ForElements([&](const JsonView& one) {
        pair.push_back(one);
        return absl::OkStatus();
      }));
      if (pair.size() != 2) return entry.Error("must be a token and its score");
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, pair[0].String());
      RUNAHEAD_ASSIGN_OR_RETURN(const double score, pair[1].Number());
      if (text.size() > kMaxPieceBytes) {
        return entry.Error("has ", text.size(), " bytes; at most ", kMaxPieceBytes, " are supported");
      }
      vocabulary_.scores.push_back(score);
      return AddText(entry, text, static_cast<int64_t>(vocabulary_.scores.size()) - 1);
    });
  }

  absl::Status ReadAddedTokens() {
    if (!root_.Has("added_tokens")) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView added, root_.Get("added_tokens"));
    return added.ForElements([&](const JsonView& token) -> absl::Status {
      RUNAHEAD_ASSIGN_OR_RETURN(const int64_t id, token.GetInt("id"));
      RUNAHEAD_ASSIGN_OR_RETURN(NamedToken named, ReadJsonNamedToken(token));
      RUNAHEAD_RETURN_IF_ERROR(AddText(token, named.name, id));
      named_.emplace_back(id, std::move(named));
      return absl::OkStatus();
    });
  }

  // Tokens of the configuration that tokenizer.json does not add: transformers does when it loads the two. They have
  // the vocabulary's ids, or the next one behind it where the configuration says so.
  absl::Status ReadConfigTokens() {
    if (!config_) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(std::vector<NamedToken> tokens, ReadJsonConfigTokens(*config_));
    absl::flat_hash_map<absl::string_view, int64_t> ids;
    for (const auto& [id, text] : texts_) ids.emplace(text, id);
    absl::flat_hash_set<std::string> known;
    for (const auto& [id, named] : named_) known.insert(named.name);
    for (NamedToken& token : tokens) {
      if (!known.insert(token.name).second) continue;
      const int64_t next = texts_.empty() ? 0 : texts_.rbegin()->first + 1;
      const auto found = ids.find(token.name);
      if (found == ids.end() && token.id != next) continue;
      const int64_t id = found == ids.end() ? next : found->second;
      texts_.emplace(id, token.name);
      named_.emplace_back(id, std::move(token));
    }
    return absl::OkStatus();
  }

  // Ids may have holes, but not so many that the vocabulary would be much larger than its file.
  absl::Status PlaceTokens() {
    if (texts_.empty()) return root_.Error("has no tokens");
    const int64_t last = texts_.rbegin()->first;
    constexpr int64_t kMostHoles = 65536;
    if (last >= static_cast<int64_t>(texts_.size()) + kMostHoles) {
      return root_.Error("id ", last, " is far beyond the number of tokens, which is ", texts_.size());
    }
    vocabulary_.tokens.assign(static_cast<size_t>(last) + 1, {std::string(), TokenKind::kUnused});
    for (auto& [id, text] : texts_) {
      VocabularyToken& token = vocabulary_.tokens[static_cast<size_t>(id)];
      token = {std::move(text), TokenKind::kNormal};
      const bool first = ids_.emplace(token.text, static_cast<int32_t>(id)).second;
      if (!first) return root_.Error("'", token.text, "' has several ids, one of them ", id);
    }
    for (auto& [id, named] : named_) {
      named.id = static_cast<int32_t>(id);
      VocabularyToken& token = vocabulary_.tokens[static_cast<size_t>(id)];
      token.kind = named.control ? TokenKind::kControl : TokenKind::kUserDefined;
      if (IsEndName(token.text, !named.control)) {
        token.kind = TokenKind::kControl;
        named.control = true;
        vocabulary_.ends.push_back(named.id);
      }
      vocabulary_.named.push_back(named);
    }
    if (vocabulary_.model == TokenModel::kUnigram) vocabulary_.scores.resize(vocabulary_.tokens.size(), 0);
    return absl::OkStatus();
  }

  int32_t Find(absl::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? -1 : found->second;
  }

  absl::Status ReadModel(const JsonView& model) {
    RUNAHEAD_RETURN_IF_ERROR(ReadBytes(model));
    if (vocabulary_.model == TokenModel::kUnigram) {
      vocabulary_.fuse_unknown = true;
      if (!model.Has("unk_id")) return absl::OkStatus();
      RUNAHEAD_ASSIGN_OR_RETURN(const int64_t unknown, model.GetInt("unk_id"));
      if (unknown < 0 || unknown >= static_cast<int64_t>(vocabulary_.tokens.size())) {
        return model.Error("unk_id is ", unknown, "; the vocabulary ends at ", vocabulary_.tokens.size() - 1);
      }
      vocabulary_.unknown = static_cast<int32_t>(unknown);
      return absl::OkStatus();
    }
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (!model.Has(key)) continue;
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, model.GetString(key));
      if (!text.empty()) return model.Error(key, " '", text, "' is not supported");
    }
    if (model.Has("dropout")) {
      RUNAHEAD_ASSIGN_OR_RETURN(const JsonView dropout, model.Get("dropout"));
      RUNAHEAD_ASSIGN_OR_RETURN(const double share, dropout.Number());
      if (share != 0) return dropout.Error("is ", share, "; only 0 is supported");
    }
    if (model.Has("unk_token")) {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string unknown, model.GetString("unk_token"));
      if (Find(unknown) >= 0) vocabulary_.unknown = Find(unknown);
      if (Find(unknown) < 0 && !unknown.empty()) return model.Error("unk_token '", unknown, "' is no token");
    }
    RUNAHEAD_ASSIGN_OR_RETURN(vocabulary_.fuse_unknown, model.GetBool("fuse_unk", false));
    RUNAHEAD_ASSIGN_OR_RETURN(vocabulary_.whole_words_first, model.GetBool("ignore_merges", false));
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView merges, model.Get("merges"));
    return merges.ForElements([&](const JsonView& merge) { return ReadMerge(merge); });
  }

  absl::Status ReadBytes(const JsonView& model) {
    const bool by_bytes = vocabulary_.model == TokenModel::kByteBpe;
    vocabulary_.byte_ids.fill(-1);
    RUNAHEAD_ASSIGN_OR_RETURN(const bool fallback, model.GetBool("byte_fallback", false));
    if (!by_bytes && !fallback) return absl::OkStatus();
    for (int byte = 0; byte < 256; ++byte) {
      const int32_t id =
          Find(by_bytes ? ByteToAlphabet(static_cast<unsigned char>(byte)) : absl::StrFormat("<0x%02X>", byte));
      vocabulary_.byte_ids[static_cast<size_t>(byte)] = id;
      if (id < 0 || by_bytes || !decodes_bytes_) continue;
      VocabularyToken& token = vocabulary_.tokens[static_cast<size_t>(id)];
      if (token.kind == TokenKind::kNormal) token.kind = TokenKind::kByte;
    }
    return absl::OkStatus();
  }

  absl::Status ReadMerge(const JsonView& merge) {
    absl::StatusOr<Merge> found;
    if (merge.IsString()) {
      RUNAHEAD_ASSIGN_OR_RETURN(const std::string pair, merge.String());
      found = MergeOf(ids_, pair);
    } else {
      std::vector<std::string> parts;
      RUNAHEAD_RETURN_IF_ERROR(merge.ForElements([&](const JsonView& part) -> absl::Status {
        RUNAHEAD_ASSIGN_OR_RETURN(std::string text, part.String());
        parts.push_back(std::move(text));
        return absl::OkStatus();
      }));
      if (parts.size() != 2) return merge.Error("has ", parts.size(), " parts; a merge has two");
      found = MergeOf(ids_, parts[0], parts[1]);
    }
    if (!found.ok()) return merge.Error(found.status().message());
    vocabulary_.merges.push_back(*found);
    return absl::OkStatus();
  }

  absl::Status ReadBegin() {
    if (!root_.Has("post_processor")) return absl::OkStatus();
    RUNAHEAD_ASSIGN_OR_RETURN(const JsonView post_processor, root_.Get("post_processor"));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int64_t> id, ReadJsonPostProcessor(post_processor));
    if (!id) return absl::OkStatus();
    if (*id < 0 || *id >= static_cast<int64_t>(vocabulary_.tokens.size())) {
      return post_processor.Error("id ", *id, " is not in the vocabulary, which ends at ",
                                  vocabulary_.tokens.size() - 1);
    }
    vocabulary_.bos = static_cast<int32_t>(*id);
    vocabulary_.adds_bos = true;
    return absl::OkStatus();
  }

  // A token of the configuration, or else the one called `otherwise`; it may be named and not be in the vocabulary.
  absl::StatusOr<std::optional<int32_t>> ConfigToken(absl::string_view key, absl::string_view otherwise = "") const {
    std::string name(otherwise);
    if (config_->Has(key)) {
      RUNAHEAD_ASSIGN_OR_RETURN(const JsonView token, config_->Get(key));
      RUNAHEAD_ASSIGN_OR_RETURN(name, ReadJsonTokenName(token));
    }
    const int32_t id = name.empty() ? -1 : Find(name);
    return id < 0 ? std::optional<int32_t>() : id;
  }

  absl::Status ReadConfigBegin() {
    if (!config_) return absl::OkStatus();
    std::string name;
    if (config_->Has("tokenizer_class")) {
      RUNAHEAD_ASSIGN_OR_RETURN(name, config_->GetString("tokenizer_class"));
    }
    const BeginClass* const own = FindBeginClass(name);
    RUNAHEAD_ASSIGN_OR_RETURN(vocabulary_.eos, ConfigToken("eos_token"));
    RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<int32_t> bos,
                              ConfigToken("bos_token", own == nullptr ? "" : own->bos));
    if (own != nullptr || !vocabulary_.bos) vocabulary_.bos = bos;  // else it is what the post_processor puts there
    if (own == nullptr && !name.empty()) return absl::OkStatus();
    const bool otherwise = own == nullptr ? vocabulary_.adds_bos : own->adds_bos && bos.has_value();
    RUNAHEAD_ASSIGN_OR_RETURN(vocabulary_.adds_bos, config_->GetBool("add_bos_token", otherwise));
    if (vocabulary_.adds_bos && !vocabulary_.bos)
      return config_->Error("add_bos_token is true, but there is no bos_token");
    return absl::OkStatus();
  }

  const ModelFile& file_;
  const JsonView root_;
  std::optional<JsonView> config_;
  Vocabulary vocabulary_;
  std::map<int64_t, std::string> texts_;  // by id
  std::vector<std::pair<int64_t, NamedToken>> named_;
  TokenIds ids_;  // views into vocabulary_.tokens
  bool decodes_bytes_ = false;
};

}  // namespace

absl::StatusOr<Vocabulary> ReadJsonVocabulary(const ModelFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string text, file.GetString("tokenizer.huggingface.json"));
  RUNAHEAD_ASSIGN_OR_RETURN(JsonView root, JsonView::Parse(text, absl::StrCat(file.path(), ": tokenizer.json")));
  return JsonVocabularyReader(file, std::move(root)).Read();
}

}  // namespace runahead
