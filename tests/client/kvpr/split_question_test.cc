#include "client/kvpr/split_question.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(SplitQuestion, StoredKvHasScalesAndZerosByGroups) {
  EXPECT_EQ(*StoredKvBytes(4096, 16), 2 * 4096 * 2);
  EXPECT_EQ(*StoredKvBytes(4096, 8), 2 * 4096 + 2 * 64 * 4);
  EXPECT_EQ(*StoredKvBytes(4096, 4), 4096 + 2 * 64 * 4);
  for (const int64_t bits : {0, 2, 5, 32}) {
    const absl::Status status = StoredKvBytes(4096, bits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is none of 4, 8 and 16"));
  }
  EXPECT_THAT(std::string(StoredKvBytes(96, 4).status().message()), HasSubstr("groups of 64"));
  EXPECT_FALSE(StoredKvBytes(0, 16).ok());
}

}  // namespace
}  // namespace runahead
