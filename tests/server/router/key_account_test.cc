#include "server/router/key_account.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/metric_values.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

class KeyAccountTest : public ::testing::Test {
 protected:
  std::shared_ptr<KeyAccount> Make(const KeyLimits& limits) {
    return std::make_shared<KeyAccount>("alice", limits, metrics_, clock_);
  }
  double Refused(const std::string& limit) {
    return testing::Value(registry_, absl::StrCat("runahead_key_refusals_total{key=\"alice\",limit=\"", limit, "\"}"));
  }
  double Tokens(const std::string& kind) {
    return testing::Value(registry_, absl::StrCat("runahead_key_tokens_total{key=\"alice\",kind=\"", kind, "\"}"));
  }

  testing::FakeClock clock_;
  MetricRegistry registry_{"none"};
  KeyMetrics metrics_{registry_};
};

TEST_F(KeyAccountTest, WithoutLimitsNothingIsRefused) {
  const auto account = Make({});
  std::vector<KeyGrant> grants;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(account->LetIn().ok());
    auto grant = account->Enter();
    ASSERT_TRUE(grant.ok());
    EXPECT_TRUE(grant->TakeTokens(1'000'000).ok());
    grants.push_back(*std::move(grant));
  }
  EXPECT_EQ(testing::Value(registry_, "runahead_key_requests_total{key=\"alice\"}"), 1000);
}

TEST_F(KeyAccountTest, RequestsAMinuteAreRefusedUntilTheTimeThatIsNamed) {
  const auto account = Make({.requests_per_minute = 2});
  EXPECT_TRUE(account->LetIn().ok());
  EXPECT_TRUE(account->LetIn().ok());
  const absl::Status refused = account->LetIn();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the API key \"alice\": requests_per_minute is 2"));
  ASSERT_EQ(RetryAfter(refused), absl::Seconds(30));
  clock_.Advance(absl::Seconds(29));
  EXPECT_FALSE(account->LetIn().ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(account->LetIn().ok());
  EXPECT_EQ(Refused("requests"), 2);
}

TEST_F(KeyAccountTest, TokensAreTakenByWhatMayComeAndSettledByWhatCame) {
  const auto account = Make({.tokens_per_minute = 600});
  KeyGrant grant = *account->Enter();
  EXPECT_TRUE(grant.TakeTokens(500).ok());
  KeyGrant other = *account->Enter();
  const absl::Status refused = other.TakeTokens(200);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("tokens_per_minute is 600"));
  EXPECT_EQ(RetryAfter(refused), absl::Seconds(10)) << "100 more, of 600 a minute";
  grant.Settle(40, 10);
  EXPECT_TRUE(other.TakeTokens(550).ok()) << "450 are back";
  EXPECT_EQ(Tokens("prompt"), 40);
  EXPECT_EQ(Tokens("output"), 10);
  EXPECT_EQ(Refused("tokens"), 1);
}

TEST_F(KeyAccountTest, GrantsOfOneRequestAreSettledWhenTheLastEnds) {
  const auto account = Make({.tokens_per_minute = 100, .concurrent_requests = 1});
  KeyGrant first = *account->Enter();
  ASSERT_TRUE(first.TakeTokens(90).ok());
  KeyGrant second = first.Share(), third = first.Share();
  EXPECT_TRUE(second.given());
  first.Settle(10, 20);
  third.Settle(0, 5);
  EXPECT_FALSE(account->Enter().ok()) << "the request runs";
  second.Settle(0, 15);
  EXPECT_EQ(Tokens("prompt"), 10);
  EXPECT_EQ(Tokens("output"), 40);
  KeyGrant next = *account->Enter();
  EXPECT_FALSE(next.TakeTokens(51).ok());
  EXPECT_TRUE(next.TakeTokens(50).ok()) << "the 40 that nobody used are back";
}

TEST_F(KeyAccountTest, SharesOfNoKeyAreOfNone) {
  const KeyGrant none;
  EXPECT_FALSE(none.Share().given());
}

TEST_F(KeyAccountTest, WhatNeverBeganCostsNothing) {
  const auto account = Make({.tokens_per_minute = 600, .concurrent_requests = 1});
  for (int i = 0; i < 3; ++i) {
    KeyGrant grant = *account->Enter();
    EXPECT_TRUE(grant.TakeTokens(600).ok()) << i;
  }
  EXPECT_EQ(Tokens("prompt"), 0);
}

