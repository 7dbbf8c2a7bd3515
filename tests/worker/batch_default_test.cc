#include "worker/batch_default.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr int64_t kPlenty = int64_t{1} << 30;

absl::Duration Ms(double ms) {
  return absl::Milliseconds(ms);
}

TEST(DefaultBatch, IsWhatMemoryHoldsOfUsualSequences) {
  EXPECT_EQ(DefaultBatch(100 * kUsualSequence, Ms(1), Ms(2)), 96);
  EXPECT_EQ(DefaultBatch(40 * kUsualSequence, Ms(1), Ms(2)), 40);
}

TEST(DefaultBatch, IsWhatAStepOfATenthOfASecondTakes) {
  // 1 ms a row beside 9: 91 rows are 100 ms.
  EXPECT_EQ(DefaultBatch(kPlenty, Ms(10), Ms(41)), 88);
}

TEST(DefaultBatch, StaysWithinItsBounds) {
  EXPECT_EQ(DefaultBatch(10, Ms(1), Ms(2)), kTimedBatch) << "requests wait for memory then";
  EXPECT_EQ(DefaultBatch(kPlenty, Ms(500), Ms(9000)), kTimedBatch);
  EXPECT_EQ(DefaultBatch(kPlenty, Ms(0.1), Ms(0.2)), kMostDefaultBatch);
}

TEST(DefaultBatch, ASlowFirstStepDoesNotMakeRowsFree) {
  // As if each were a 64th of what 32 took: 60 ms more are 96 rows.
  EXPECT_EQ(DefaultBatch(kPlenty, Ms(90), Ms(40)), 128);
}

}  // namespace
}  // namespace runahead
