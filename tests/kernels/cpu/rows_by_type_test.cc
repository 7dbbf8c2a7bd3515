#include "kernels/cpu/rows_by_type.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

TEST(RowsByType, RunsOfOneTypeThatFollowEachOtherAreOne) {
  constexpr int64_t kCols = 64;
  const size_t q4 = WeightRowBytes(WeightType::kQ4_1, kCols), q8 = WeightRowBytes(WeightType::kQ8_0, kCols);
  const std::vector<std::byte> a(2 * q4), b(q4), c(3 * q8), d(q4);
  const std::vector<TypedRows> all = RowsByType({nullptr,
                                                 kCols,
                                                 {{WeightType::kQ4_1, a.data(), 2},
                                                  {WeightType::kQ4_1, b.data(), 1},
                                                  {WeightType::kQ8_0, c.data(), 3},
                                                  {WeightType::kQ4_1, d.data(), 1}}});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].type, WeightType::kQ4_1);
  EXPECT_EQ(all[0].first_row, 0);
  EXPECT_EQ(all[0].rows, (std::vector<const std::byte*>{a.data(), a.data() + q4, b.data()}));
  EXPECT_EQ(all[1].type, WeightType::kQ8_0);
  EXPECT_EQ(all[1].first_row, 3);
  EXPECT_EQ(all[1].rows, (std::vector<const std::byte*>{c.data(), c.data() + q8, c.data() + 2 * q8}));
  EXPECT_EQ(all[2].type, WeightType::kQ4_1);
  EXPECT_EQ(all[2].first_row, 6);
  EXPECT_EQ(all[2].rows, (std::vector<const std::byte*>{d.data()}));
}

}  // namespace
}  // namespace runahead
