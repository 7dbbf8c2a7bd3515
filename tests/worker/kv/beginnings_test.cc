#include "worker/kv/beginnings.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/placement/beginning_hash.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// `count` ids, others for each `kind`.
std::vector<int32_t> Ids(int64_t count, int32_t kind = 0) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i % 97) + 1000 * kind;
  return ids;
}

std::vector<bool> PromptOf(int64_t prompt, int64_t all) {
  std::vector<bool> of_answer(all, true);
  std::fill(of_answer.begin(), of_answer.begin() + prompt, false);
  return of_answer;
}

TEST(Beginnings, FindsBlocksAndWhatOfThemWasAnAnswers) {
  Beginnings kept({});
  const Beginnings::Change change = kept.Add("", Ids(600), {7, 3, 5}, PromptOf(500, 600), 0);
  EXPECT_THAT(change.kept, ElementsAre(7, 3, 5));
  EXPECT_THAT(change.forgotten, IsEmpty());
  std::vector<int32_t> ids = Ids(700);
  ids[590] = 5000;
  const Beginnings::Hit hit = kept.Find("", ids);
  EXPECT_EQ(hit.tokens, 590);
  EXPECT_THAT(hit.blocks, ElementsAre(7, 3, 5));
  EXPECT_EQ(hit.of_answer, PromptOf(500, 590));
  EXPECT_THAT(kept.Find("", absl::MakeSpan(ids).first(512)).blocks, ElementsAre(7, 3));
  EXPECT_EQ(kept.Find("other", ids).tokens, 0);
}

TEST(Beginnings, WholeBlocksOfTheOlderStayAndABegunOneIsReplacedByALonger) {
  Beginnings kept({});
  kept.Add("", Ids(300), {0, 1}, PromptOf(300, 300), 0);
  Beginnings::Change change = kept.Add("", Ids(400), {2, 3}, PromptOf(400, 400), 0);
  EXPECT_THAT(change.kept, ElementsAre(3));
  EXPECT_THAT(change.forgotten, ElementsAre(1));
  change = kept.Add("", Ids(310), {4, 5}, PromptOf(310, 310), 0);
  EXPECT_THAT(change.kept, IsEmpty());
  EXPECT_THAT(kept.Find("", Ids(400)).blocks, ElementsAre(0, 3));
}

TEST(Beginnings, NameWhatIsKeptAndWhatGoesByOneHash) {
  const auto hash = [](absl::string_view salt, const std::vector<int32_t>& ids) {
    return BeginningHash(BeginningHash(salt), ids);
  };
  Beginnings kept({});
  EXPECT_THAT(kept.Add("", Ids(300), {0, 1}, PromptOf(300, 300), 0).fresh,
              ElementsAre(hash("", Ids(256)), hash("", Ids(300))));
  EXPECT_THAT(kept.Add("", Ids(600), {2, 3, 4}, PromptOf(600, 600), 0).fresh,
              ElementsAre(hash("", Ids(512)), hash("", Ids(600))));
  EXPECT_THAT(kept.Add("", Ids(520), {5, 6, 7}, PromptOf(520, 520), 0).fresh, IsEmpty());
  EXPECT_THAT(kept.Add("a", Ids(10), {8}, PromptOf(10, 10), 0).fresh, ElementsAre(hash("a", Ids(10))));
  EXPECT_EQ(kept.RemoveOldest()->hash, hash("", Ids(600)));
  EXPECT_EQ(kept.RemoveOldest()->hash, hash("", Ids(512)));
  EXPECT_EQ(kept.RemoveOldest()->hash, hash("", Ids(256)));
  EXPECT_EQ(kept.RemoveOldest()->hash, hash("a", Ids(10)));
}

// Its block is exchanged for one that has X; its name stays.
TEST(Beginnings, WhatIsExchangedKeepsItsHash) {
  Beginnings kept({});
  kept.Add("", Ids(256), {0}, PromptOf(256, 256), 0);
  EXPECT_THAT(kept.Add("", Ids(256), {1}, PromptOf(256, 256), 0, /*has_x=*/true).kept, ElementsAre(1));
  EXPECT_EQ(kept.RemoveOldest()->hash, BeginningHash(BeginningHash(""), Ids(256)));
}

