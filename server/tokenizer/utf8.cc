#include "server/tokenizer/utf8.h"

namespace runahead {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Well-formed sequences by their lead byte (Unicode, table 3-7): length, and the range of the second byte.
struct Lead {
  size_t length;
  unsigned char low = 0x80;
  unsigned char high = 0xbf;
};

Lead LeadOf(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  Lead lead = LeadOf(static_cast<unsigned char>(text[0]));
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 1};
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const unsigned char byte = static_cast<unsigned char>(text[i]);
    if (byte < lead.low || byte > lead.high) return {Utf8Step::Kind::kInvalid, i};
    lead.low = 0x80;
    lead.high = 0xbf;
  }
  return {Utf8Step::Kind::kCharacter, lead.length};
}

Utf8Run FirstUtf8Run(std::string_view text) {
  const auto is_character = [](std::string_view rest, size_t& bytes) {
    const Utf8Step step = NextUtf8(rest);
    bytes = step.bytes;
    return step.kind == Utf8Step::Kind::kCharacter;
  };
  size_t bytes = 0;
  const bool valid = is_character(text, bytes);
  size_t end = bytes;
  while (end < text.size() && is_character(text.substr(end), bytes) == valid) end += bytes;
  return {text.substr(0, end), valid};
}

std::string ReplaceInvalidUtf8(std::string_view text) {
  Utf8Stream stream;
  std::string out = stream.Feed(text);
  out += stream.Finish();
  return out;
}

std::string Utf8Stream::Feed(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    text += step.kind == Utf8Step::Kind::kCharacter ? rest.substr(0, step.bytes) : kReplacement;
    at += step.bytes;
  }
  pending_.erase(0, at);
  return text;
}

std::string Utf8Stream::Finish() {
  std::string text(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return text;
}

}  // namespace runahead
