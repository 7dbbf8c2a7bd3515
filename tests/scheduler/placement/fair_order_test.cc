#include "scheduler/placement/fair_order.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;

// Whose turn comes after whose, by what they are called.
class Waiting {
 public:
  void Come(const std::string& name, const Claim& claim) { waiting_.emplace(order_.Come(claim), name); }
  std::string Next() {
    const auto next = waiting_.extract(waiting_.begin());
    order_.Served(next.key());
    return next.mapped();
  }
  std::vector<std::string> Next(int count) {
    std::vector<std::string> names;
    for (; count > 0; --count) names.push_back(Next());
    return names;
  }
  FairOrder& order() { return order_; }

 private:
  FairOrder order_;
  std::map<Turn, std::string> waiting_;
};

TEST(FairOrder, OneTenantsRequestsHaveTheirTurnsAsTheyCome) {
  Waiting waiting;
  for (const char* name : {"a", "b", "c"}) waiting.Come(name, {.tokens = 100});
  EXPECT_THAT(waiting.Next(3), ElementsAre("a", "b", "c"));
}

TEST(FairOrder, AFloodWaitsBehindItself) {
  Waiting waiting;
  for (int i = 0; i < 500; ++i) waiting.Come("flood", {.tenant = "flood", .tokens = 160});
  EXPECT_THAT(waiting.Next(3), ElementsAre("flood", "flood", "flood"));
  waiting.Come("other", {.tenant = "other", .tokens = 160});
  EXPECT_EQ(waiting.Next(), "other") << "the third's turn is now, and it comes no later than the fourth's";
  waiting.Come("other", {.tenant = "other", .tokens = 160});
  EXPECT_THAT(waiting.Next(3), ElementsAre("flood", "other", "flood"));
}

TEST(FairOrder, TenantsShareTokensNotRequestsByTheirWeights) {
  Waiting waiting;
  for (int i = 0; i < 1000; ++i) {
    waiting.Come("long", {.tenant = "long", .tokens = 1000});
    waiting.Come("short", {.tenant = "short", .tokens = 100});
    waiting.Come("heavy", {.tenant = "heavy", .weight = 3, .tokens = 100});
  }
  std::map<std::string, int> served;
  for (int i = 0; i < 410; ++i) ++served[waiting.Next()];
  EXPECT_NEAR(served["short"], 100, 2);
  EXPECT_NEAR(served["long"], 10, 2);
  EXPECT_NEAR(served["heavy"], 300, 4);
}

TEST(FairOrder, LowPriorityComesAfterAllOfNormal) {
  Waiting waiting;
  waiting.Come("low", {.priority = RequestPriority::kLow});
  for (int i = 0; i < 3; ++i) waiting.Come("normal", {.tokens = 1000});
  EXPECT_THAT(waiting.Next(4), ElementsAre("normal", "normal", "normal", "low"));
}

TEST(FairOrder, WhoGivesUpIsNotChargedForIt) {
  Waiting waiting;
  waiting.Come("other", {.tenant = "other", .tokens = 10});
  const Claim claim{.tenant = "patient", .tokens = 1000};
  const Turn gone = waiting.order().Come(claim);
  waiting.order().Left(gone);
  const Turn next = waiting.order().Come(claim);
  EXPECT_EQ(next.begin, gone.begin);
}

TEST(FairOrder, WhoGivesUpWhatHasPassedGetsNothingBack) {
  FairOrder order;
  const Turn passed = order.Come({.tenant = "passed", .tokens = 100});
  order.Come({.tenant = "stays", .tokens = 1});
  order.Served(order.Come({.tenant = "other", .tokens = 1000}));
  order.Served(order.Come({.tenant = "other", .tokens = 1000}));  // now is 1,000
  EXPECT_EQ(order.Come({.tenant = "passed", .tokens = 100}).begin, 1000);
  order.Left(passed);
  EXPECT_EQ(order.Come({.tenant = "passed", .tokens = 100}).begin, 1100);
}

TEST(FairOrder, WhoOvertakesHasTheTurnOfWhomItOvertook) {
  FairOrder order;
  const Turn longer = order.Come({.tenant = "busy", .tokens = 1000});
  const Turn shorter = order.Come({.tenant = "busy", .tokens = 100});
  order.Served(shorter, longer);
  EXPECT_EQ(order.Come({.tenant = "fresh", .tokens = 100}).begin, longer.begin) << "it does not come behind both";
  order.Served(longer);
  EXPECT_EQ(order.Come({.tenant = "busy", .tokens = 100}).begin, shorter.begin + 100) << "both are charged";
}

TEST(FairOrder, WhenNobodyWaitsWhatTenantsHadIsForgotten) {
  FairOrder order;
  order.Served(order.Come({.tenant = "busy", .tokens = 1000}));
  const double busy = order.Come({.tenant = "busy", .tokens = 1000}).begin;
  EXPECT_EQ(order.Come({.tenant = "fresh", .tokens = 1000}).begin, busy);
  EXPECT_EQ(order.Come({.tenant = "busy", .tokens = 1000}).begin, busy + 1000) << "not while somebody waits";
}

TEST(FairOrder, CountsTenantsThatWaitByName) {
  FairOrder order;
  const Turn normal = order.Come({.tenant = "one", .tokens = 100});
  const Turn low = order.Come({.tenant = "one", .priority = RequestPriority::kLow, .tokens = 100});
  EXPECT_EQ(order.tenants(), 1);
  const Turn other = order.Come({.tokens = 100});
  EXPECT_EQ(order.tenants(), 2);
  order.Served(other);
  EXPECT_EQ(order.tenants(), 1) << "it had its turn";
  order.Served(normal);
  EXPECT_EQ(order.tenants(), 1) << "the one of low priority waits";
  order.Left(low);
  EXPECT_EQ(order.tenants(), 0);
}

TEST(FairOrder, UnlistedNamesBeyond256ShareTheTurnsOfTheUnnamed) {
  FairOrder order;
  for (int i = 0; i < 256; ++i) {
    const Turn turn = order.Come({.tenant = std::to_string(i), .tokens = 100});
    EXPECT_EQ(turn.begin, 0);
    if (i > 0) order.Served(turn);  // who had a turn in this round still counts
  }
  EXPECT_EQ(order.Come({.tokens = 100}).begin, 0);
  EXPECT_EQ(order.Come({.tenant = "256", .tokens = 100}).begin, 100);
  EXPECT_EQ(order.Come({.tenant = "listed", .listed = true, .tokens = 100}).begin, 0);
  EXPECT_EQ(order.Come({.tenant = "0", .tokens = 100}).begin, 100) << "it has turns of its own";
  const Turn shared = order.Come({.tenant = "257", .tokens = 100});
  EXPECT_EQ(shared.begin, 200);
  order.Served(shared);  // now is 200: the first round is over
  EXPECT_EQ(order.Come({.tenant = "258", .tokens = 100}).begin, 200);
  EXPECT_EQ(order.Come({.tokens = 100}).begin, 300) << "258 has turns of its own";
}

TEST(FairOrder, AFreshNameForEachRequestDoesNotStarveOthers) {
  Waiting waiting;
  for (int i = 0; i < 10; ++i) waiting.Come("honest", {.tenant = "honest", .tokens = 100});
  int honest = 0;
  for (int i = 0; i < 2600; ++i) {
    waiting.Come("fresh", {.tenant = std::to_string(i), .tokens = 100});
    honest += waiting.Next() == "honest";
  }
  EXPECT_EQ(honest, 10) << "one in each round of 256 at least";
}

}  // namespace
}  // namespace runahead
