#include "server/tokenizer/pattern_dialect.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::HasSubstr;

TEST(PatternDialect, WhiteSpaceIsUnicodes) {
  EXPECT_EQ(*PatternForPcre2("\\s+(?!\\S)"), "[\\x09-\\x0d\\x{85}\\p{Z}]+(?![^\\x09-\\x0d\\x{85}\\p{Z}])");
  EXPECT_EQ(*PatternForPcre2("[^\\s\\p{L}]"), "[^\\x09-\\x0d\\x{85}\\p{Z}\\p{L}]");
}

TEST(PatternDialect, WhatBothUnderstandStays) {
  for (const std::string pattern : {"(?i:'s|'t)|[^\\r\\n\\p{L}]?\\p{L}+", "\\p{N}{1,3}", "(?<=a)b|(?>c)++",
                                    "[A-Z\\-\\]]*", "\\x{4e00}|\\x41|\\d"}) {
    EXPECT_EQ(*PatternForPcre2(pattern), pattern);
  }
  EXPECT_EQ(*PatternForPcre2("[\\u0E00-\\u0E7F]"), "[\\x{0E00}-\\x{0E7F}]");
}

TEST(PatternDialect, WhatTheyUnderstandDifferentlyIsRefused) {
  for (const std::string pattern : {"\\w", "\\b", "\\h", "(a)\\1", "[a[b]]", "[a&&b]", "[]a]", "[\\S]", "a{1,2}+",
                                    "(?m)a", "(?<name>a)", "\\k<a>", "[a", "\\p", "\\xff", "\\", "\\u12", "(?#c)"}) {
    const absl::Status status = PatternForPcre2(pattern).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << pattern;
    EXPECT_THAT(std::string(status.message()), HasSubstr("is not supported")) << pattern;
  }
  EXPECT_THAT(std::string(PatternForPcre2(std::string(20000, 'a')).status().message()), HasSubstr("20000 bytes"));
}

}  // namespace
}  // namespace runahead
