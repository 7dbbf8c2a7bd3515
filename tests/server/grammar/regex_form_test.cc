#include "server/grammar/regex_form.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::HasSubstr;

std::string Read(const std::string& regex, RegexText text = RegexText::kPlain) {
  const auto form = ReadRegex(regex, text);
  return form.ok() ? form->text : std::string(form.status().message());
}

TEST(RegexForm, WritesOutWhatStandsForMore) {
  EXPECT_EQ(Read("^abc$"), "abc");
  EXPECT_EQ(Read("\\d+?"), "[0-9]+");
  EXPECT_EQ(Read("\\w{2}"), "[0-9A-Z_a-z]{2,2}");
  EXPECT_EQ(Read("[^\\d]"), "[^0-9]");
  EXPECT_EQ(Read("[\\D]"), "[^0-9]");
  EXPECT_EQ(Read("."), "[^\\u000a\\u000d\\u2028-\\u2029]");
  EXPECT_EQ(Read("[^]"), "[\\u0000-\\u{10ffff}]");
  EXPECT_EQ(Read("(?:a|b)(?<name>c)"), "(a|b)(c)");
  EXPECT_EQ(Read("a{2,}|b{1,}|c{0,}|"), "a{2,2}a*|b+|c*|");
  EXPECT_EQ(Read("\\.\\/\\u0041\\x42\\u{1F600}é"), "\\.\\/AB\\u{1f600}\\u00e9");
  EXPECT_EQ(Read("[a-c\\-\\]^]"), "[\\-\\]-\\^a-c]");
  EXPECT_EQ(Read("[a-]"), "[\\-a]");
}

TEST(RegexForm, LeavesOutWhatJsonEscapes) {
  EXPECT_EQ(Read("[!-#]", RegexText::kJsonString), "[!#]");
  EXPECT_EQ(Read(".", RegexText::kJsonString), "[^\\u0000-\\u001f\"\\\\\\u2028-\\u2029]");
  EXPECT_THAT(Read("\\n", RegexText::kJsonString), HasSubstr("no character is left"));
  EXPECT_THAT(Read("a\"", RegexText::kJsonString), HasSubstr("at character 2: "));
}

TEST(RegexForm, RefusesByCharacter) {
  EXPECT_THAT(Read("ab(?=c)"), HasSubstr("at character 5: of groups"));
  EXPECT_THAT(Read("(?<!a)"), HasSubstr("looking"));
  EXPECT_THAT(Read("(?i)a"), HasSubstr("flags"));
  EXPECT_THAT(Read("(a)\\1"), HasSubstr("at character 5: this escape"));
  EXPECT_THAT(Read("\\bword"), HasSubstr("this escape"));
  EXPECT_THAT(Read("\\p{L}"), HasSubstr("this escape"));
  EXPECT_THAT(Read("a^b"), HasSubstr("ends of the expression"));
  EXPECT_THAT(Read("(^a)"), HasSubstr("ends of the expression"));
  EXPECT_THAT(Read("(a"), HasSubstr("a ( without its )"));
  EXPECT_THAT(Read("a)"), HasSubstr("a ) without its ("));
  EXPECT_THAT(Read("[a"), HasSubstr("a [ without its ]"));
  EXPECT_THAT(Read("[]"), HasSubstr("no characters"));
  EXPECT_THAT(Read("[b-a]"), HasSubstr("ends before it begins"));
  EXPECT_THAT(Read("*a"), HasSubstr("nothing to repeat"));
  EXPECT_THAT(Read("a**"), HasSubstr("wants a group"));
  EXPECT_THAT(Read("a{,3}"), HasSubstr("a repetition is"));
  EXPECT_THAT(Read("a{3,2}"), HasSubstr("less than its first"));
  EXPECT_THAT(Read("a{1001}"), HasSubstr("more than 1000"));
  EXPECT_THAT(Read("a\\"), HasSubstr("nothing behind it"));
  EXPECT_THAT(Read("\\u{110000}"), HasSubstr("a character's number"));
  EXPECT_THAT(Read("\xff"), HasSubstr("no UTF-8"));
}

TEST(RegexForm, MultipliesCounts) {
  EXPECT_EQ(ReadRegex("(ab){10}c", RegexText::kPlain)->written, 21);
  EXPECT_EQ(ReadRegex("(a|b{3}){10}", RegexText::kPlain)->written, 40);
}

}  // namespace
}  // namespace runahead