TEST(Beginnings, TheOldestGoesFromItsEndOn) {
  Beginnings kept({});
  kept.Add("", Ids(300), {0, 1}, PromptOf(300, 300), 0);
  kept.Add("", Ids(300, 1), {2, 3}, PromptOf(300, 300), 0);
  kept.Use("", Ids(300));
  EXPECT_EQ(kept.RemoveOldest()->block, 3);
  EXPECT_EQ(kept.RemoveOldest()->block, 2);
  EXPECT_EQ(kept.RemoveOldest()->block, 1);
  EXPECT_EQ(kept.Find("", Ids(300)).tokens, 256);
  EXPECT_EQ(kept.RemoveOldest()->block, 0);
  EXPECT_FALSE(kept.RemoveOldest().has_value());
}

// Of a prompt of 1000 tokens, layers with a window of 100 have rows from 901 on: the answer's first row sees those.
TEST(Beginnings, WithWindowsThereIsNoHitWhereWhatIsSeenMayBeAbsent) {
  Beginnings kept({0, 100});
  kept.Add("", Ids(1050), {0, 1, 2, 3, 4}, PromptOf(1000, 1050), 901);
  EXPECT_EQ(kept.Find("", Ids(1050)).tokens, 1050);
  EXPECT_EQ(kept.Find("", Ids(1050)).hole, 901);
  EXPECT_EQ(kept.Find("", Ids(1000)).tokens, 1000);
  EXPECT_EQ(kept.Find("", Ids(999)).tokens, 0);
  EXPECT_EQ(kept.Find("", Ids(300)).tokens, 0);
}

TEST(Beginnings, AHoleEndsWithItsBlock) {
  Beginnings kept({100, 0});
  kept.Add("", Ids(600), {0, 1, 2}, PromptOf(600, 600), 256);
  EXPECT_EQ(kept.Find("", Ids(600)).tokens, 600);
  EXPECT_EQ(kept.Find("", Ids(355)).tokens, 355) << "it sees what comes from 256 on";
  EXPECT_EQ(kept.Find("", Ids(354)).tokens, 0);
}

TEST(Beginnings, ABlockWithMoreRowsTakesTheOldersPlace) {
  Beginnings kept({100});
  kept.Add("", Ids(600), {0, 1, 2}, PromptOf(600, 600), 501);
  const Beginnings::Change change = kept.Add("", Ids(600), {3, 4, 5}, PromptOf(100, 600), 0);
  EXPECT_THAT(change.kept, ElementsAre(3, 4));
  EXPECT_THAT(change.forgotten, ElementsAre(0, 1));
  const Beginnings::Hit hit = kept.Find("", Ids(512));
  EXPECT_THAT(hit.blocks, ElementsAre(3, 4));
  EXPECT_EQ(hit.of_answer, PromptOf(100, 512)) << "whose arithmetic goes with the rows";
  EXPECT_EQ(hit.hole, 0);
}

// The sequence without X kept it first.
TEST(Beginnings, TheSameBlockIsKeptOnceWithAllThatIsSaidOfIt) {
  Beginnings kept({});
  kept.Add("", Ids(256), {0}, PromptOf(256, 256), 0, /*has_x=*/false);
  EXPECT_FALSE(kept.Find("", Ids(256)).has_x);
  for (const bool has_x : {true, false}) {
    const Beginnings::Change change = kept.Add("", Ids(256), {0}, PromptOf(256, 256), 0, has_x);
    EXPECT_THAT(change.kept, IsEmpty());
    EXPECT_THAT(change.forgotten, IsEmpty());
    EXPECT_TRUE(kept.Find("", Ids(256)).has_x);
  }
}

TEST(Beginnings, OfASaltAllBlocksGoThatAreNotAnothersToo) {
  Beginnings kept({});
  kept.Add("a", Ids(600), {0, 1, 2}, PromptOf(600, 600), 0);
  kept.Add("a", Ids(300), {3, 4}, PromptOf(300, 300), 0);  // which are there already
  kept.Add("", Ids(600), {5, 6, 7}, PromptOf(600, 600), 0);
  EXPECT_THAT(kept.RemoveSalt("a"), UnorderedElementsAre(0, 1, 2));
  EXPECT_THAT(kept.RemoveSalt("a"), IsEmpty());
  EXPECT_EQ(kept.Find("a", Ids(600)).tokens, 0);
  EXPECT_EQ(kept.Find("", Ids(600)).tokens, 600);
}

}  // namespace
}  // namespace runahead
