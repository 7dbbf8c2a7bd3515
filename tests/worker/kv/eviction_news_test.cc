#include "worker/kv/eviction_news.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EvictionNews, AreToldOnceToWhoSaysWhatHeHasHeard) {
  EvictionNews news;
  EXPECT_EQ(news.Since(0, 9).serial, 0u);
  news.Evicted(11);
  news.Evicted(12);
  EvictionNews::Some some = news.Since(0, 9);
  EXPECT_THAT(some.hashes, ElementsAre(11, 12));
  EXPECT_THAT(news.Since(some.serial, 9).hashes, IsEmpty());
  EXPECT_EQ(news.Since(some.serial, 9).serial, some.serial);
  news.Evicted(13);
  EXPECT_THAT(news.Since(some.serial, 9).hashes, ElementsAre(13));
}

TEST(EvictionNews, ComeInPartsWhereThereAreMany) {
  EvictionNews news;
  for (uint64_t hash = 1; hash <= 5; ++hash) news.Evicted(hash);
  news.Kept(3);
  EvictionNews::Some some = news.Since(0, 2);
  EXPECT_THAT(some.hashes, ElementsAre(1, 2));
  some = news.Since(some.serial, 2);
  EXPECT_THAT(some.hashes, ElementsAre(4, 5));
  EXPECT_THAT(news.Since(some.serial, 2).hashes, IsEmpty());
}

TEST(EvictionNews, SayNothingOfWhatIsThereAgain) {
  EvictionNews news;
  news.Evicted(1);
  news.Kept(1);
  EXPECT_THAT(news.Since(0, 9).hashes, IsEmpty());
  news.Evicted(1);
  EXPECT_THAT(news.Since(0, 9).hashes, ElementsAre(1)) << "once, and not for the first time";
}

TEST(EvictionNews, KeepTheNewestAndForgetTheOthers) {
  EvictionNews news;
  for (uint64_t hash = 0; hash < EvictionNews::kMost + 10; ++hash) news.Evicted(hash);
  const EvictionNews::Some some = news.Since(0, 1 << 20);
  ASSERT_EQ(some.hashes.size(), EvictionNews::kMost);
  EXPECT_EQ(some.hashes.front(), 10u);
  EXPECT_EQ(some.serial, EvictionNews::kMost + 10);
}

// The first news falls out of the ring, the second stays.
TEST(EvictionNews, OfOneThatWentTwiceTheNewerIsTold) {
  EvictionNews news;
  news.Evicted(7);
  for (uint64_t hash = 100; hash < 100 + EvictionNews::kMost - 1; ++hash) news.Evicted(hash);
  news.Evicted(7);
  EXPECT_EQ(news.Since(0, 1 << 20).hashes.back(), 7u);
  EXPECT_EQ(news.Since(0, 1 << 20).hashes.size(), EvictionNews::kMost);
}

TEST(EvictionNews, ANewLifeBeginsWithNone) {
  EvictionNews news;
  news.Evicted(7);
  news.Clear();
  EXPECT_THAT(news.Since(0, 9).hashes, IsEmpty());
  news.Evicted(8);
  EXPECT_THAT(news.Since(0, 9).hashes, ElementsAre(8));
}

}  // namespace
}  // namespace runahead
