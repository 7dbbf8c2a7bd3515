// A Tokenizer is made of what a vocabulary says.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/byte_alphabet.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/unigram.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

// The bytes that a token adds to a text.
std::string BytesOf(const VocabularyToken& token, TokenModel model, int byte) {
  switch (token.kind) {
    case TokenKind::kUnused:
      return std::string();
    case TokenKind::kByte:
      return std::string(1, static_cast<char>(byte));
    case TokenKind::kControl:
    case TokenKind::kUserDefined:
      if (model == TokenModel::kByteBpe) return token.text;
      break;
    case TokenKind::kNormal:
      if (model == TokenModel::kByteBpe) return AlphabetToBytes(token.text);
      break;
  }
  return absl::StrReplaceAll(token.text, {{kBlankMark, " "}});
}

Fallback FallbackOf(const Vocabulary& vocabulary) {
  return {vocabulary.byte_ids, vocabulary.unknown.value_or(-1), vocabulary.fuse_unknown};
}

bool CanBePiece(const VocabularyToken& token) {
  return token.kind == TokenKind::kNormal || token.kind == TokenKind::kUserDefined;
}

// Tokens of one character, by it.
absl::flat_hash_map<uint32_t, int32_t> Characters(const Vocabulary& vocabulary) {
  absl::flat_hash_map<uint32_t, int32_t> characters;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabularyToken& token = vocabulary.tokens[id];
    if (token.text.empty() || token.text.size() > 4 || !CanBePiece(token)) continue;
    const Utf8Step step = NextUtf8(token.text);
    if (step.kind != Utf8Step::Kind::kCharacter || step.bytes != token.text.size()) continue;
    characters.emplace(FirstCharacter(token.text), static_cast<int32_t>(id));
  }
  return characters;
}

std::unique_ptr<const WordModel> MakeUnigram(const Vocabulary& vocabulary) {
  std::vector<std::string_view> pieces;
  double lowest = 0;
  bool any = false;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const VocabularyToken& token = vocabulary.tokens[id];
    pieces.emplace_back(CanBePiece(token) ? std::string_view(token.text) : std::string_view());
    if (token.kind == TokenKind::kUnused) continue;
    lowest = any ? std::min(lowest, vocabulary.scores[id]) : vocabulary.scores[id];
    any = true;
  }
  return std::make_unique<Unigram>(pieces, vocabulary.scores, lowest, FallbackOf(vocabulary));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::FromVocabulary(const Vocabulary& vocabulary) {
  RUNAHEAD_ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Create(vocabulary.normalizer));
  RUNAHEAD_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(vocabulary.splits));
  std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(normalizer), std::move(pre_tokenizer)));
  tokenizer->blanks_ = vocabulary.blanks;
  tokenizer->decoded_begin_ = vocabulary.decoded_begin;
  tokenizer->bos_id_ = vocabulary.bos;
  tokenizer->eos_id_ = vocabulary.eos;
  tokenizer->adds_bos_ = vocabulary.adds_bos;
  tokenizer->LoadTokens(vocabulary);
  RUNAHEAD_RETURN_IF_ERROR(tokenizer->LoadNames(vocabulary));
  tokenizer->LoadWords(vocabulary);
  tokenizer->LoadBounds(vocabulary);
  return tokenizer;
}

void Tokenizer::LoadTokens(const Vocabulary& vocabulary) {
  std::vector<int> byte_of(vocabulary.tokens.size(), 0);
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = vocabulary.byte_ids[static_cast<size_t>(byte)];
    if (id >= 0) byte_of[static_cast<size_t>(id)] = byte;
  }
  bytes_.reserve(vocabulary.tokens.size());
  kinds_.reserve(vocabulary.tokens.size());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    bytes_.push_back(BytesOf(vocabulary.tokens[id], vocabulary.model, byte_of[id]));
    kinds_.push_back(vocabulary.tokens[id].kind);
  }
  end_ids_ = vocabulary.ends;
  if (eos_id_) end_ids_.push_back(*eos_id_);
  std::sort(end_ids_.begin(), end_ids_.end());
  end_ids_.erase(std::unique(end_ids_.begin(), end_ids_.end()), end_ids_.end());
}

