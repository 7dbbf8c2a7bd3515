#include "client/plan/search_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::pair<int64_t, int>> Pairs(const std::vector<SearchItem>& items) {
  std::vector<std::pair<int64_t, int>> pairs;
  for (const SearchItem& item : items) pairs.emplace_back(item.tokens, item.width);
  return pairs;
}

PartitionFileEntry Entry(int width, int64_t tokens, bool measured) {
  PartitionFileEntry entry;
  entry.width = width;
  entry.tokens = tokens;
  entry.fractions.assign(width, 1.0 / width);
  if (measured) entry.measured_ttft_s = 1;
  entry.predicted_ttft_s = 2;
  return entry;
}

MeasuredEntry Found(std::vector<int64_t> parts) {
  MeasuredEntry found;
  found.parts = std::move(parts);
  found.ttft_s = 0.5;
  found.spread_s = 0.25;
  found.predicted_s = 0.4;
  return found;
}

TEST(SearchPlan, SingleWorkersFirstThenLengthsOneAfterTheOtherWidthsRising) {
  EXPECT_THAT(Pairs(ItemsOf({2048, 512, 2048}, {3, 2, 1})),
              ElementsAre(std::pair(512, 1), std::pair(2048, 1), std::pair(512, 2), std::pair(512, 3),
                          std::pair(2048, 2), std::pair(2048, 3)));
  EXPECT_THAT(Pairs(ItemsOf({2048, 512}, {2})), ElementsAre(std::pair(512, 2), std::pair(2048, 2)));
}

TEST(SearchPlan, OnlyWhatWasMeasuredIsFinished) {
  PartitionFile table;
  table.entries = {Entry(2, 512, true), Entry(1, 512, false), Entry(2, 1024, true)};
  EXPECT_THAT(Pairs(Unfinished(ItemsOf({512, 2048}, {1, 2}), table)),
              ElementsAre(std::pair(512, 1), std::pair(2048, 1), std::pair(2048, 2)));
  EXPECT_THAT(Unfinished(ItemsOf({1024}, {2}), table), IsEmpty());
}

TEST(SearchPlan, AnotherModelsTableIsNotCompleted) {
  PartitionFile table;
  table.model = "Small";
  table.dtype = "f32";
  EXPECT_TRUE(CheckResumable(table, "t.yaml", "small", "f32").ok());
  const absl::Status model = CheckResumable(table, "t.yaml", "large", "f32");
  EXPECT_EQ(model.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(model.message(), AllOf(HasSubstr("t.yaml"), HasSubstr("\"Small\""), HasSubstr("\"large\"")));
  EXPECT_THAT(CheckResumable(table, "t.yaml", "small", "bf16").message(), HasSubstr("dtype \"f32\""));
  table.dtype = "";
  EXPECT_THAT(CheckResumable(table, "t.yaml", "small", "bf16").message(), HasSubstr("does not say its dtype"));
}

TEST(SearchPlan, WhatIsFoundTakesThePlaceOfWhatWasThere) {
  PartitionFile table;
  table.entries = {Entry(2, 1000, false), Entry(1, 1000, true)};
  PutEntry(table, {1000, 2}, Found({600, 400}), {"prefill-0", "prefill-1"});
  ASSERT_EQ(table.entries.size(), 2u);
  EXPECT_EQ(table.entries[0].width, 1);
  EXPECT_THAT(table.entries[1].fractions, ElementsAre(0.6, 0.4));
  EXPECT_EQ(table.entries[1].measured_ttft_s, 0.5);
  EXPECT_EQ(table.entries[1].spread_s, 0.25);
  EXPECT_EQ(table.entries[1].predicted_ttft_s, 0.4);
  EXPECT_THAT(table.devices, ElementsAre("prefill-0", "prefill-1"));
  // A shorter chain does not shorten the list.
  PutEntry(table, {500, 1}, Found({500}), {"prefill-0"});
  EXPECT_THAT(table.devices, ElementsAre("prefill-0", "prefill-1"));
}

TEST(SearchPlan, DevicesAreLeftOutWhereTheWidestChainsAreNotKnown) {
  PartitionFile table;
  table.entries = {Entry(3, 1000, true)};
  PutEntry(table, {1000, 2}, Found({600, 400}), {"prefill-0", "prefill-1"});
  EXPECT_THAT(table.devices, IsEmpty());
  EXPECT_TRUE(PrintPartitionFile(table).ok());
}

TEST(SearchPlan, TheTimeLeftFollowsWhatLikeEntriesTook) {
  SearchPace pace(absl::Seconds(60));
  const std::vector<SearchItem> all = ItemsOf({1024, 2048}, {1, 2});
  EXPECT_EQ(pace.Left(all, absl::ZeroDuration()), absl::Seconds(240));
  EXPECT_EQ(pace.Left(all, absl::Seconds(50)), absl::Seconds(190));
  EXPECT_EQ(pace.Left(all, absl::Seconds(70)), absl::Seconds(180));  // it takes longer: not less than nothing
  pace.Finished(all[0], absl::Seconds(4));
  const absl::Span<const SearchItem> left = all;
  EXPECT_EQ(pace.Left(left.subspan(1), absl::ZeroDuration()), absl::Seconds(60 + 8 + 60));
  pace.Finished(all[2], absl::Seconds(25));
  EXPECT_EQ(pace.Left(left.subspan(3), absl::ZeroDuration()), absl::Seconds(50));
  pace.Finished(all[2], absl::Seconds(40));
  EXPECT_EQ(pace.Left(left.subspan(3), absl::ZeroDuration()), absl::Seconds(60));  // 80, if the budget let it
  EXPECT_EQ(pace.Left({}, absl::ZeroDuration()), absl::ZeroDuration());
}

}  // namespace
}  // namespace runahead
