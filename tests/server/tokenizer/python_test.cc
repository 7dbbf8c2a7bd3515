// Expected is what Python 3.11 says, or Jinja 3.1.6.
#include "server/tokenizer/python.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

MarkedText Callers(std::string_view utf8) {
  return FromUtf8(utf8, /*own=*/false);
}
MarkedText Own(std::string_view utf8) {
  return FromUtf8(utf8, /*own=*/true);
}
std::string Marked(const MarkedText& text) {
  std::string marked;
  for (const TextPart& part : Parts(text)) marked += part.parse_special ? "<" + part.text + ">" : part.text;
  return marked;
}

TEST(Python, StripTakesWhiteSpaceOrTheCharactersNamed) {
  EXPECT_EQ(Marked(Strip(Callers(" \x1f\u3000a \n") + Own("b "), nullptr, true, true)), "a \n<b>");
  EXPECT_EQ(Marked(Strip(Callers(" a "), nullptr, false, true)), " a");
  const MarkedText chars = Own("xy");
  EXPECT_EQ(Marked(Strip(Callers("xyaxy"), &chars, true, false)), "axy");
  EXPECT_EQ(Marked(Strip(Callers("xx"), &chars, true, true)), "");
}

TEST(Python, CasesKeepTheMarks) {
  EXPECT_EQ(Marked(ToCase(Callers("straße") + Own("ü"), /*upper=*/true)), "STRASSE<Ü>");
  EXPECT_EQ(Marked(ToCase(Own("ÄB"), /*upper=*/false)), "<äb>");
  EXPECT_EQ(Marked(Capitalize(Callers("äPFEL bAUM"), /*every_word=*/false)), "Äpfel baum");
  EXPECT_EQ(Marked(Capitalize(Callers("foo bar-baz (qux)"), /*every_word=*/true)), "Foo Bar-Baz (Qux)");
}

TEST(Python, IndentKnowsEveryEndOfALine) {
  EXPECT_EQ(ToUtf8(Indent(Callers("a\r\nb\rc\u2028\u0085\u000bd\r"), Own(">"), false, false)), "a\n>b\n>c\n\n\n>d");
  EXPECT_EQ(Marked(Indent(Callers("a\n\nb"), Own("> "), true, true)), "<> >a<\n> \n> >b");
  EXPECT_EQ(Marked(Indent({}, Own(" "), false, false)), "");
}

TEST(Python, QuotesAreAsReprAndJsonHaveThem) {
  EXPECT_EQ(Marked(Quote(Callers("a'b"), Quotes::kPython)), "\"a'b\"");
  EXPECT_EQ(Marked(Quote(Callers("a'\"\n\x01\u200d\U000E0001ü"), Quotes::kPython)), R"('a\'"\n\x01\u200d\U000e0001ü')");
  EXPECT_EQ(Marked(Quote(Callers("ü'\"\\\n\x01\x7f</"), Quotes::kJson)), "\"ü'\\\"\\\\\\n\\u0001\x7f</\"");
  EXPECT_EQ(Marked(Quote(Callers("ü\U0001F600"), Quotes::kAsciiJson)), R"("\u00fc\ud83d\ude00")");
  EXPECT_EQ(Marked(Quote(Own("<s>\n"), Quotes::kJson)), "\"<<s>>\\n\"") << "what is added is not the template's";
}

TEST(Python, PartsAreBetweenSeparatorsOrWhiteSpace) {
  const auto parts = [](std::string_view text, std::string_view separator, int64_t most) {
    std::string all;
    ForBetween(Callers(text), Own(separator), most,
               [&](size_t place, size_t size) { all += ToUtf8(Callers(text).substr(place, size)) + "|"; });
    return all;
  };
  EXPECT_EQ(parts("ä, ö,,ü", ",", -1), "ä| ö||ü|");
  EXPECT_EQ(parts("aXaXa", "aX", 1), "|aXa|");
  EXPECT_EQ(parts("", ",", -1), "|");
  std::string words;
  const MarkedText text = Callers("  ä \u3000bc\n");
  ForWords(text, [&](size_t place, size_t size) { words += ToUtf8(text.substr(place, size)) + "|"; });
  EXPECT_EQ(words, "ä|bc|");
  EXPECT_TRUE(IsPart(Own("ö,"), Callers("ä, ö,,ü")));
  EXPECT_TRUE(IsPart({}, {}));
  EXPECT_FALSE(IsPart(Own("a"), {}));
}

TEST(Python, IntegersStayWithin64Bits) {
  EXPECT_EQ(Compute(-7, '%', 3), 2);
  EXPECT_EQ(Compute(7, '%', -3), -2);
  EXPECT_EQ(Compute(6, '%', -3), 0);
  EXPECT_EQ(Compute(INT64_MIN, '%', -1), 0);
  EXPECT_EQ(Compute(INT64_MAX, '%', INT64_MIN), -1);
  EXPECT_EQ(Compute(INT64_MIN, '+', INT64_MAX), -1);
  EXPECT_EQ(Compute(INT64_MAX, '+', 1), std::nullopt);
  EXPECT_EQ(Compute(0, '-', INT64_MIN), std::nullopt);
  EXPECT_EQ(Compute(INT64_MIN, '*', INT64_MIN), std::nullopt);
  EXPECT_EQ(WholeNumber(Callers("-4.9")), -4);
  EXPECT_EQ(WholeNumber(Callers("9223372036854775807")), INT64_MAX);
  for (const char* none : {"", "x", "1e30", "nan", "inf"}) EXPECT_EQ(WholeNumber(Callers(none)), std::nullopt) << none;
}

TEST(Python, SlicesStayWithinWhatIsThere) {
  using Bounds = std::pair<int64_t, int64_t>;
  EXPECT_EQ(SliceBounds(3, std::nullopt, std::nullopt, 1), Bounds(0, 3));
  EXPECT_EQ(SliceBounds(3, std::nullopt, std::nullopt, -1), Bounds(2, -1));
  EXPECT_EQ(SliceBounds(3, -2, 9, 1), Bounds(1, 3));
  EXPECT_EQ(SliceBounds(3, 9, -9, -1), Bounds(2, -1));
  EXPECT_EQ(SliceBounds(0, INT64_MIN, INT64_MAX, INT64_MAX), Bounds(0, 0));
}

TEST(Python, FloatsHaveTheFewestDigits) {
  for (const auto& [number, text] :
       {std::pair(1e16, "1e+16"), std::pair(1e15, "1000000000000000.0"), std::pair(0.0001, "0.0001"),
        std::pair(0.00001, "1e-05"), std::pair(-0.30000000000000004, "-0.30000000000000004"), std::pair(0.0, "0.0"),
        std::pair(-1.5, "-1.5"), std::pair(9999999999999998.0, "9999999999999998.0")}) {
    EXPECT_EQ(FloatText(number), text);
  }
}

}  // namespace
}  // namespace runahead
