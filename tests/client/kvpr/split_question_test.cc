#include "client/kvpr/split_question.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

TEST(SplitQuestion, StoredKvHasScalesAndZerosByGroups) {
  EXPECT_EQ(*StoredKvBytes(4096, 8, 2), 2 * 4096 + 2 * 64 * 4);
  EXPECT_EQ(*StoredKvBytes(4096, 4, 2), 4096 + 2 * 64 * 4);
  EXPECT_EQ(*StoredKvBytes(96, 8, 2), 2 * 96 + 2 * 3 * 4) << "groups of 32";
  for (const int64_t bits : {0, 2, 5, 32}) {
    const absl::Status status = StoredKvBytes(4096, bits, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("is none of 4, 8 and 16"));
  }
  EXPECT_THAT(std::string(StoredKvBytes(48, 4, 2).status().message()), HasSubstr("groups of 32"));
  EXPECT_FALSE(StoredKvBytes(0, 16, 2).ok());
}

TEST(SplitQuestion, KvThatIsNotQuantisedIsStoredAsItIsComputed) {
  EXPECT_EQ(*StoredKvBytes(4096, 16, 2), 2 * 4096 * 2);
  EXPECT_EQ(*StoredKvBytes(4096, 16, 4), 2 * 4096 * 4);
}

}  // namespace
}  // namespace runahead
