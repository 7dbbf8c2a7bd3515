// Whose turn it is, by priority, tenant and deadline.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "server/rpc/status.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// One decode worker of one slot, which is taken; prompts say by their length who they are.
class TurnsTest : public testing::FaultsFixture {
 protected:
  void StartFull(int queue_size = 256) {
    Start({.prefill = 1,
           .queue_size = queue_size,
           .able = [](v1::Capabilities& able) { able.set_max_batch(1); },
           .before = [](FakeWorker& worker) { worker.Change([](FakeBehaviour& b) { b.decode_until = 1; }); }});
    AwaitReady(1, 1);
    first_ = std::make_unique<Call>(*stub_, Ids(1, 3));
    prefill_[0]->AwaitStarts(1);
    decode_[0]->AwaitLeases(1);
  }
  // In the queue when this returns.
  void Wait(int prompt, const std::string& tenant = "", v1::Priority priority = v1::PRIORITY_UNSPECIFIED) {
    v1::GenerateRequest request = Ids(prompt, 3);
    request.set_priority(priority);
    calls_.push_back(
        std::make_unique<Call>(*stub_, request, absl::InfiniteDuration(), std::vector<std::string>{}, tenant));
    ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"slot\"}", static_cast<double>(calls_.size())));
  }
  // The lengths of the prompts, in the order of their turns.
  std::vector<int> Turns() {
    decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
    EXPECT_TRUE(first_->Finish().status.ok());
    for (auto& call : calls_) {
      const Got got = call->Finish();
      EXPECT_TRUE(got.status.ok()) << got.status;
    }
    std::vector<int> lengths;
    for (const v1::StartJob& start : prefill_[0]->AwaitStarts(1 + calls_.size())) lengths.push_back(start.ids_size());
    lengths.erase(lengths.begin());
    return lengths;
  }

  std::unique_ptr<Call> first_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST_F(TurnsTest, AnothersRequestComesBeforeAFloodThatCameFirst) {
  StartFull();
  for (int prompt = 10; prompt < 15; ++prompt) Wait(prompt, "flood");
  Wait(20, "other");
  EXPECT_THAT(Turns(), ElementsAre(10, 20, 11, 12, 13, 14));
}

TEST_F(TurnsTest, LowPriorityComesLastAndTheMetricShowsIt) {
  StartFull();
  Wait(10, "", v1::PRIORITY_LOW);
  Wait(11);
  Wait(12, "", v1::PRIORITY_NORMAL);
  EXPECT_EQ(Metric("runahead_queue_depth{priority=\"low\"}"), 1);
  EXPECT_EQ(Metric("runahead_queue_depth{priority=\"normal\"}"), 2);
  EXPECT_THAT(Turns(), ElementsAre(11, 12, 10));
}

TEST_F(TurnsTest, ATenantLeavesAnEighthOfTheQueueToOthersThatWait) {
  StartFull(/*queue_size=*/16);
  Wait(40, "other");
  for (int prompt = 10; prompt < 24; ++prompt) Wait(prompt, "flood");
  const absl::Status refused = Call(*stub_, Ids(24, 3), absl::Minutes(1), {}, "flood").Finish().status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("full for this tenant"));
  EXPECT_TRUE(RetryAfter(refused).has_value());
  Wait(41, "other");
  EXPECT_EQ(Turns().size(), 16u);
}

