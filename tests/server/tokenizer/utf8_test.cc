#include "server/tokenizer/utf8.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr const char* kFffd = "\xef\xbf\xbd";

TEST(Utf8, KnowsWholeInvalidAndIncompleteBeginnings) {
  using Kind = Utf8Step::Kind;
  const struct {
    std::string text;
    Kind kind;
    size_t bytes;
  } cases[] = {
      {"a", Kind::kCharacter, 1},
      {"\xc3\xa9x", Kind::kCharacter, 2},
      {"\xe4\xbd\xa0", Kind::kCharacter, 3},
      {"\xf0\x9f\x98\x80z", Kind::kCharacter, 4},
      {"\xf4\x8f\xbf\xbf", Kind::kCharacter, 4},  // U+10FFFF
      {"\x80", Kind::kInvalid, 1},
      {"\xc0\x80", Kind::kInvalid, 1},          // overlong
      {"\xe0\x80\x80", Kind::kInvalid, 1},      // overlong
      {"\xed\xa0\x80", Kind::kInvalid, 1},      // surrogate
      {"\xf4\x90\x80\x80", Kind::kInvalid, 1},  // above U+10FFFF
      {"\xff", Kind::kInvalid, 1},
      {"\xe4\xbd\x41", Kind::kInvalid, 2},
      {"\xf0\x9f\x98\xc3", Kind::kInvalid, 3},
      {"\xc3", Kind::kIncomplete, 1},
      {"\xe4\xbd", Kind::kIncomplete, 2},
      {"\xf0\x9f\x98", Kind::kIncomplete, 3},
  };
  for (const auto& c : cases) {
    const Utf8Step step = NextUtf8(c.text);
    EXPECT_EQ(step.kind, c.kind) << testing::PrintToString(c.text);
    EXPECT_EQ(step.bytes, c.bytes) << testing::PrintToString(c.text);
  }
}

TEST(Utf8, ReplacesAsUnicodeRecommends) {
  EXPECT_EQ(ReplaceInvalidUtf8(""), "");
  EXPECT_EQ(ReplaceInvalidUtf8("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(ReplaceInvalidUtf8("a\x80z"), std::string("a") + kFffd + "z");
  EXPECT_EQ(ReplaceInvalidUtf8("\xe4\xbd"), kFffd);  // one for the incomplete character
  EXPECT_EQ(ReplaceInvalidUtf8("\xf0\x9f\x98"
                               "A"),
            std::string(kFffd) + "A");  // one for its three bytes
  EXPECT_EQ(ReplaceInvalidUtf8("\xed\xa0\x80"), std::string(kFffd) + kFffd + kFffd);
}

// Whether `text` is valid and can stand alone.
bool IsWhole(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(std::string_view(text).substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return false;
    at += step.bytes;
  }
  return true;
}

const std::vector<std::string>& Samples() {
  static const std::vector<std::string> samples = {
      "plain", "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb!", "\x80\x81 a\xc3",
      "\xf0\x9f\x98\xf0\x9f\x98\x80\xe4\xbd", "\xed\xa0\x80 \xf4\x90\x80\x80 \xc0\xaf \xff\xfe"};
  return samples;
}

TEST(Utf8Stream, TheSameTextHoweverItIsCut) {
  for (const std::string& sample : Samples()) {
    const std::string whole = ReplaceInvalidUtf8(sample);
    for (size_t a = 0; a <= sample.size(); ++a) {
      for (size_t b = a; b <= sample.size(); ++b) {
        Utf8Stream stream;
        std::string text;
        for (const std::string& piece : {sample.substr(0, a), sample.substr(a, b - a), sample.substr(b)}) {
          const std::string delta = stream.Feed(piece);
          EXPECT_TRUE(IsWhole(delta));
          text += delta;
        }
        EXPECT_EQ(text + stream.Finish(), whole);
      }
    }
  }
}

TEST(Utf8Stream, RandomBytesByteByByte) {
  std::mt19937 random(7);
  const unsigned char likely[] = {0x41, 0x80, 0xbf, 0xc3, 0xe0, 0xa0, 0xed, 0x9f, 0xf0, 0x90, 0xf4, 0x8f, 0xff};
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (int i = 0; i < 12; ++i) bytes += static_cast<char>(likely[random() % std::size(likely)]);
    Utf8Stream stream;
    std::string text;
    for (char byte : bytes) text += stream.Feed(std::string_view(&byte, 1));
    text += stream.Finish();
    EXPECT_TRUE(IsWhole(text));
    EXPECT_EQ(text, ReplaceInvalidUtf8(bytes));
  }
}

TEST(Utf8Stream, GivesACharacterAsSoonAsItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Feed("a\xe4"), "a");
  EXPECT_EQ(stream.Feed("\xbd"), "");
  EXPECT_EQ(stream.Feed("\xa0"), "\xe4\xbd\xa0");
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Feed("\xe4"), "");
  EXPECT_EQ(stream.Finish(), kFffd);
  EXPECT_EQ(stream.Feed("b"), "b");  // as new after Finish
}

}  // namespace
}  // namespace runahead
