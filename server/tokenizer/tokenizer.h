// Text to token ids and back, by the vocabulary that the model's file carries.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/tokenizer/keep_going.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/pre_tokenizer.h"
#include "server/tokenizer/special_tokens.h"
#include "server/tokenizer/vocabulary.h"
#include "server/tokenizer/word_model.h"
#include "worker/format/model_file.h"

namespace runahead {

struct EncodeOptions {
  // The names of control tokens in the text (<|im_end|>) stand for these tokens; otherwise they are text like any
  // other.
  bool parse_special = false;
  // Begin with BOS where the file says that sequences do; once, should the text name it there, too. (Off for chats:
  // their template says it all.)
  bool add_bos = true;
};

// A part of a text, with its own word on control tokens: what users write must not pass for a template's tokens.
struct TextPart {
  std::string text;
  bool parse_special = false;
};

// Byte-level BPE, and SentencePiece's BPE and unigram, as the `tokenizers` library has them. Immutable, hence safe for
// any number of threads.
class Tokenizer {
 public:
  // INVALID_ARGUMENT or NOT_FOUND names the file and what is missing, wrong or not supported.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> FromModel(const ModelFile& file);

  // INVALID_ARGUMENT says which pattern or text of the vocabulary's rules cannot be.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> FromVocabulary(const Vocabulary& vocabulary);

  // Any bytes are accepted: what is no UTF-8 is encoded byte by byte. What the vocabulary has no token for becomes its
  // unknown token, or is left out where there is none, as transformers does (SmolLM2 lacks 21 bytes that hardly occur
  // in valid UTF-8). Time is close to linear in the text, and memory at most 40 bytes for each of it, or of what a
  // normaliser makes of it. INVALID_ARGUMENT above 1 GiB; else it fails only where `keep_going` does, and soon then.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, const EncodeOptions& options = {},
                                              KeepGoing keep_going = Always) const;

  // The same for a text in parts; words may span parts, special tokens may not, but for white space that they take. No
  // BOS is added.
  absl::StatusOr<std::vector<int32_t>> EncodeParts(absl::Span<const TextPart> parts,
                                                   KeepGoing keep_going = Always) const;

  // No fewer tokens than this come of `texts`, together and whatever stands between them. Found without encoding, hence
  // much smaller than what Encode gives: the longest token of the vocabulary for all of it. 0 where the vocabulary's
  // rules allow no such bound.
  int64_t LeastTokens(absl::Span<const std::string_view> texts) const;
  // In bytes of the text that it may stand for; at least 1.
  int64_t longest_token() const { return longest_token_; }

  // The text of `ids`; U+FFFD where their bytes are no UTF-8. `skip_special` leaves control tokens out. What the
  // vocabulary adds at the begin of a text (SentencePiece's blank) is taken away again.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // The bytes that a token stands for, maybe only a part of a character; nothing for an id outside the vocabulary.
  // Lives as long as *this.
  std::string_view TokenBytes(int32_t id) const;

  // The bytes that `id` adds to a text that is decoded token by token. `begun`, false before the first, is kept here.
  std::string NextBytes(int32_t id, bool skip_special, bool& begun) const;

  TokenModel model() const { return model_; }
  int64_t vocab_size() const { return static_cast<int64_t>(bytes_.size()); }
  // A control token: it steers the model and is no text.
  bool IsSpecial(int32_t id) const;
  // Whether the name of a control token stands in `text`.
  bool NamesSpecial(std::string_view text) const;
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  bool adds_bos() const { return adds_bos_; }
  // Tokens that end an answer, rising: EOS, and the ends of turn and text that the vocabulary has.
  absl::Span<const int32_t> end_ids() const { return end_ids_; }

 private:
  Tokenizer(Normalizer normalizer, PreTokenizer pre_tokenizer)
      : normalizer_(std::move(normalizer)), pre_tokenizer_(std::move(pre_tokenizer)) {}

  void LoadTokens(const Vocabulary& vocabulary);
  absl::Status LoadNames(const Vocabulary& vocabulary);
  void LoadWords(const Vocabulary& vocabulary);
  void LoadBounds(const Vocabulary& vocabulary);

  struct View {
    std::string_view text;
    bool parse_special;
  };
  // What an encoding is about to make. `first`: nothing came before.
  struct Output {
    Steps steps;
    std::vector<int32_t> ids = {};
    bool first = true;
  };
  absl::StatusOr<std::vector<int32_t>> EncodeViews(absl::Span<const View> parts, KeepGoing keep_going) const;
  absl::Status AppendText(std::string_view text, Output& out) const;
  absl::Status AppendNormal(std::string_view text, Output& out) const;
  std::string WithMarks(std::string_view text, bool first) const;

  const Normalizer normalizer_;
  const PreTokenizer pre_tokenizer_;
  BlankMarks blanks_;
  DecodedBegin decoded_begin_ = DecodedBegin::kAll;
  TokenModel model_ = TokenModel::kByteBpe;
  std::unique_ptr<const WordModel> words_;
  SpecialTokens special_tokens_;                           // found in the text as it came
  SpecialTokens normalized_tokens_;                        // found in the normalised text; none of control
  std::vector<std::string> bytes_;                         // by id
  std::vector<TokenKind> kinds_;                           // by id
  absl::flat_hash_map<std::string, int32_t> whole_words_;  // filled only where asked for
  std::array<bool, 256> counts_ = {};                      // by byte: some token covers it
  bool blanks_count_ = true;                               // white space does not vanish
  int64_t longest_token_ = 1;                              // in bytes
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  std::vector<int32_t> end_ids_;
  bool adds_bos_ = false;
};

}  // namespace runahead
