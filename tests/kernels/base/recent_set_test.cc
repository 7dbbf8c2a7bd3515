#include "kernels/base/recent_set.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(RecentSet, ForgetsTheOldestAboveItsSize) {
  RecentSet<int> recent(3);
  for (const int key : {1, 2, 1, 3}) recent.Add(key);
  for (const int key : {1, 2, 3}) EXPECT_TRUE(recent.contains(key));
  recent.Add(4);
  EXPECT_FALSE(recent.contains(1)) << "it was the first, though it was named twice";
  for (const int key : {2, 3, 4}) EXPECT_TRUE(recent.contains(key));
  recent.Add(1);
  EXPECT_TRUE(recent.contains(1));
  EXPECT_FALSE(recent.contains(2));
}

}  // namespace
}  // namespace runahead
