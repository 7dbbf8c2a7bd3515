#include "server/tokenizer/normalizer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using Kind = NormalizerStep::Kind;
using testing::HasSubstr;

std::string Normalized(const std::vector<NormalizerStep>& rules, std::string_view text) {
  const auto normalizer = Normalizer::Create(rules);
  EXPECT_TRUE(normalizer.ok()) << normalizer.status();
  Steps steps(Always);
  return *normalizer->Apply(text, steps);
}

TEST(Normalizer, StepsInTheirOrder) {
  const NormalizerStep prepend = {.kind = Kind::kPrepend, .to = "_"};
  const NormalizerStep replace = {.kind = Kind::kReplace, .from = " ", .to = "_"};
  EXPECT_EQ(Normalized({prepend, replace}, " a  b"), "__a__b");
  EXPECT_EQ(Normalized({prepend}, ""), "");  // nothing stays nothing
  EXPECT_EQ(Normalized({{.kind = Kind::kReplace, .from = "aa", .to = "b"}}, "aaaaa"), "bba");
  EXPECT_EQ(Normalized({{.kind = Kind::kPattern, .from = " {2,}", .to = " "}}, "a   b c  "), "a b c ");
  EXPECT_EQ(Normalized({{.kind = Kind::kStrip, .left = true}}, " \u3000a "), "a ");
  EXPECT_EQ(Normalized({{.kind = Kind::kStrip, .right = true}}, " a\n\t"), " a");
  EXPECT_EQ(Normalized({{.kind = Kind::kUnicode, .form = NormalForm::kNfkc}}, "\u2460e\u0301"), "1\u00e9");
}

TEST(Normalizer, BytesThatAreNoUtf8Stay) {
  const std::vector<NormalizerStep> rules = {{.kind = Kind::kUnicode},
                                             {.kind = Kind::kPattern, .from = "a+", .to = "b"}};
  EXPECT_EQ(Normalized(rules, "aa\xff\xc3 e\u0301\xe4\xbd"), "b\xff\xc3 \u00e9\xe4\xbd");
}

TEST(Normalizer, SaysWhatItTakesAway) {
  const auto of = [](const NormalizerStep& step) { return *Normalizer::Create({step}); };
  EXPECT_TRUE(Normalizer::Create({})->empty());
  EXPECT_EQ(of({.kind = Kind::kPrepend, .to = "_"}).most_bytes_for_one(), 1);
  EXPECT_EQ(of({.kind = Kind::kReplace, .from = " ", .to = "_"}).most_bytes_for_one(), 1);
  EXPECT_EQ(of({.kind = Kind::kReplace, .from = "``", .to = "\""}).most_bytes_for_one(), 0);
  EXPECT_EQ(of({.kind = Kind::kPattern, .from = "a+", .to = "b"}).most_bytes_for_one(), 0);
  EXPECT_EQ(of({.kind = Kind::kUnicode}).most_bytes_for_one(), 4);
  EXPECT_TRUE(of({.kind = Kind::kStrip, .left = true}).drops_white_space());
  EXPECT_FALSE(of({.kind = Kind::kUnicode}).drops_white_space());
}

TEST(Normalizer, RefusesWhatMakesTextBoundless) {
  EXPECT_THAT(
      std::string(Normalizer::Create({{.kind = Kind::kPrepend, .to = std::string(65, 'x')}}).status().message()),
      HasSubstr("65 bytes; at most 64"));
  EXPECT_THAT(std::string(Normalizer::Create({{.kind = Kind::kReplace, .to = "x"}}).status().message()),
              HasSubstr("replaces nothing"));
  // 64 times 17 MiB is above a GiB.
  const auto normalizer = Normalizer::Create({{.kind = Kind::kReplace, .from = "a", .to = std::string(64, 'x')}});
  Steps steps(Always);
  EXPECT_EQ(normalizer->Apply(std::string(17 << 20, 'a'), steps).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace runahead
