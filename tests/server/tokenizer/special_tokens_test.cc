#include "server/tokenizer/special_tokens.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

// Where the tokens stand, as "begin:id".
std::vector<std::string> Found(const SpecialTokens& tokens, std::string_view text, bool control = true) {
  std::vector<std::string> found;
  size_t from = 0;
  while (const auto match = tokens.Find(text, from, control)) {
    found.push_back(std::to_string(match->begin) + ":" + std::to_string(match->token->id));
    from = match->begin + match->bytes;
  }
  return found;
}

using testing::ElementsAre;

TEST(SpecialTokens, TheFirstAndOfThoseTheLongest) {
  SpecialTokens tokens;
  tokens.Add({"<a>", 1, true});
  tokens.Add({"<a><b>", 2, true});
  tokens.Add({"<tool>", 3});
  tokens.Add({"<a>", 4});  // known
  tokens.Add({"", 5});
  EXPECT_THAT(Found(tokens, "x<a><b><a>y<tool>"), ElementsAre("1:2", "7:1", "11:3"));
  EXPECT_THAT(Found(tokens, "<a><tool><a", false), ElementsAre("3:3"));
  EXPECT_THAT(Found(tokens, ""), ElementsAre());
}

TEST(SpecialTokens, SingleWordsStandAlone) {
  SpecialTokens tokens;
  tokens.Add({.name = "ab", .id = 1, .single_word = true});
  EXPECT_THAT(Found(tokens, "ab xab abx ab. éab ab"), ElementsAre("0:1", "11:1", "20:1"));
}

}  // namespace
}  // namespace runahead
