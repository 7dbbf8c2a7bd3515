// What turns a model's text into token ids and back, as its file says it: plain data, whatever the file's form.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/tokenizer/merges.h"
#include "server/tokenizer/normalizer.h"
#include "server/tokenizer/pre_tokenizer.h"
#include "server/tokenizer/special_tokens.h"
#include "worker/format/model_file.h"

namespace runahead {

// The mark that stands for a blank in the tokens of SentencePiece's vocabularies.
inline constexpr char kBlankMark[] = "\u2581";

// How the words of a text become tokens.
enum class TokenModel {
  kByteBpe,   // byte-pair merges over bytes; tokens are written in the byte alphabet (byte_alphabet.h)
  kPieceBpe,  // byte-pair merges over characters; tokens are written as they are, with kBlankMark for blanks
  kUnigram,   // the likeliest tokens by their scores; written as those of kPieceBpe
};

enum class TokenKind : uint8_t {
  kNormal,
  kControl,      // steers the model and is no text
  kUserDefined,  // text that is always this token
  kByte,         // one byte, which no other token covers; written <0xNN>
  kUnused,       // an id without a token
};

struct VocabularyToken {
  std::string text;  // as the file has it
  TokenKind kind = TokenKind::kNormal;
};

// Blanks become marks and a text begins with one, before it is cut into words.
struct BlankMarks {
  enum class Prefix { kNever, kFirst, kAlways };  // of no text; of that at the very begin; of each between named tokens
  std::string mark;                               // for each blank; empty: blanks stay
  Prefix prefix = Prefix::kNever;                 // the mark, or a blank; not where the text begins with it already
};

// What is taken away at the begin of a decoded text.
enum class DecodedBegin {
  kAll,      // nothing is
  kNoBlank,  // one blank
  kNoMarks,  // all blanks of the first token
};

struct Vocabulary {
  TokenModel model = TokenModel::kByteBpe;
  std::vector<VocabularyToken> tokens;     // by id; at least one
  std::vector<double> scores;              // kUnigram: by id; finite
  std::vector<Merge> merges;               // of the others: by rank
  bool whole_words_first = false;          // a word that is a token is that token, whatever the merges would make of it
  std::array<int32_t, 256> byte_ids = {};  // by byte: kByteBpe's token of it, else that of kByte; -1: none
  std::optional<int32_t> unknown;          // what has no token is this one; where there is none it is left out
  bool fuse_unknown = false;               // adjacent ones are one token

  std::vector<NormalizerStep> normalizer;
  BlankMarks blanks;
  std::vector<SplitRule> splits;
  std::vector<NamedToken> named;  // those of kind kControl and kUserDefined
  DecodedBegin decoded_begin = DecodedBegin::kAll;

  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::vector<int32_t> ends;  // tokens that end an answer; in any order, EOS among them or not, some maybe twice
  bool adds_bos = false;      // sequences begin with `bos`, which is there then
};

// The most bytes that a token may have which is found by merging or by its score: finding takes time by it.
inline constexpr size_t kMaxPieceBytes = 1024;

// Whether `name` is one by which vocabularies call the end of a turn or a text, for a token that is a control token,
// or `user_defined`.
bool IsEndName(absl::string_view name, bool user_defined);

// From a Hugging Face tokenizer.json where the file has one, else by GGUF's keys. INVALID_ARGUMENT or NOT_FOUND names
// the file, and the key or place of what is missing, wrong or not supported. No input takes more memory than a small
// multiple of itself, or time that is not close to linear in it.
absl::StatusOr<Vocabulary> ReadVocabulary(const ModelFile& file);
absl::StatusOr<Vocabulary> ReadGgufVocabulary(const ModelFile& file);
absl::StatusOr<Vocabulary> ReadJsonVocabulary(const ModelFile& file);

// Part of these: BOS, EOS and ends by GGUF's keys, as far as the file has them, for a vocabulary that has its tokens.
// What is known already of BOS and EOS stays.
absl::Status ReadIdKeys(const ModelFile& file, Vocabulary& vocabulary);

}  // namespace runahead
