#include "server/base/byte_budget.h"

#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(ByteBudget, GivesNoMoreThanItHas) {
  ByteBudget budget(100);
  ByteBudget::Lease a = budget.None(), b = budget.None();
  EXPECT_TRUE(a.Resize(60));
  EXPECT_FALSE(b.Resize(41));
  EXPECT_EQ(b.bytes(), 0);
  EXPECT_TRUE(b.Resize(40));
  EXPECT_EQ(budget.taken(), 100);
  EXPECT_FALSE(a.Resize(61));
  EXPECT_EQ(a.bytes(), 60);
  EXPECT_TRUE(a.Resize(10));
  EXPECT_TRUE(b.Resize(90));
  EXPECT_EQ(budget.taken(), 100);
}

TEST(ByteBudget, TakesBackWhatALeaseHeldWhereverItWent) {
  ByteBudget budget(100);
  {
    ByteBudget::Lease a = budget.None();
    ASSERT_TRUE(a.Resize(60));
    ByteBudget::Lease b = std::move(a);
    ByteBudget::Lease c;
    c = std::move(b);
    EXPECT_EQ(c.bytes(), 60);
    EXPECT_EQ(budget.taken(), 60);
    { const ByteBudget::Lease last = std::move(c); }
    EXPECT_EQ(budget.taken(), 0);
  }
  EXPECT_EQ(budget.taken(), 0);
}

TEST(ByteBudget, APartIsGivenBackByItself) {
  ByteBudget budget(10);
  ByteBudget::Lease lease = budget.None();
  ASSERT_TRUE(lease.Resize(9));
  {
    const ByteBudget::Lease part = lease.Split(4);
    EXPECT_EQ(part.bytes(), 4);
    EXPECT_EQ(lease.bytes(), 5);
    EXPECT_EQ(budget.taken(), 9);
  }
  EXPECT_EQ(budget.taken(), 5);
}

TEST(ByteBudget, AnEmptyLeaseIsOfNoBudget) {
  ByteBudget::Lease lease;
  EXPECT_TRUE(lease.Resize(int64_t{1} << 60));
}

TEST(ByteBudget, IsNeverOverdrawnByThreads) {
  ByteBudget budget(5);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        ByteBudget::Lease lease = budget.None();
        (void)lease.Resize(1 + round % 3);
        EXPECT_LE(budget.taken(), 5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.taken(), 0);
}

}  // namespace
}  // namespace runahead
