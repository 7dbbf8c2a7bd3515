#include "server/base/rare_line.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(RareLine, ComesOnceInAPeriodWithWhatHappenedMeanwhile) {
  RareLine line(absl::Seconds(10));
  const absl::Time begin = absl::UnixEpoch();
  EXPECT_EQ(line.Happened(begin), 1);
  EXPECT_EQ(line.Happened(begin + absl::Seconds(1)), std::nullopt);
  EXPECT_EQ(line.Happened(begin + absl::Milliseconds(9'999)), std::nullopt);
  EXPECT_EQ(line.Happened(begin + absl::Seconds(10)), 3);
  EXPECT_EQ(line.Happened(begin + absl::Seconds(19)), std::nullopt);
  EXPECT_EQ(line.Happened(begin + absl::Minutes(1)), 2);
}

}  // namespace
}  // namespace runahead