absl::Status Tokenizer::LoadNames(const Vocabulary& vocabulary) {
  Steps steps(Always);
  for (const NamedToken& token : vocabulary.named) {
    // Control tokens steer: whatever a normaliser makes of their names, they are found by them.
    if (!token.normalized || token.control) {
      special_tokens_.Add(token);
      continue;
    }
    NamedToken normal = token;  // the text that it is looked for in is normalised, too
    RUNAHEAD_ASSIGN_OR_RETURN(normal.name, normalizer_.Apply(token.name, steps));
    normalized_tokens_.Add(normal);
  }
  return absl::OkStatus();
}

void Tokenizer::LoadWords(const Vocabulary& vocabulary) {
  model_ = vocabulary.model;
  std::vector<Merge> merges;
  for (const Merge& merge : vocabulary.merges) {
    // What users write never becomes a token that steers.
    if (vocabulary.tokens[static_cast<size_t>(merge.result)].kind != TokenKind::kControl) merges.push_back(merge);
  }
  switch (vocabulary.model) {
    case TokenModel::kByteBpe:
      words_ = std::make_unique<Bpe>(merges, absl::flat_hash_map<uint32_t, int32_t>(), FallbackOf(vocabulary));
      break;
    case TokenModel::kPieceBpe:
      words_ = std::make_unique<Bpe>(merges, Characters(vocabulary), FallbackOf(vocabulary));
      break;
    case TokenModel::kUnigram:
      words_ = MakeUnigram(vocabulary);
      break;
  }
  if (!vocabulary.whole_words_first) return;
  for (size_t id = 0; id < bytes_.size(); ++id) {
    if (kinds_[id] != TokenKind::kNormal) continue;
    const std::string& word = vocabulary.model == TokenModel::kByteBpe ? bytes_[id] : vocabulary.tokens[id].text;
    whole_words_.emplace(word, static_cast<int32_t>(id));
  }
}

void Tokenizer::LoadBounds(const Vocabulary& vocabulary) {
  // Every byte counts where each has a token. Else one may be of an unknown character, or of one that a normal form
  // makes another: then those count that have a token whatever stands beside them.
  std::array<bool, 256> covered = {};
  for (size_t byte = 0; byte < covered.size(); ++byte) covered[byte] = vocabulary.byte_ids[byte] >= 0;
  if (vocabulary.model != TokenModel::kByteBpe) {
    for (const auto& [character, id] : Characters(vocabulary)) {
      if (character < 0x80) covered[character] = true;
    }
  }
  const bool all = std::all_of(covered.begin(), covered.end(), [](bool byte) { return byte; });
  const int64_t most = normalizer_.most_bytes_for_one();
  if (!pre_tokenizer_.removes() && (all ? most > 0 : most == 1)) counts_ = covered;
  if (!all) {
    for (const NormalizerStep& step : vocabulary.normalizer) {
      for (const char c : step.from) counts_[static_cast<unsigned char>(c)] = false;
    }
    if (!vocabulary.blanks.mark.empty()) counts_[' '] = false;
    if (vocabulary.model != TokenModel::kByteBpe) std::fill(counts_.begin() + 0x80, counts_.end(), false);
  }
  blanks_count_ = !normalizer_.drops_white_space();
  for (const NamedToken& token : vocabulary.named) {
    blanks_count_ = blanks_count_ && !token.strip_left && !token.strip_right;
  }
  for (size_t id = 0; id < bytes_.size(); ++id) {
    const bool as_written = vocabulary.model != TokenModel::kByteBpe && kinds_[id] != TokenKind::kByte;
    const size_t bytes = as_written ? vocabulary.tokens[id].text.size() : bytes_[id].size();
    longest_token_ = std::max(longest_token_, static_cast<int64_t>(bytes));
  }
  longest_token_ *= std::max<int64_t>(most, 1);
}

}  // namespace runahead
