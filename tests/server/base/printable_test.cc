#include "server/base/printable.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(Printable, LeavesNamesAsTheyAre) {
  for (const std::string name : {"", "SmolLM2-135M.Q4_1", "it's 100% ok", "\u6a21\u578b", "mod\u00e8le \U0001f600"}) {
    EXPECT_EQ(Printable(name), name);
  }
}

TEST(Printable, EscapesWhatSteersATerminal) {
  EXPECT_EQ(Printable("a\nb\t\"\\"), "a\\nb\\t\\\"\\\\");
  EXPECT_EQ(Printable("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(Printable(std::string(1, '\0')), "\\x00");
  EXPECT_EQ(Printable("\u009b31m"), "\\xc2\\x9b31m");
  EXPECT_EQ(Printable("a\u202eb\u2028"), "a\\xe2\\x80\\xaeb\\xe2\\x80\\xa8");
}

TEST(Printable, EscapesBytesThatAreNoUtf8) {
  EXPECT_EQ(Printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(Printable("\xc0\xaf"), "\\xc0\\xaf") << "overlong";
  EXPECT_EQ(Printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf") << "overlong";
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80") << "a surrogate";
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80") << "above the last character";
  EXPECT_EQ(Printable("a\xe6\xa8"), "a\\xe6\\xa8") << "cut short";
}

TEST(Printable, CutsAfterWholeCharacters) {
  EXPECT_EQ(Printable(std::string(64, 'x')), std::string(64, 'x'));
  EXPECT_EQ(Printable(std::string(65, 'x')), std::string(64, 'x') + "...");
  std::string text, cut;
  for (int i = 0; i < 100; ++i) text += "\u6a21";
  for (int i = 0; i < 64; ++i) cut += "\u6a21";
  EXPECT_EQ(Printable(text), cut + "...");
  EXPECT_EQ(Printable("a\nb", 2), "a\\n...");
}

TEST(FirstCharacters, AreWholeAndUnchanged) {
  EXPECT_EQ(FirstCharacters("\u6a21\n\xff\"x", 5), "\u6a21\n\xff\"x");
  EXPECT_EQ(FirstCharacters("\u6a21\n\xff\"x", 4), "\u6a21\n\xff\"...");
  EXPECT_EQ(FirstCharacters("\u6a21\u578b", 1), "\u6a21...");
  EXPECT_EQ(FirstCharacters("", 1), "");
}

TEST(OneLine, EscapesWhatIsNoTextAndLeavesQuotes) {
  const absl::Status status = OneLine(absl::NotFoundError("f.json: 'a\\b' \"c\" \xff\x1b[31m\n"));
  EXPECT_EQ(status, absl::NotFoundError("f.json: 'a\\b' \"c\" \\xff\\x1b[31m\\n"));
  EXPECT_TRUE(OneLine(absl::OkStatus()).ok());
}

TEST(OneLine, CutsWhatIsLong) {
  const absl::Status status = OneLine(absl::UnknownError(std::string(kOneLineCharacters + 1, 'x')));
  EXPECT_EQ(status.message(), std::string(kOneLineCharacters, 'x') + "...");
}

}  // namespace
}  // namespace runahead
