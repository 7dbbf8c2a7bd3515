#include "worker/kv/interval_set.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(IntervalSet, JoinsWhatTouchesOrOverlaps) {
  IntervalSet set;
  set.Add(10, 20);
  set.Add(30, 40);
  EXPECT_THAT(set.intervals(), ElementsAre(Pair(10, 20), Pair(30, 40)));
  set.Add(20, 30);
  EXPECT_THAT(set.intervals(), ElementsAre(Pair(10, 40)));
  set.Add(0, 5);
  set.Add(50, 50);
  EXPECT_THAT(set.intervals(), ElementsAre(Pair(0, 5), Pair(10, 40)));
  set.Add(3, 60);
  EXPECT_THAT(set.intervals(), ElementsAre(Pair(0, 60)));
}

TEST(IntervalSet, ThePrefixEndsAtTheFirstGap) {
  IntervalSet set;
  EXPECT_EQ(set.Prefix(), 0);
  set.Add(5, 9);
  EXPECT_EQ(set.Prefix(), 0);
  set.Add(0, 3);
  EXPECT_EQ(set.Prefix(), 3);
  set.Add(3, 5);
  EXPECT_EQ(set.Prefix(), 9);
}

TEST(IntervalSet, AgreesWithABitSetOnRandomIntervals) {
  std::mt19937 random(7);
  for (int run = 0; run < 200; ++run) {
    IntervalSet set;
    std::vector<bool> bits(64);
    for (int step = 0; step < 12; ++step) {
      const int begin = random() % 64, end = begin + random() % (65 - begin);
      set.Add(begin, end);
      for (int i = begin; i < end; ++i) bits[i] = true;
      const int from = random() % 64, to = from + random() % (65 - from);
      bool all = true;
      for (int i = from; i < to; ++i) all = all && bits[i];
      ASSERT_EQ(set.Covers(from, to), all);
      ASSERT_EQ(set.size(), std::count(bits.begin(), bits.end(), true));
    }
  }
}

}  // namespace
}  // namespace runahead
