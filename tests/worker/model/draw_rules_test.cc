#include "worker/model/draw_rules.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/letter_tokenizer.h"
#include "tests/testing/plain_rules.h"

namespace runahead {
namespace {

using ::testing::IsEmpty;
using testing::PlainMask;

std::vector<uint32_t> NextOf(TokenMask& mask) {
  const absl::StatusOr<absl::Span<const uint32_t>> next = mask.Next();
  EXPECT_TRUE(next.ok()) << next.status();
  return {next->begin(), next->end()};
}

TEST(TokenMask, AllowsEverythingWithoutRules) {
  TokenMask mask({}, 100);
  for (int32_t id = 0; id < 5; ++id) {
    EXPECT_THAT(NextOf(mask), IsEmpty());
    mask.Append(id);
  }
}

TEST(TokenMask, NoEndComesBeforeMinTokens) {
  TokenMask mask({.min_tokens = 2, .end_ids = {0, 33}}, 35);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0xfffffffeu, 0b101u));
  mask.Append(7);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0xfffffffeu, 0b101u)) << "one token";
  mask.Append(8);
  EXPECT_THAT(NextOf(mask), IsEmpty()) << "two tokens";
}

TEST(TokenMask, TheLastIdOfABadSequenceIsForbiddenBehindTheOthers) {
  TokenMask mask({.bad_ids = {{3}, {1, 2}, {1, 1, 4}}}, 5);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b10111u));
  mask.Append(1);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b10011u));
  mask.Append(1);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b00011u));
  mask.Append(0);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b10111u)) << "it is allowed again";
}

TEST(TokenMask, IsTheSameUntilATokenComes) {
  TokenMask mask({.bad_ids = {{1, 2}}}, 5);
  mask.Append(1);
  const std::vector<uint32_t> first = NextOf(mask);
  EXPECT_EQ(NextOf(mask), first);
}

TEST(TokenMask, AFormAndBadIdsHoldTogether) {
  if (!StructuredOutputStatus().ok()) GTEST_SKIP() << "did not run here: " << StructuredOutputStatus().message();
  GrammarSource source([] { return testing::MakeLetterTokenizer(); }, 30);
  DrawRules rules{.bad_ids = {{0, 2}}};
  rules.structure = {.kind = StructureKind::kChoice, .choices = {"ab", "ac", "a", "b"}};
  const auto grammar = WantGrammar(rules, &source);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  TokenMask mask(rules, 30, *grammar), behind(rules, 30, *grammar);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b11u));
  mask.Append(0);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b10u | 1u << testing::kLettersEnd)) << "c is bad behind a";
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(0b10u | 1u << testing::kLettersEnd)) << "the same";
  mask.Append(1);
  EXPECT_THAT(NextOf(mask), ::testing::ElementsAre(1u << testing::kLettersEnd));
  behind.Append(0), behind.Append(1);
  EXPECT_EQ(NextOf(behind), NextOf(mask)) << "what is there already";
  TokenMask wrong(rules, 30, *grammar);
  wrong.Append(1), wrong.Append(1);
  EXPECT_EQ(wrong.Next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST(TokenMask, RulesOfIdsThatThereAreNotForbidNothing) {
  TokenMask mask({.min_tokens = 9, .end_ids = {-1, 5}, .bad_ids = {{}, {5}}}, 5);
  EXPECT_THAT(NextOf(mask), IsEmpty());
}

TEST(TokenMask, SaysWhatRulesSayOfTheWholeOutput) {
  constexpr int32_t kVocab = 40;
  std::mt19937 random(4);
  const auto few = [&](int most) { return static_cast<int32_t>(random() % most); };
  for (int run = 0; run < 200; ++run) {
    DrawRules rules{.min_tokens = few(20), .end_ids = {few(kVocab), few(kVocab)}};
    for (int i = few(4); i > 0; --i) {
      rules.bad_ids.emplace_back(1 + few(6));
      for (int32_t& id : rules.bad_ids.back()) id = few(3);
    }
    TokenMask mask(rules, kVocab);
    std::vector<int32_t> output;
    for (int step = 0; step < 60; ++step) {
      const std::vector<uint32_t> want = PlainMask(rules, output, kVocab), got = NextOf(mask);
      ASSERT_EQ(got.empty() ? PlainMask({}, {}, kVocab) : got, want) << "run " << run << ", step " << step;
      output.push_back(few(3));
      mask.Append(output.back());
    }
  }
}

}  // namespace
}  // namespace runahead
