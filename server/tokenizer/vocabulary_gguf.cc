// Vocabularies by the keys of GGUF files.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/pre_tokenizer_names.h"
#include "server/tokenizer/vocabulary.h"

namespace runahead {
namespace {

// The file's numbers for kinds of tokens.
enum GgufTokenType : int64_t { kTypeUnknown = 2, kTypeControl = 3, kTypeUserDefined = 4, kTypeByte = 6 };

class GgufVocabularyReader {
 public:
  explicit GgufVocabularyReader(const ModelFile& file) : file_(file) {}

  absl::StatusOr<Vocabulary> Read() {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::string model, file_.GetString("tokenizer.ggml.model"));
    if (model == "gpt2") {
      vocabulary_.model = TokenModel::kByteBpe;
    } else if (model == "llama") {
      vocabulary_.model = TokenModel::kPieceBpe;
    } else if (model == "t5") {
      vocabulary_.model = TokenModel::kUnigram;
    } else {
      return Error("tokenizer model '", model, "' is not supported; 'gpt2', 'llama' and 't5' are");
    }
    RUNAHEAD_RETURN_IF_ERROR(ReadTokens());
    if (vocabulary_.model == TokenModel::kByteBpe) {
      RUNAHEAD_RETURN_IF_ERROR(ReadByteLevel());
    } else {
      RUNAHEAD_RETURN_IF_ERROR(ReadSentencePiece());
    }
    ReadNames();
    RUNAHEAD_RETURN_IF_ERROR(ReadIds());
    return std::move(vocabulary_);
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": ", parts...));
  }

  absl::StatusOr<bool> GetBool(absl::string_view key, bool otherwise) const {
    return file_.Has(key) ? file_.GetBool(key) : otherwise;
  }

  absl::Status ReadTokens() {
    RUNAHEAD_ASSIGN_OR_RETURN(const auto tokens, file_.GetStrings("tokenizer.ggml.tokens"));
    if (tokens.empty() || tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
      return Error("tokenizer.ggml.tokens has ", tokens.size(), " tokens");
    }
    if (vocabulary_.model != TokenModel::kByteBpe || file_.Has("tokenizer.ggml.token_type")) {
      RUNAHEAD_ASSIGN_OR_RETURN(types_, file_.GetInts("tokenizer.ggml.token_type"));
    } else {
      types_.assign(tokens.size(), 1);
    }
    if (types_.size() != tokens.size()) {
      return Error("tokenizer.ggml.token_type has ", types_.size(), " entries for ", tokens.size(), " tokens");
    }
    vocabulary_.byte_ids.fill(-1);
    vocabulary_.tokens.reserve(tokens.size());
    for (size_t id = 0; id < tokens.size(); ++id) {
      vocabulary_.tokens.push_back({std::string(tokens[id]), TokenKind::kNormal});
      RUNAHEAD_RETURN_IF_ERROR(SetKind(static_cast<int32_t>(id)));
      ids_.emplace(tokens[id], static_cast<int32_t>(id));  // a view into the file
    }
    return absl::OkStatus();
  }

  absl::Status SetKind(int32_t id) {
    VocabularyToken& token = vocabulary_.tokens[static_cast<size_t>(id)];
    const int64_t type = types_[static_cast<size_t>(id)];
    const bool user_defined = type == kTypeUserDefined;
    if (type == kTypeControl || type == kTypeUnknown) token.kind = TokenKind::kControl;
    if (user_defined) token.kind = TokenKind::kUserDefined;
    if ((user_defined || type == kTypeControl) && IsEndName(token.text, user_defined)) {
      token.kind = TokenKind::kControl;
      vocabulary_.ends.push_back(id);
    }
    if (vocabulary_.model == TokenModel::kByteBpe) return absl::OkStatus();
    if (type == kTypeUnknown && !vocabulary_.unknown) vocabulary_.unknown = id;
    if (type == kTypeByte) {
      uint32_t byte = 0;
      if (token.text.size() != 6 || token.text.back() != '>' || token.text.substr(0, 3) != "<0x" ||
          !absl::SimpleHexAtoi(token.text.substr(3, 2), &byte)) {
        return Error("tokenizer.ggml.tokens: token ", id, " '", token.text,
                     "' is of type byte, but not of the form <0x00>");
      }
      token.kind = TokenKind::kByte;
      if (vocabulary_.byte_ids[byte] < 0) vocabulary_.byte_ids[byte] = id;
    } else if (token.text.size() > kMaxPieceBytes && token.kind == TokenKind::kNormal) {
      return Error("tokenizer.ggml.tokens: token ", id, " has ", token.text.size(), " bytes; at most ", kMaxPieceBytes,
                   " are supported");
    }
    return absl::OkStatus();
  }

  absl::Status ReadByteLevel() {
    std::string name = "default";
    if (file_.Has("tokenizer.ggml.pre")) {
      RUNAHEAD_ASSIGN_OR_RETURN(name, file_.GetString("tokenizer.ggml.pre"));
    }
    absl::StatusOr<NamedPreTokenizer> pre = FindPreTokenizer(name);
    if (!pre.ok()) return Error("tokenizer.ggml.pre: ", pre.status().message());
    vocabulary_.normalizer = std::move(pre->normalizer);
    vocabulary_.splits = std::move(pre->splits);
    vocabulary_.whole_words_first = pre->whole_words_first;
    vocabulary_.adds_bos = pre->adds_bos;
    for (int byte = 0; byte < 256; ++byte) {
      const auto found = ids_.find(ByteToAlphabet(static_cast<unsigned char>(byte)));
      if (found != ids_.end()) vocabulary_.byte_ids[static_cast<size_t>(byte)] = found->second;
    }
    RUNAHEAD_ASSIGN_OR_RETURN(const auto merges, file_.GetStrings("tokenizer.ggml.merges"));
    vocabulary_.merges.reserve(merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const absl::StatusOr<Merge> merge = MergeOf(ids_, merges[rank]);
      if (!merge.ok()) return Error("tokenizer.ggml.merges: merge ", rank, " ", merge.status().message());
      vocabulary_.merges.push_back(*merge);
    }
    return absl::OkStatus();
  }

  absl::Status ReadSentencePiece() {
    RUNAHEAD_ASSIGN_OR_RETURN(std::vector<double> scores, file_.GetFloats("tokenizer.ggml.scores"));
    if (scores.size() != types_.size()) {
      return Error("tokenizer.ggml.scores has ", scores.size(), " entries for ", types_.size(), " tokens");
    }
    if (file_.Has("tokenizer.ggml.precompiled_charsmap")) {
      return Error("tokenizer.ggml.precompiled_charsmap: normalising by a table of the file is not supported");
    }
    vocabulary_.fuse_unknown = true;
    RUNAHEAD_ASSIGN_OR_RETURN(const bool prefix, GetBool("tokenizer.ggml.add_space_prefix", true));
    const bool unigram = vocabulary_.model == TokenModel::kUnigram;
    RUNAHEAD_ASSIGN_OR_RETURN(const bool squeeze, GetBool("tokenizer.ggml.remove_extra_whitespaces", false));
    using Kind = NormalizerStep::Kind;
    if (unigram && squeeze) {
      vocabulary_.normalizer.push_back({.kind = Kind::kStrip, .left = true, .right = true});
      vocabulary_.normalizer.push_back({.kind = Kind::kPattern, .from = " {2,}", .to = " "});
    }
    if (prefix) vocabulary_.normalizer.push_back({.kind = Kind::kPrepend, .to = kBlankMark});
    vocabulary_.normalizer.push_back({.kind = Kind::kReplace, .from = " ", .to = kBlankMark});
    vocabulary_.decoded_begin = prefix ? DecodedBegin::kNoBlank : DecodedBegin::kAll;
    vocabulary_.adds_bos = !unigram;
    if (unigram) {
      vocabulary_.scores = std::move(scores);
      return absl::OkStatus();
    }
    std::vector<std::string_view> texts;
    std::vector<bool> mergeable;
    for (const VocabularyToken& token : vocabulary_.tokens) {
      texts.push_back(token.text);
      const bool piece = token.kind == TokenKind::kNormal || token.kind == TokenKind::kUserDefined;
      mergeable.push_back(piece && token.text.size() <= kMaxPieceBytes);
    }
    vocabulary_.merges = MergesByScore(ids_, texts, scores, mergeable);
    return absl::OkStatus();
  }

  void ReadNames() {
    const std::string architecture = file_.Has("general.architecture") ? *file_.GetString("general.architecture") : "";
    // Files do not say which tokens take the white space behind them; Phi-3's tokenizer.json does.
    const bool phi3 = architecture == "phi3" && vocabulary_.model == TokenModel::kPieceBpe;
    for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
      const VocabularyToken& token = vocabulary_.tokens[id];
      if (token.kind != TokenKind::kControl && token.kind != TokenKind::kUserDefined) continue;
      NamedToken named = {token.text, static_cast<int32_t>(id), token.kind == TokenKind::kControl};
      if (vocabulary_.model != TokenModel::kByteBpe && !named.control) {
        // Runs of blanks, which some converters write as blanks and some as marks.
        named.name = absl::StrReplaceAll(named.name, {{" ", kBlankMark}});
        named.normalized = absl::StrContains(named.name, kBlankMark);
      }
      named.strip_right = phi3 && token.text != "<unk>" && token.text != "<s>" && token.text != "<|endoftext|>";
      vocabulary_.named.push_back(std::move(named));
    }
  }

  absl::Status ReadIds() {
    RUNAHEAD_RETURN_IF_ERROR(ReadIdKeys(file_, vocabulary_));
    constexpr char kUnknown[] = "tokenizer.ggml.unknown_token_id";
    if (vocabulary_.model != TokenModel::kByteBpe && file_.Has(kUnknown)) {
      RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t unknown, file_.GetUint(kUnknown));
      if (unknown >= types_.size())
        return Error(kUnknown, " is ", unknown, "; the vocabulary ends at ", types_.size() - 1);
      vocabulary_.unknown = static_cast<int32_t>(unknown);
    }
    RUNAHEAD_ASSIGN_OR_RETURN(vocabulary_.adds_bos, GetBool("tokenizer.ggml.add_bos_token", vocabulary_.adds_bos));
    if (vocabulary_.adds_bos && !vocabulary_.bos) {
      return Error("sequences begin with BOS, but tokenizer.ggml.bos_token_id is missing");
    }
    return absl::OkStatus();
  }

  const ModelFile& file_;
  Vocabulary vocabulary_;
  std::vector<int64_t> types_;
  TokenIds ids_;
};

}  // namespace

absl::StatusOr<Vocabulary> ReadGgufVocabulary(const ModelFile& file) {
  return GgufVocabularyReader(file).Read();
}

}  // namespace runahead
