#include "server/tokenizer/marked_text.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(MarkedText, NeighboursOfOneOriginAreOnePart) {
  const MarkedText text = FromUtf8("<|", /*own=*/true) + FromUtf8("ü>", /*own=*/true) + FromUtf8("ü<s>", /*own=*/false);
  const std::vector<TextPart> parts = Parts(text);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].text, "<|ü>");
  EXPECT_TRUE(parts[0].parse_special);
  EXPECT_EQ(parts[1].text, "ü<s>");
  EXPECT_FALSE(parts[1].parse_special);
  EXPECT_TRUE(Parts({}).empty());
}

TEST(MarkedText, CharactersAreEqualWhosever) {
  const MarkedText own = FromUtf8("ab", /*own=*/true), callers = FromUtf8("ab", /*own=*/false);
  EXPECT_EQ(own, callers);
  EXPECT_LT(own, FromUtf8("b", /*own=*/false));
  EXPECT_LT(callers, FromUtf8("abc", /*own=*/true));
  EXPECT_EQ(own.find(U'b'), 1u);
  EXPECT_EQ((own + callers).find(FromUtf8("ba", /*own=*/false)), 1u);
}

TEST(MarkedText, WhatIsNoUtf8IsReplaced) {
  EXPECT_EQ(ToUtf8(FromUtf8("a\xff\U0001F600\xf0\x9f", /*own=*/true)), "a\uFFFD\U0001F600\uFFFD");
}

}  // namespace
}  // namespace runahead
