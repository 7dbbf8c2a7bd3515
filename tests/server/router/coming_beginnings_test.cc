#include "server/router/coming_beginnings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace runahead {
namespace {

using Alike = ComingBeginnings::Alike;
using Entered = ComingBeginnings::Entered;

const absl::Time kNow = absl::FromUnixSeconds(1'000);
constexpr absl::Duration kTakes = absl::Seconds(3);

std::vector<int32_t> Count(int tokens) {
  std::vector<int32_t> ids(tokens);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

class ComingBeginningsTest : public ::testing::Test {
 protected:
  // `pays`: what is said of the one that is alike; asked_ is what it was.
  Entered Enter(const std::vector<int32_t>& ids, bool pays = true, absl::string_view salt = "") {
    asked_.reset();
    return coming_.Enter(salt, ids, kNow, kTakes, to_, [&](const Alike& alike) {
      asked_ = alike;
      return pays;
    });
  }

  ComingBeginnings coming_;
  const std::shared_ptr<const LiveWorker> worker_ = std::make_shared<LiveWorker>();
  ComingBeginnings::Destination to_ = {worker_, {.chain = true}, {}};  // of a prompt that is entered
  std::optional<Alike> asked_;
  const std::vector<int32_t> hundred_ = Count(100);
};

TEST_F(ComingBeginningsTest, WhereTheFirstIsNotWorthAWaitTheNextOnesWaitForTheSecond) {
  const Entered first = Enter(hundred_);
  Entered second = Enter(hundred_, /*pays=*/false);
  ASSERT_NE(second.computed, nullptr);
  const Entered third = Enter(hundred_);
  ASSERT_NE(third.awaited, nullptr);
  second.computed.reset();
  EXPECT_TRUE(third.awaited->over().cancelled());
}

TEST_F(ComingBeginningsTest, TheFirstIsComputedAndTheNextWaitsForIt) {
  Entered first = Enter(hundred_);
  ASSERT_NE(first.computed, nullptr);
  EXPECT_EQ(first.awaited, nullptr);
  EXPECT_FALSE(asked_.has_value());
  const Entered second = Enter(Count(70)), third = Enter(hundred_);
  ASSERT_NE(second.awaited, nullptr);
  EXPECT_EQ(second.computed, nullptr);
  ASSERT_NE(third.awaited, nullptr);
  EXPECT_EQ(asked_->tokens, 100);
  EXPECT_EQ(asked_->ready, kNow + kTakes);
  EXPECT_EQ(asked_->takes, kTakes);
  EXPECT_EQ(asked_->waiting, 1);
  EXPECT_EQ(asked_->to.worker, worker_);
  EXPECT_EQ(asked_->to.ways, to_.ways);
  EXPECT_FALSE(second.awaited->over().cancelled());
  first.computed.reset();
  EXPECT_TRUE(second.awaited->over().cancelled());
  EXPECT_TRUE(third.awaited->over().cancelled());
  EXPECT_NE(Enter(hundred_).computed, nullptr) << "what is over is not waited for";
}

TEST_F(ComingBeginningsTest, WhoeverWaitsNoMoreIsNotCounted) {
  const Entered first = Enter(hundred_);
  Entered(Enter(hundred_)).awaited.reset();
  const Entered next = Enter(hundred_);
  EXPECT_EQ(asked_->waiting, 0);
}

TEST_F(ComingBeginningsTest, WhoeverWaitsLooksAgainWhereItGoesElsewhereThanWasExpected) {
  Entered first = Enter(hundred_);
  const Entered second = Enter(hundred_);
  first.computed->GoesTo(worker_, to_.ways);
  EXPECT_FALSE(second.awaited->over().cancelled());
  const KnownWays rows{.rows = true};
  first.computed->GoesTo(worker_, rows);
  EXPECT_TRUE(second.awaited->over().cancelled());
  const Entered again = Enter(hundred_);
  ASSERT_NE(again.awaited, nullptr);
  EXPECT_EQ(asked_->to.ways, rows);
  EXPECT_TRUE(asked_->to.reserved);
  EXPECT_EQ(asked_->ready, kNow + kTakes);
  EXPECT_EQ(asked_->waiting, 0);
  first.computed.reset();
  EXPECT_TRUE(again.awaited->over().cancelled());
  EXPECT_NE(Enter(hundred_).computed, nullptr);
}

TEST_F(ComingBeginningsTest, WhoeverWaitsLooksAgainWhereAnotherWorkerLeavesTheSameWaysOpen) {
  Entered first = Enter(hundred_);
  const Entered second = Enter(hundred_);
  const auto other = std::make_shared<LiveWorker>();
  first.computed->GoesTo(other, to_.ways);
  EXPECT_TRUE(second.awaited->over().cancelled());
  const Entered again = Enter(hundred_);
  EXPECT_EQ(asked_->to.worker, other);
  EXPECT_EQ(asked_->waiting, 0);
}

TEST_F(ComingBeginningsTest, ItIsSaidWhetherItHasItsLease) {
  Entered first = Enter(hundred_);
  Entered(Enter(hundred_)).awaited.reset();
  EXPECT_FALSE(asked_->to.reserved);
  first.computed->GoesTo(worker_, to_.ways);
  Entered(Enter(hundred_)).awaited.reset();
  EXPECT_TRUE(asked_->to.reserved);
}

TEST_F(ComingBeginningsTest, WhereItDoesNotPayBothAreComputed) {
  const Entered first = Enter(hundred_), second = Enter(hundred_, /*pays=*/false);
  EXPECT_EQ(asked_->tokens, 100);
  EXPECT_NE(second.computed, nullptr);
}

TEST_F(ComingBeginningsTest, OfSeveralTheOneWithTheMostInCommonIsWaitedFor) {
  std::vector<int32_t> other = hundred_;
  other[60] = 7;
  const Entered of_other = Enter(other), of_all = Enter(hundred_, /*pays=*/false);
  const std::vector<int32_t> longer = Count(200);
  const Entered next = Enter(longer);
  EXPECT_EQ(asked_->tokens, 100);
}

// Beside prompts of few different tokens, which come and go, so that many have long beginnings in common.
TEST_F(ComingBeginningsTest, OfManyTheNewestOfThoseWithTheMostInCommonIsFound) {
  std::mt19937 random(7);
  const auto draw = [&](int below) { return static_cast<int>(random() % below); };
  struct Live {
    std::unique_ptr<std::vector<int32_t>> ids;
    std::shared_ptr<const LiveWorker> worker;
    Entered entered;
  };
  std::list<Live> live;
  for (int step = 0; step < 3'000; ++step) {
    if (live.size() > 40 || (!live.empty() && draw(3) == 0)) live.erase(std::next(live.begin(), draw(live.size())));
    auto ids = std::make_unique<std::vector<int32_t>>(Count(20 + draw(60)));
    for (int changes = draw(4); changes > 0; --changes) (*ids)[draw(ids->size())] = 7;
    const Live* expected = nullptr;
    int64_t most = 32;
    for (const Live& other : live) {
      const size_t length = std::min(ids->size(), other.ids->size());
      const int64_t common =
          std::mismatch(ids->begin(), ids->begin() + length, other.ids->begin()).first - ids->begin();
      if (common < most) continue;
      most = common;
      expected = &other;
    }
    to_.worker = std::make_shared<LiveWorker>();
    Entered entered = Enter(*ids, /*pays=*/false);
    ASSERT_EQ(asked_.has_value(), expected != nullptr) << step;
    if (expected != nullptr) {
      ASSERT_EQ(asked_->tokens, most) << step;
      ASSERT_EQ(asked_->to.worker, expected->worker) << step;
    }
    live.push_back({std::move(ids), to_.worker, std::move(entered)});
  }
}

TEST_F(ComingBeginningsTest, AShortBeginningIsNothingInCommon) {
  std::vector<int32_t> other = hundred_;
  other[31] = 7;
  const Entered first = Enter(other);
  EXPECT_NE(Enter(hundred_).computed, nullptr);
  EXPECT_FALSE(asked_.has_value());
}

TEST_F(ComingBeginningsTest, AnothersSaltIsNotSeen) {
  const Entered first = Enter(hundred_, true, "alice");
  EXPECT_NE(Enter(hundred_, true, "bob").computed, nullptr);
  EXPECT_FALSE(asked_.has_value());
  EXPECT_NE(Enter(hundred_, true, "alice").awaited, nullptr);
}

}  // namespace
}  // namespace runahead