TEST_F(TurnsTest, WhatIsNoPriorityOrTenantIsRefused) {
  StartFull();
  v1::GenerateRequest request = Ids(5, 1);
  request.set_priority(static_cast<v1::Priority>(7));
  const absl::Status priority = Generate(request).status;
  EXPECT_EQ(priority.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(priority.message(), HasSubstr("priority: 7"));
  const absl::Status tenant = Call(*stub_, Ids(5, 1), absl::InfiniteDuration(), {}, "two words").Finish().status;
  EXPECT_EQ(tenant.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(tenant.message(), HasSubstr("runahead-tenant"));
  EXPECT_TRUE(Turns().empty());
}

TEST_F(TurnsTest, WhoseFirstTokenIsExpectedBehindItsDeadlineIsRefusedAtOnce) {
  StartFull();
  queue_->PrefillTook(5, 1, absl::Minutes(1));
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  Call computed(*stub_, Ids(5, 1));
  const uint64_t job = prefill_[0]->AwaitStarts(2).back().job();
  const Got late = Call(*stub_, Ids(5, 1), absl::Seconds(20)).Finish();
  EXPECT_EQ(late.status.code(), absl::StatusCode::kResourceExhausted) << late.status;
  EXPECT_THAT(late.status.message(), HasSubstr("the first token is expected in "));
  const std::optional<absl::Duration> retry = RetryAfter(late.status);
  ASSERT_TRUE(retry.has_value());
  EXPECT_GT(*retry, absl::Seconds(39));
  EXPECT_EQ(Metric("runahead_admission_rejections_total{reason=\"deadline\"}"), 1);
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = true; });
  prefill_[0]->SendFirstToken(job, 100);
  prefill_[0]->SendDone(job);
  EXPECT_TRUE(computed.Finish().status.ok());
  EXPECT_TRUE(Call(*stub_, Ids(5, 1), absl::Minutes(10)).Finish().status.ok());
  Turns();
}

TEST_F(TurnsTest, ATenantOfTwoPrioritiesHasTheQueueToItself) {
  StartFull(/*queue_size=*/8);
  Wait(17, "one", v1::PRIORITY_LOW);
  for (int prompt = 10; prompt < 17; ++prompt) Wait(prompt, "one");
  EXPECT_EQ(Turns().size(), 8u);
}

// Two prompts are computed, which share no place, and two wait. The first one's attempt fails: of the next two places
// one is its, and the third one's the other.
TEST_F(TurnsTest, WhoIsPlacedAnewHasTheTurnThatItHad) {
  constexpr char kDepth[] = "runahead_queue_depth{priority=\"normal\"}";
  Start({.prefill = 1});
  HoldPrefill(false, false);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(std::make_unique<Call>(*stub_, Ids(200 + i, 1), 2 * testing::kInVain));
    if (i < 2) {
      prefill_[0]->AwaitStarts(i + 1);
    } else {
      ASSERT_TRUE(MetricBecomes(kDepth, i - 1)) << "prompt " << i << " does not wait";
    }
  }
  std::vector<v1::StartJob> starts = prefill_[0]->AwaitStarts(2);
  prefill_[0]->SendDone(starts[0].job(), absl::InternalError("the device failed"));
  ASSERT_EQ(prefill_[0]->AwaitStarts(3).size(), 3u);
  ASSERT_TRUE(MetricBecomes(kDepth, 2)) << "who was placed anew does not wait";
  calls[1]->Cancel();  // what an end with a token tells of the fake's pace would let the last one overtake
  starts = prefill_[0]->AwaitStarts(4);
  ASSERT_EQ(starts.size(), 4u);
  EXPECT_THAT((std::vector<int>{starts[2].ids_size(), starts[3].ids_size()}), UnorderedElementsAre(200, 202));
  HoldPrefill(true, true);
  for (const size_t held : {2, 3}) {
    prefill_[0]->SendFirstToken(starts[held].job(), 100);
    prefill_[0]->SendDone(starts[held].job());
  }
  EXPECT_TRUE(absl::IsCancelled(calls[1]->Finish().status));
  for (const size_t i : {0, 2, 3}) {
    const Got got = calls[i]->Finish();
    ASSERT_TRUE(got.status.ok()) << "prompt " << i << ": " << got.status;
    EXPECT_EQ(got.finished().failovers(), i == 0 ? 1 : 0);
  }
}

}  // namespace
}  // namespace runahead