TEST_F(KeyAccountTest, MoreTokensThanAMinuteHasAreNeverThere) {
  const auto account = Make({.tokens_per_minute = 600});
  KeyGrant grant = *account->Enter();
  const absl::Status refused = grant.TakeTokens(601);
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << "it is of no use to try again";
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("601 tokens"), HasSubstr("tokens_per_minute is 600")));
  EXPECT_TRUE(grant.TakeTokens(600).ok());
}

TEST_F(KeyAccountTest, AsManyRunAsMayAndAPlaceIsGivenBackOnce) {
  const auto account = Make({.concurrent_requests = 2});
  KeyGrant first = *account->Enter();
  auto second = std::make_unique<KeyGrant>(*account->Enter());
  const absl::Status refused = account->Enter().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("concurrent_requests is 2"));
  second.reset();  // as a call that is cancelled
  KeyGrant third = *account->Enter();
  EXPECT_FALSE(account->Enter().ok());
  first.Settle(1, 1);
  first.Settle(1, 1);
  KeyGrant moved = std::move(third);
  KeyGrant fourth = *account->Enter();
  EXPECT_FALSE(account->Enter().ok());
  EXPECT_EQ(Refused("concurrent"), 3);
}

TEST_F(KeyAccountTest, ThreadsNeverHaveMorePlacesThanThereAre) {
  const auto account = Make({.concurrent_requests = 3});
  std::atomic<int> running = 0, most = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        auto grant = account->Enter();
        if (!grant.ok()) continue;
        const int now = ++running;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
        }
        --running;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most, 3);
  EXPECT_GE(most, 1);
  std::vector<KeyGrant> all;
  for (int i = 0; i < 3; ++i) all.push_back(*account->Enter());
  EXPECT_FALSE(account->Enter().ok());
}

TEST_F(KeyAccountTest, NewLimitsCountAtOnceAndWhatWasTakenStays) {
  const auto account = Make({.requests_per_minute = 1});
  KeyGrant grant = *account->Enter();
  EXPECT_TRUE(account->LetIn().ok());
  account->SetLimits({.requests_per_minute = 3, .concurrent_requests = 1});
  EXPECT_TRUE(account->LetIn().ok());
  EXPECT_TRUE(account->LetIn().ok());
  EXPECT_FALSE(account->LetIn().ok());
  EXPECT_FALSE(account->Enter().ok()) << "the one that runs counts";
  grant.Settle(0, 0);
  EXPECT_TRUE(account->Enter().ok());
}

TEST_F(KeyAccountTest, ARequestOfNobodyElseAtThePriorityAndLengthThatItMayHave) {
  const auto account = Make({.priority = RequestPriority::kLow, .max_tokens = 100});
  v1::GenerateRequest request;
  EXPECT_TRUE(account->Check("", request).ok());
  EXPECT_EQ(request.priority(), v1::PRIORITY_LOW) << "the highest that it may have";
  request.set_priority(v1::PRIORITY_NORMAL);
  EXPECT_THAT(account->Check("", request).ToString(), HasSubstr("PERMISSION_DENIED: the API key \"alice\": priority"));
  request.set_priority(v1::PRIORITY_LOW);
  request.mutable_stop()->set_max_tokens(100);
  EXPECT_TRUE(account->Check("alice", request).ok());
  request.mutable_stop()->set_max_tokens(101);
  EXPECT_THAT(account->Check("", request).ToString(), HasSubstr("stop.max_tokens: 101 is more than the 100"));
  request.clear_stop();
  EXPECT_THAT(account->Check("bob", request).ToString(),
              HasSubstr("PERMISSION_DENIED: the API key \"alice\": runahead-tenant"));
  for (const char* limit : {"priority", "max_tokens", "tenant"}) EXPECT_EQ(Refused(limit), 1) << limit;
  const auto free = Make({});
  request.clear_priority();
  request.mutable_stop()->set_max_tokens(1'000'000);
  EXPECT_TRUE(free->Check("", request).ok());
  EXPECT_EQ(request.priority(), v1::PRIORITY_UNSPECIFIED);
}

TEST_F(KeyAccountTest, AKeyThatNobodyUsesHasNoSeries) {
  const auto series = [&] { return testing::CountSeries(registry_, "runahead_key_refusals_total"); };
  const auto account = Make({.requests_per_minute = 1});
  account->SetLimits({});
  EXPECT_EQ(series(), 0);
  EXPECT_TRUE(account->LetIn().ok());
  EXPECT_EQ(series(), kKeyLimits);
}

}  // namespace
}  // namespace runahead
