#include "worker/memory_defaults.h"

#include <limits>

#include "gtest/gtest.h"

namespace runahead {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;

TEST(DefaultMemory, IsWhatIsWantedWhereThereIsEnough) {
  EXPECT_EQ(DefaultMemory(2 * kGib, 24 * kGib), 2 * kGib);
  EXPECT_EQ(DefaultMemory(2 * kGib, 8 * kGib), 2 * kGib);
  EXPECT_EQ(DefaultMemory(2 * kGib, std::numeric_limits<int64_t>::max()), 2 * kGib);
}

TEST(DefaultMemory, IsAQuarterOfASmallMachineOrContainer) {
  EXPECT_EQ(DefaultMemory(2 * kGib, 4 * kGib), kGib);
  EXPECT_EQ(DefaultMemory(4 * kGib, kGib), kGib / 4);
}

TEST(DefaultMemory, IsNeverLessThanTheOptionMayBe) {
  EXPECT_EQ(DefaultMemory(2 * kGib, 1), 1 << 20);
}

}  // namespace
}  // namespace runahead
