#include "server/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "server/base/printable.h"
#include "server/tokenizer/unicode.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

absl::string_view ToAbsl(std::string_view text) {
  return absl::string_view(text.data(), text.size());
}

// Where a text goes on behind a token, and whether the token takes white space of what comes then, too.
struct Behind {
  size_t at;
  bool strips;
};

Behind After(const SpecialTokens::Match& match, std::string_view text) {
  size_t at = match.begin + match.bytes;
  if (!match.token->strip_right) return {at, false};
  at += WhiteSpaceBegin(text.substr(at));
  return {at, at == text.size()};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::FromModel(const ModelFile& file) {
  const absl::StatusOr<Vocabulary> vocabulary = ReadVocabulary(file);
  if (!vocabulary.ok()) return OneLine(vocabulary.status());
  absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = FromVocabulary(*vocabulary);
  if (tokenizer.ok()) return tokenizer;
  return OneLine(absl::Status(tokenizer.status().code(),
                              absl::StrCat(file.path(), ": tokenizer: ", tokenizer.status().message())));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options,
                                                       KeepGoing keep_going) const {
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeViews({View{text, options.parse_special}}, keep_going));
  const bool named = options.parse_special && !ids.empty() && ids.front() == bos_id_;
  if (options.add_bos && adds_bos_ && !named) ids.insert(ids.begin(), *bos_id_);
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeParts(absl::Span<const TextPart> parts,
                                                            KeepGoing keep_going) const {
  std::vector<View> views;
  for (const TextPart& part : parts) views.push_back({part.text, part.parse_special});
  return EncodeViews(views, keep_going);
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodeViews(absl::Span<const View> parts, KeepGoing keep_going) const {
  size_t total = 0;
  for (const View& part : parts) total += part.text.size();
  if (total > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", total, " bytes; at most ", kMaxTextBytes, " can be encoded"));
  }
  Output out = {Steps(keep_going)};
  std::string begun;  // text of former parts since the last special token
  const auto append = [&](std::string_view text) {
    if (begun.empty()) return AppendText(text, out);
    const std::string whole = absl::StrCat(std::exchange(begun, {}), ToAbsl(text));
    return AppendText(whole, out);
  };
  bool strips = false;  // the token before takes the white space that comes
  for (const View& part : parts) {
    size_t done = strips ? WhiteSpaceBegin(part.text) : 0;
    strips = strips && done == part.text.size();
    while (const auto match = special_tokens_.Find(part.text, done, part.parse_special)) {
      RUNAHEAD_RETURN_IF_ERROR(out.steps.Next());
      std::string_view before = part.text.substr(done, match->begin - done);
      if (match->token->strip_left) {
        before.remove_suffix(WhiteSpaceEnd(before));
        if (before.empty()) begun.resize(begun.size() - WhiteSpaceEnd(begun));
      }
      RUNAHEAD_RETURN_IF_ERROR(append(before));
      out.ids.push_back(match->token->id);
      out.first = false;
      const Behind behind = After(*match, part.text);
      done = behind.at;
      strips = behind.strips;
    }
    const std::string_view rest = part.text.substr(done);
    if (&part == &parts.back()) {
      RUNAHEAD_RETURN_IF_ERROR(append(rest));
    } else {
      begun += rest;
    }
  }
  return std::move(out.ids);
}

absl::Status Tokenizer::AppendText(std::string_view text, Output& out) const {
  if (text.empty()) return absl::OkStatus();
  std::string normalized;
  if (!normalizer_.empty()) {
    RUNAHEAD_ASSIGN_OR_RETURN(normalized, normalizer_.Apply(text, out.steps));
    text = normalized;
  }
  size_t done = 0;
  while (const auto match = normalized_tokens_.Find(text, done, /*with_control=*/false)) {
    RUNAHEAD_RETURN_IF_ERROR(out.steps.Next());
    std::string_view before = text.substr(done, match->begin - done);
    if (match->token->strip_left) before.remove_suffix(WhiteSpaceEnd(before));
    RUNAHEAD_RETURN_IF_ERROR(AppendNormal(before, out));
    out.ids.push_back(match->token->id);
    out.first = false;
    done = After(*match, text).at;
  }
  return AppendNormal(text.substr(done), out);
}

absl::Status Tokenizer::AppendNormal(std::string_view text, Output& out) const {
  if (text.empty()) return absl::OkStatus();
  const bool first = std::exchange(out.first, false);
  std::string marked;
  if (!blanks_.mark.empty() || blanks_.prefix != BlankMarks::Prefix::kNever) {
    marked = WithMarks(text, first);
    text = marked;
  }
  return pre_tokenizer_.Split(text, [&](std::string_view word) {
    const auto whole = whole_words_.find(ToAbsl(word));
    if (whole == whole_words_.end()) return words_->Encode(word, out.steps, out.ids);
    out.ids.push_back(whole->second);
    return out.steps.Next();
  });
}

std::string Tokenizer::WithMarks(std::string_view text, bool first) const {
  using Prefix = BlankMarks::Prefix;
  const absl::string_view mark = blanks_.mark.empty() ? absl::string_view(" ") : absl::string_view(blanks_.mark);
  const bool prefixed = blanks_.prefix == Prefix::kAlways || (blanks_.prefix == Prefix::kFirst && first);
  const bool has_it = absl::StartsWith(ToAbsl(text), " ") || absl::StartsWith(ToAbsl(text), mark);
  std::string marked(prefixed && !has_it ? mark : "");
  if (blanks_.mark.empty()) {
    marked += text;
    return marked;
  }
  for (const char c : text) {
    if (c == ' ') {
      marked += blanks_.mark;
    } else {
      marked += c;
    }
  }
  return marked;
}

int64_t Tokenizer::LeastTokens(absl::Span<const std::string_view> texts) const {
  int64_t bytes = 0;  // that some token must cover
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const size_t blanks = blanks_count_ ? 0 : WhiteSpaceBegin(text);
      text.remove_prefix(blanks);
      const size_t taken = blanks_count_ || text.empty() ? text.size() : NextUtf8(text).bytes;
      for (const char c : text.substr(0, taken)) bytes += counts_[static_cast<unsigned char>(c)];
      text.remove_prefix(taken);
    }
  }
  return (bytes + longest_token_ - 1) / longest_token_;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  bool begun = false;
  for (int32_t id : ids) bytes += NextBytes(id, skip_special, begun);
  return ReplaceInvalidUtf8(bytes);
}

std::string Tokenizer::NextBytes(int32_t id, bool skip_special, bool& begun) const {
  if (id < 0 || id >= vocab_size() || (skip_special && IsSpecial(id))) return std::string();
  std::string bytes(TokenBytes(id));
  if (begun || decoded_begin_ == DecodedBegin::kAll) return bytes;
  if (decoded_begin_ == DecodedBegin::kNoMarks) {
    begun = true;
    const TokenKind kind = kinds_[static_cast<size_t>(id)];
    return kind == TokenKind::kNormal ? absl::StrReplaceAll(bytes, {{" ", ""}}) : bytes;
  }
  begun = !bytes.empty();
  if (absl::StartsWith(bytes, " ")) bytes.erase(0, 1);
  return bytes;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(bytes_[static_cast<size_t>(id)]) : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && kinds_[static_cast<size_t>(id)] == TokenKind::kControl;
}

bool Tokenizer::NamesSpecial(std::string_view text) const {
  size_t from = 0;
  while (const auto match = special_tokens_.Find(text, from, /*with_control=*/true)) {
    if (match->token->control) return true;
    from = match->begin + 1;
  }
  return false;
}

}  // namespace runahead
