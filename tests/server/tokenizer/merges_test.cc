#include "server/tokenizer/merges.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TokenIds IdsOf(const std::vector<std::string>& tokens) {
  TokenIds ids;
  for (size_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], static_cast<int32_t>(id));
  return ids;
}

// As "left+right=result", by rank.
std::vector<std::string> ByScore(const std::vector<std::string>& tokens, const std::vector<double>& scores,
                                 std::vector<bool> mergeable = {}) {
  if (mergeable.empty()) mergeable.assign(tokens.size(), true);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  std::vector<std::string> merges;
  for (const Merge& merge : MergesByScore(IdsOf(tokens), views, scores, mergeable)) {
    merges.push_back(std::to_string(merge.left) + "+" + std::to_string(merge.right) + "=" +
                     std::to_string(merge.result));
  }
  return merges;
}

TEST(Merges, OfAPair) {
  const std::vector<std::string> tokens = {"a", "b", "ab", " ", " a"};
  const auto merge = MergeOf(IdsOf(tokens), "a b");
  ASSERT_TRUE(merge.ok()) << merge.status();
  EXPECT_EQ(merge->left, 0);
  EXPECT_EQ(merge->right, 1);
  EXPECT_EQ(merge->result, 2);
  EXPECT_EQ(MergeOf(IdsOf(tokens), " ", "a")->result, 4);
}

TEST(Merges, WhatIsOutsideTheVocabularyIsNamed) {
  const auto message = [](const std::vector<std::string>& tokens, const char* pair) {
    return std::string(MergeOf(IdsOf(tokens), pair).status().message());
  };
  EXPECT_THAT(message({"a", "b"}, "a b"), HasSubstr("'a b' joins or makes what is not in the vocabulary"));
  EXPECT_THAT(message({"a", "ab"}, "a b"), HasSubstr("not in the vocabulary"));
  EXPECT_THAT(message({"b", "ab"}, "a b"), HasSubstr("not in the vocabulary"));
  EXPECT_THAT(message({"a"}, "a"), HasSubstr("is not a pair"));
  EXPECT_THAT(message({"a"}, ""), HasSubstr("is not a pair"));
}

TEST(Merges, ByScoreEveryWayToMakeAToken) {
  // abc is a+bc and ab+c; the best score comes first, of one token the longer left part.
  EXPECT_THAT(ByScore({"a", "b", "c", "ab", "bc", "abc"}, {-9, -9, -9, -2, -1, -3}),
              ElementsAre("1+2=4", "0+1=3", "3+2=5", "0+4=5"));
  EXPECT_THAT(ByScore({"b", "a", "ba", "ab"}, {0, 0, -5, -5}), ElementsAre("0+1=2", "1+0=3"));
}

TEST(Merges, ByScoreOnlyOfThoseThatMerge) {
  EXPECT_THAT(ByScore({"a", "b", "ab", "aab"}, {0, 0, -1, -2}, {true, true, false, true}), ElementsAre());
  EXPECT_THAT(ByScore({"a", "aa", "aa"}, {0, -1, -2}),
              ElementsAre("0+0=1"));  // the second of two has no text of its own
}

}  // namespace
}  // namespace runahead
