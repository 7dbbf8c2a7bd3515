#include "server/tokenizer/unicode.h"

#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

std::string Form(std::string_view text, NormalForm form) {
  std::string out;
  Steps steps(Always);
  EXPECT_TRUE(AppendNormalized(text, form, steps, out).ok());
  return out;
}

TEST(Unicode, CharactersGoToUtf8AndBack) {
  for (const uint32_t character : {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    AppendCharacter(character, text);
    EXPECT_EQ(FirstCharacter(text), character);
  }
}

TEST(Unicode, WhiteSpaceAtTheEnds) {
  const std::string text = " \t\u00a0\u3000a \u2003\u0085";
  EXPECT_EQ(WhiteSpaceBegin(text), std::string(" \t\u00a0\u3000").size());
  EXPECT_EQ(WhiteSpaceEnd(text), std::string(" \u2003\u0085").size());
  EXPECT_EQ(WhiteSpaceBegin("\u200b a"), 0u);  // no white space
  EXPECT_EQ(WhiteSpaceEnd("a\xff"), 0u);
  EXPECT_EQ(WhiteSpaceEnd(" \xa0"), 0u);  // half of a no-break space
  EXPECT_EQ(WhiteSpaceBegin(" "), 1u);
  EXPECT_EQ(WhiteSpaceEnd("  "), 2u);
  EXPECT_EQ(WhiteSpaceEnd(""), 0u);
}

TEST(Unicode, WordCharacters) {
  for (const uint32_t character : {'a', 'Z', '0', '_'}) EXPECT_TRUE(IsWordCharacter(character));
  for (const uint32_t character : {0xe9u, 0x4f60u, 0x301u, 0x663u}) EXPECT_TRUE(IsWordCharacter(character));
  for (const uint32_t character : {0x20u, 0x2du, 0x21u, 0x1f600u}) EXPECT_FALSE(IsWordCharacter(character));
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(Form("e\u0301 \u212b \ufb01", NormalForm::kNfc), "\u00e9 \u00c5 \ufb01");
  EXPECT_EQ(Form("\u00e9 \u212b \ufb01", NormalForm::kNfd), "e\u0301 A\u030a \ufb01");
  EXPECT_EQ(Form("e\u0301 \u212b \ufb01 \u2460", NormalForm::kNfkc), "\u00e9 \u00c5 fi 1");
  EXPECT_EQ(Form("\u00e9\u3000\ufdfa", NormalForm::kNfkd).substr(0, 4), "e\u0301 ");
  EXPECT_EQ(Form("\u1112\u1161\u11ab", NormalForm::kNfc), "\ud55c");  // a syllable of its letters
  EXPECT_EQ(Form("plain ASCII", NormalForm::kNfkc), "plain ASCII");
  EXPECT_EQ(Form("", NormalForm::kNfc), "");
  // Marks come into order, and one that is in the way keeps another from its letter.
  EXPECT_EQ(Form("a\u0315\u0300\u05ae\u0316b", NormalForm::kNfc), "\u00e0\u0316\u05ae\u0315b");
}

TEST(Unicode, TextInPiecesIsAsTheWhole) {
  std::mt19937 random(8);
  const std::string likely[] = {"a", "e", "\u0301", "\u0316", "\u1112", "\u1161", "\u11ab", "\u4f60", " ", "\u00e9"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += likely[random() % std::size(likely)];
    const std::string once = Form(text, NormalForm::kNfc);
    EXPECT_EQ(Form(once, NormalForm::kNfc), once);
    EXPECT_EQ(Form(Form(text, NormalForm::kNfd), NormalForm::kNfc), once);
    EXPECT_EQ(Form(text + "b" + text, NormalForm::kNfc), once + "b" + once);
  }
}

// Quadratic sorting would take minutes here and run into the test's time limit.
TEST(Unicode, AMegabyteOfMarks) {
  std::string text = "a";
  while (text.size() < (1 << 20)) text += "\u0301\u0316";
  EXPECT_EQ(Form(text, NormalForm::kNfd).size(), text.size());
}

TEST(Unicode, EndsWithItsCall) {
  std::string text;
  while (text.size() < (1 << 20)) text += "\u4f60";
  std::string out;
  const auto gone = [] { return absl::CancelledError("gone"); };
  Steps steps(gone);
  EXPECT_EQ(AppendNormalized(text, NormalForm::kNfc, steps, out).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace runahead
