#include "scheduler/placement/expected_output.h"

#include <limits>

#include "gtest/gtest.h"

namespace runahead {
namespace {

// So many whole answers, all of one length.
void Learn(ExpectedOutput& outputs, int times, int64_t prompt, int32_t max_tokens, int32_t output) {
  for (int i = 0; i < times; ++i) outputs.Learn(prompt, max_tokens, output, /*whole=*/true);
}

TEST(ExpectedOutput, IsAThousandOrMaxTokensWhereNothingIsKnown) {
  ExpectedOutput outputs;
  EXPECT_EQ(outputs.Expect(10, 8000), ExpectedOutput::kUnknown);
  EXPECT_EQ(outputs.Expect(10, 64), 64);
  EXPECT_EQ(outputs.Expect(10, 1), 1);
  Learn(outputs, 15, 10, 8000, 30);
  EXPECT_EQ(outputs.Expect(10, 8000), ExpectedOutput::kUnknown) << "fifteen are too few";
}

TEST(ExpectedOutput, SixteenShortAnswersMakeItShort) {
  ExpectedOutput outputs;
  Learn(outputs, 16, 10, 8000, 30);
  EXPECT_EQ(outputs.Expect(10, 8000), 32) << "rounded up";
  EXPECT_EQ(outputs.Expect(15, 5000), 32) << "of the same class";
  EXPECT_EQ(outputs.Expect(10, 64), 64) << "of another max_tokens nothing is known";
}

TEST(ExpectedOutput, IsNeverMoreThanMaxTokens) {
  ExpectedOutput outputs;
  Learn(outputs, 16, 10, 127, 100);
  EXPECT_EQ(outputs.Expect(10, 70), 70);
  EXPECT_EQ(outputs.Expect(10, 127), 112);
}

TEST(ExpectedOutput, OneOfTenMayBeLonger) {
  ExpectedOutput outputs;
  Learn(outputs, 58, 10, 8000, 32);
  Learn(outputs, 6, 10, 8000, 4000);
  EXPECT_EQ(outputs.Expect(10, 8000), 32);
  Learn(outputs, 1, 10, 8000, 4000);  // in place of a short one
  EXPECT_EQ(outputs.Expect(10, 8000), 4000);
}

TEST(ExpectedOutput, FollowsTheLast64) {
  ExpectedOutput outputs;
  Learn(outputs, 200, 10, 8000, 32);
  Learn(outputs, 64, 10, 8000, 2000);
  EXPECT_EQ(outputs.Expect(10, 8000), 2000);
  Learn(outputs, 64, 10, 8000, 64);
  EXPECT_EQ(outputs.Expect(10, 8000), 64);
}

TEST(ExpectedOutput, PromptsOfOtherLengthsStandInUntilAClassKnowsEnough) {
  ExpectedOutput outputs;
  Learn(outputs, 8, 10, 8000, 32);
  Learn(outputs, 8, 1000, 8000, 48);
  EXPECT_EQ(outputs.Expect(100000, 8000), 48) << "sixteen of any prompt";
  Learn(outputs, 16, 10, 8000, 16);
  EXPECT_EQ(outputs.Expect(10, 8000), 32) << "nine of ten of its own 24";
  EXPECT_EQ(outputs.Expect(1000, 8000), 48);
}

TEST(ExpectedOutput, AnAnswerThatWasCutShortCountsOnlyWhereItWasLongerThanExpected) {
  ExpectedOutput outputs;
  for (int i = 0; i < 100; ++i) outputs.Learn(10, 8000, 20, /*whole=*/false);
  EXPECT_EQ(outputs.Expect(10, 8000), ExpectedOutput::kUnknown);
  for (int i = 0; i < 16; ++i) outputs.Learn(10, 8000, 2000, /*whole=*/false);
  EXPECT_EQ(outputs.Expect(10, 8000), 2000);
  for (int i = 0; i < 64; ++i) outputs.Learn(10, 8000, 100, /*whole=*/false);
  EXPECT_EQ(outputs.Expect(10, 8000), 2000) << "who was cut short before that teaches nothing";
}

// Else a max_tokens of 127 would be expected to need no more than those of 70 that wanted more.
TEST(ExpectedOutput, AnAnswerThatEndedAtItsMaxTokensWouldHaveFilledALargerOneOfItsClass) {
  ExpectedOutput outputs;
  Learn(outputs, 16, 10, 70, 70);
  EXPECT_EQ(outputs.Expect(10, 127), 127);
  EXPECT_EQ(outputs.Expect(10, 64), 64);
}

TEST(ExpectedOutput, TakesTheLargestAndTheSmallestRequests) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  ExpectedOutput outputs;
  Learn(outputs, 16, std::numeric_limits<int64_t>::max(), kMost, kMost);
  EXPECT_EQ(outputs.Expect(std::numeric_limits<int64_t>::max(), kMost), kMost);
  Learn(outputs, 16, 0, 1, 1);
  EXPECT_EQ(outputs.Expect(0, 1), 1);
  Learn(outputs, 16, 0, 100, 0);
  EXPECT_EQ(outputs.Expect(0, 100), 1);
}

}  // namespace
}  // namespace runahead
