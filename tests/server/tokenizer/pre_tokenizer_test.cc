#include "server/tokenizer/pre_tokenizer.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/tokenizer/pre_tokenizer_names.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Cut(const std::vector<SplitRule>& rules, std::string_view text) {
  std::vector<std::string> words;
  const absl::Status status = PreTokenizer::Create(rules)->Split(text, [&words](std::string_view word) {
    words.emplace_back(word);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return words;
}

std::vector<std::string> Words(std::string_view name, std::string_view text) {
  return Cut(FindPreTokenizer(name)->splits, text);
}

TEST(PreTokenizer, UnknownRuleNamesItselfAndTheKnown) {
  const absl::Status status = FindPreTokenizer("wordpiece").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'wordpiece'"));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("smollm, starcoder, refact, gpt-2, phi-2, default, falcon, llama-bpe"));
}

TEST(PreTokenizer, Gpt2) {
  EXPECT_THAT(Words("gpt-2", "I'm here, it's 2024!"), ElementsAre("I", "'m", " here", ",", " it", "'s", " 2024", "!"));
  EXPECT_THAT(Words("gpt-2", "a  b \n\n c  "), ElementsAre("a", " ", " b", " \n\n", " c", "  "));
  EXPECT_THAT(Words("gpt-2", "DON'T"), ElementsAre("DON", "'", "T"));  // contractions in small letters only
  EXPECT_EQ(Words("default", "x 12"), Words("gpt-2", "x 12"));
}

TEST(PreTokenizer, SmolLmCutsDigitsFirst) {
  EXPECT_THAT(Words("smollm", "in 2024"), ElementsAre("in", " ", "2", "0", "2", "4"));
  EXPECT_THAT(Words("smollm", "a   1"), ElementsAre("a", "   ", "1"));  // look-ahead ends at the digit
  EXPECT_THAT(Words("smollm", "x²٣Ⅷ"), ElementsAre("x", "²", "٣", "Ⅷ"));
}

TEST(PreTokenizer, LlamaThree) {
  EXPECT_THAT(Words("llama-bpe", "DON'T 12345 (x)\n\n y"),
              ElementsAre("DON", "'T", " ", "123", "45", " (", "x", ")\n\n", " y"));
  EXPECT_THAT(Words("llama-bpe", "a \n b"), ElementsAre("a", " \n", " b"));
}

TEST(PreTokenizer, Qwen2CutsEveryDigit) {
  EXPECT_THAT(Words("qwen2", "v12.5"), ElementsAre("v", "1", "2", ".", "5"));
}

TEST(PreTokenizer, TekkenCutsWhereWordsGrowLargeAgain) {
  EXPECT_THAT(Words("tekken", "HTMLParser isn't 12/3"),
              ElementsAre("HTMLParser", " isn", "'t", " ", "1", "2", "/", "3"));
  EXPECT_THAT(Words("tekken", "camelCase a/\n\nB"), ElementsAre("camel", "Case", " a", "/\n\n", "B"));
}

TEST(PreTokenizer, NamesOfLlamaThreesRule) {
  for (const char* name : {"llama3", "llama-v3", "falcon3"}) {
    EXPECT_EQ(Words(name, "DON'T 12345\n"), Words("llama-bpe", "DON'T 12345\n"));
    EXPECT_TRUE(FindPreTokenizer(name)->whole_words_first);
  }
}

TEST(PreTokenizer, FalconCutsPunctuationAndThreeDigits) {
  EXPECT_THAT(Words("falcon", "a+b, 12345!"), ElementsAre("a", "+", "b", ",", " ", "123", "45", "!"));
  EXPECT_THAT(Words("falcon", "((x))"), ElementsAre("((", "x", "))"));
  // Its digits are cut in the byte alphabet, where B2 of these two is written as a superscript.
  EXPECT_THAT(Words("falcon", "²"), ElementsAre("\xc2", "\xb2"));
}

TEST(PreTokenizer, WhatBecomesOfMatches) {
  using Matches = SplitRule::Matches;
  EXPECT_THAT(Cut({{"x"}}, "xaxxb"), ElementsAre("x", "a", "x", "x", "b"));
  EXPECT_THAT(Cut({{"x", Matches::kRemoved}}, "xaxxb"), ElementsAre("a", "b"));
  EXPECT_THAT(Cut({{"x", Matches::kWithPrevious}}, "xaxxb"), ElementsAre("x", "ax", "x", "b"));
  EXPECT_THAT(Cut({{"x", Matches::kWithNext}}, "xaxxb"), ElementsAre("xa", "x", "xb"));
  EXPECT_THAT(Cut({{"x", Matches::kContiguous}}, "xaxxb"), ElementsAre("x", "a", "xx", "b"));
  EXPECT_THAT(Cut({{"x", Matches::kRemoved, /*inverted=*/true}}, "xaxxb"), ElementsAre("x", "x", "x"));
  EXPECT_TRUE(PreTokenizer::Create({{"x", Matches::kRemoved}})->removes());
  EXPECT_FALSE(PreTokenizer::Create({{"x"}})->removes());
}

TEST(PreTokenizer, WrongPatternsAreNamed) {
  const absl::Status status = PreTokenizer::Create({{"a("}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pattern 'a('"));
  for (const char* empty : {"a*", "(?=a)", "|a", "^"}) {
    EXPECT_THAT(std::string(PreTokenizer::Create({{empty}}).status().message()), HasSubstr("can match nothing"));
  }
}

TEST(PreTokenizer, UnicodeSpacesAndLetters) {
  EXPECT_THAT(Words("gpt-2", "a\u00a0b\u3000c"), ElementsAre("a", "\u00a0", "b", "\u3000", "c"));
  EXPECT_THAT(Words("gpt-2", "xin chào 你好"), ElementsAre("xin", " chào", " 你好"));
  EXPECT_THAT(Words("gpt-2", "a\u180eb"), ElementsAre("a", "\u180e", "b"));  // no space since Unicode 6.3 ...
  EXPECT_THAT(Words("gpt-2", "!\u180e!"), ElementsAre("!\u180e!"));          // ... but like punctuation
}

TEST(PreTokenizer, InvalidBytesAreWordsOfTheirOwn) {
  EXPECT_THAT(Words("smollm",
                    "ab\xff\xfe"
                    "cd\xc3"),
              ElementsAre("ab", "\xff\xfe", "cd", "\xc3"));
}

TEST(PreTokenizer, WordsJoinedAreTheText) {
  std::mt19937 random(3);
  const std::string likely[] = {"a", "'s", " ", "\n", "\r\n", "1", "!", "é", "你", "😀", "\u00a0", "\xff", "\xc3", "\t"};
  for (const char* rule : {"smollm", "gpt-2", "default", "falcon", "llama-bpe", "qwen2", "tekken"}) {
    for (int round = 0; round < 500; ++round) {
      std::string text;
      for (int i = 0; i < 15; ++i) text += likely[random() % std::size(likely)];
      std::string joined;
      for (const std::string& word : Words(rule, text)) {
        EXPECT_FALSE(word.empty());
        joined += word;
      }
      EXPECT_EQ(joined, text) << rule;
    }
  }
}

TEST(PreTokenizer, MegabytesOfOneKind) {
  for (const char* rule : {"smollm", "llama-bpe", "falcon", "tekken"}) {
    for (const char c : {'a', ' ', '\n', '!', '1', '\xff'}) {
      size_t bytes = 0;
      for (const std::string& word : Words(rule, std::string(1 << 20, c) + "x")) bytes += word.size();
      EXPECT_EQ(bytes, (1u << 20) + 1) << rule << " " << static_cast<int>(c);
    }
  }
}

// A pattern of some file may never end on some text: it is given up soon.
TEST(PreTokenizer, PatternsThatTakeTooLongAreGivenUp) {
  const auto pre = PreTokenizer::Create({{"(?:a|a)+b"}});
  ASSERT_TRUE(pre.ok()) << pre.status();
  const absl::Status status =
      pre->Split(std::string(1000, 'a') + "!b", [](std::string_view) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("splitting text failed: match limit exceeded"));
}

// More blanks than PCRE2 would step back over unasked.
TEST(PreTokenizer, TwelveMillionBlanks) {
  const std::string blanks(12 << 20, ' ');
  EXPECT_THAT(Words("llama-bpe", blanks), ElementsAre(blanks));
}

}  // namespace
}  // namespace runahead
