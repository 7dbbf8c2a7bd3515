#include "server/tokenizer/unigram.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr double kUnknownPenalty = 10;  // SentencePiece's
constexpr int32_t kNoToken = -1;
constexpr int32_t kNotReached = -2;

bool BeginsCharacter(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
}

}  // namespace

Unigram::Unigram(absl::Span<const std::string_view> pieces, std::vector<double> scores, double lowest,
                 const Fallback& fallback)
    : scores_(std::move(scores)), unknown_score_(lowest - kUnknownPenalty), fallback_(fallback) {
  for (size_t id = 0; id < pieces.size(); ++id) pieces_.Add(pieces[id], static_cast<int32_t>(id));
}

absl::Status Unigram::Encode(std::string_view word, Steps& steps, std::vector<int32_t>& ids) const {
  if (word.empty()) return absl::OkStatus();
  // A word is all characters, or has none: then its bytes are counted like characters.
  const bool valid = NextUtf8(word).kind == Utf8Step::Kind::kCharacter;
  const auto begins = [&](char byte) { return !valid || BeginsCharacter(byte); };
  std::vector<Best> best(static_cast<size_t>(std::count_if(word.begin(), word.end(), begins)) + 1,
                         Best{0, 0, kNotReached});
  const auto reach = [&](uint32_t from, uint32_t to, double score, int32_t id) {
    score += best[from].score;
    if (best[to].id == kNotReached || score > best[to].score) best[to] = {score, from, id};
  };
  uint32_t index = 0;
  for (size_t at = 0; at < word.size(); ++index) {
    RUNAHEAD_RETURN_IF_ERROR(steps.Next());
    bool covered = false;  // the one character
    size_t counted = 0;    // bytes of the prefix, and its characters
    uint32_t characters = 0;
    const std::string_view rest = word.substr(at);
    pieces_.ForPrefixes(rest, [&](size_t bytes, int32_t id) {
      for (; counted < bytes; ++counted) characters += begins(rest[counted]);
      if (bytes < rest.size() && !begins(rest[bytes])) return;  // it ends inside of a character
      reach(index, index + characters, scores_[static_cast<size_t>(id)], id);
      covered = covered || characters == 1;
    });
    if (!covered) reach(index, index + 1, unknown_score_, kNoToken);
    at += valid ? NextUtf8(rest).bytes : 1;
  }
  Append(word, best, ids);
  return absl::OkStatus();
}

void Unigram::Append(std::string_view word, const std::vector<Best>& best, std::vector<int32_t>& ids) const {
  // From the end to the begin, then turned.
  const size_t first = ids.size();
  const bool valid = NextUtf8(word).kind == Utf8Step::Kind::kCharacter;
  bool unknown_last = false;
  size_t end = word.size();
  for (size_t index = best.size() - 1; index > 0; index = best[index].from) {
    size_t begin = end;
    for (uint32_t characters = best[index].from; characters < index; --begin) {
      if (!valid || BeginsCharacter(word[begin - 1])) ++characters;
    }
    const std::string_view piece = word.substr(begin, end - begin);
    end = begin;
    const int32_t id = best[index].id;
    const bool known = id != kNoToken || fallback_.HasBytes(piece);
    if (id != kNoToken) {
      ids.push_back(id);
    } else if (known) {
      for (size_t i = piece.size(); i > 0; --i)
        ids.push_back(fallback_.byte_ids[static_cast<unsigned char>(piece[i - 1])]);
    } else if (fallback_.unknown >= 0 && !(unknown_last && fallback_.fuse_unknown)) {
      ids.push_back(fallback_.unknown);
    }
    unknown_last = !known;
  }
  std::reverse(ids.begin() + static_cast<int64_t>(first), ids.end());
}

}  // namespace runahead
