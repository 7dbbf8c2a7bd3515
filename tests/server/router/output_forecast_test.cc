// What decode workers are asked for, by what answers took before.
#include "server/router/output_forecast.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/router/faults_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using testing::FakeBehaviour;
using testing::FakeWorker;
using ::testing::HasSubstr;

constexpr int kPrompt = 5;
constexpr int kLong = 4000;  // a max_tokens that nobody uses
constexpr int kEnd = 104;    // the fifth token of every answer

class OutputForecastTest : public testing::FaultsFixture {
 protected:
  // Decode workers that hold so many tokens.
  void StartWithMemory(int64_t tokens, ReserveMode reserve = ReserveMode::kExpected, bool grows = true) {
    Start({.prefill = 1,
           .reserve = reserve,
           .able = [tokens](v1::Capabilities& able) { able.set_kv_capacity_tokens(tokens); },
           .before = [grows](FakeWorker& worker) { worker.Change([&](FakeBehaviour& b) { b.grows = grows; }); }});
    AwaitReady(1, 1);
  }
  v1::GenerateRequest Ask(int max_tokens) {
    v1::GenerateRequest request = Ids(kPrompt, max_tokens);
    request.mutable_stop()->add_stop_ids(kEnd);
    return request;
  }
  void Answer(int requests, int max_tokens) {
    for (int i = 0; i < requests; ++i) {
      const testing::Got got = Generate(Ask(max_tokens));
      ASSERT_TRUE(got.status.ok()) << got.status;
      ASSERT_EQ(got.ids().size(), 5u);
    }
  }
  // Answers stop at their second token until they are let go.
  void Hold(bool hold) {
    decode_[0]->Change([hold](FakeBehaviour& b) { b.decode_until = hold ? 1 : 1 << 30; });
  }
  std::vector<std::unique_ptr<Call>> Flood(int requests, int max_tokens) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int i = 0; i < requests; ++i) calls.push_back(std::make_unique<Call>(*stub_, Ask(max_tokens)));
    return calls;
  }
  static void Finish(std::vector<std::unique_ptr<Call>>& calls) {
    for (auto& call : calls) {
      const testing::Got got = call->Finish();
      EXPECT_TRUE(got.status.ok()) << got.status;
    }
  }
  v1::ReserveRequest LastReserve() { return decode_[0]->reserve_requests().back(); }
};

TEST_F(OutputForecastTest, ByDefaultALeaseIsAskedForWhatIsExpected) {
  StartWithMemory(10000);
  Answer(1, kLong);
  const v1::ReserveRequest request = LastReserve();
  EXPECT_EQ(request.prompt_tokens(), kPrompt);
  EXPECT_EQ(request.total_tokens(), kPrompt + kLong);
  EXPECT_EQ(request.expected_tokens(), kPrompt + ExpectedOutput::kUnknown);
  EXPECT_FALSE(request.parked_first());
}

TEST_F(OutputForecastTest, LowPriorityIsParkedFirst) {
  StartWithMemory(10000);
  v1::GenerateRequest request = Ask(kLong);
  request.set_priority(v1::PRIORITY_LOW);
  ASSERT_TRUE(Generate(request).status.ok());
  EXPECT_TRUE(LastReserve().parked_first());
}

TEST_F(OutputForecastTest, WithFullALeaseIsAskedForAllAndNeverParked) {
  StartWithMemory(10000, ReserveMode::kFull);
  v1::GenerateRequest request = Ask(kLong);
  request.set_priority(v1::PRIORITY_LOW);
  ASSERT_TRUE(Generate(request).status.ok());
  EXPECT_EQ(LastReserve().total_tokens(), kPrompt + kLong);
  EXPECT_FALSE(LastReserve().has_expected_tokens());
  EXPECT_FALSE(LastReserve().parked_first());
  EXPECT_EQ(Metric("runahead_expected_output_tokens_total"), kLong);
}

TEST_F(OutputForecastTest, AfterSixteenShortAnswersLittleIsExpected) {
  StartWithMemory(10000);
  Answer(17, kLong);
  EXPECT_EQ(LastReserve().expected_tokens(), kPrompt + 16);
  EXPECT_EQ(LastReserve().total_tokens(), kPrompt + kLong);
  EXPECT_EQ(Metric("runahead_expected_output_tokens_total"), 16 * ExpectedOutput::kUnknown + 16);
  EXPECT_EQ(Metric("runahead_generated_tokens_total"), 17 * 5);
}

// Else whoever claims short answers has everybody's memory counted too low.
TEST_F(OutputForecastTest, WhatAClientSaysThatItHasTeachesNothing) {
  StartWithMemory(100000);
  v1::GenerateRequest ended = Ask(kLong), goes_on = Ask(kLong);
  ended.add_output_ids(kEnd);
  for (const int32_t id : {100, 101, 102}) goes_on.add_output_ids(id);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Generate(ended).ids().empty());
    EXPECT_EQ(Generate(goes_on).ids().size(), 2u);
  }
  EXPECT_EQ(Metric("runahead_expected_output_tokens_total"), 20 * (ExpectedOutput::kUnknown - 3))
      << "of those that were to come";
  EXPECT_EQ(Metric("runahead_generated_tokens_total"), 20 * 2);
  Answer(1, kLong);
  EXPECT_EQ(LastReserve().expected_tokens(), kPrompt + ExpectedOutput::kUnknown);
}

TEST_F(OutputForecastTest, AnswersThatWereCancelledEarlyDoNotCount) {
  StartWithMemory(100000);
  Hold(true);
  std::vector<std::unique_ptr<Call>> calls = Flood(20, kLong);
  decode_[0]->AwaitDecodes(20);
  for (auto& call : calls) call->Cancel();
  for (auto& call : calls) EXPECT_EQ(call->Finish().status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(MetricBecomes("runahead_requests_in_flight", 0));
  Hold(false);
  Answer(1, kLong);
  EXPECT_EQ(LastReserve().expected_tokens(), kPrompt + ExpectedOutput::kUnknown);
}

// 48 short answers, in a store that holds 11 of those that were asked for.
TEST_F(OutputForecastTest, AFloodWithALargeMaxTokensIsAdmittedAsOneWithASmallOne) {
  StartWithMemory(11 * (kPrompt + kLong));
  Answer(16, kLong);
  for (const int max_tokens : {64, kLong}) {
    Hold(true);
    std::vector<std::unique_ptr<Call>> calls = Flood(48, max_tokens);
    decode_[0]->AwaitLeases(48);
    EXPECT_EQ(Metric("runahead_queue_requests{cause=\"memory\"}"), 0);
    Hold(false);
    Finish(calls);
    decode_[0]->AwaitLeases(0);
  }
}

TEST_F(OutputForecastTest, WithFullSuchAFloodWaitsForMemory) {
  StartWithMemory(11 * (kPrompt + kLong), ReserveMode::kFull);
  Answer(16, kLong);
  Hold(true);
  std::vector<std::unique_ptr<Call>> calls = Flood(48, kLong);
  ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"memory\"}", 37));
  EXPECT_EQ(decode_[0]->leases(), 11u);
  Hold(false);
  Finish(calls);
}

TEST_F(OutputForecastTest, WhatALeaseCountsIsWhatItsWorkerSays) {
  StartWithMemory(10000);
  Hold(true);
  std::vector<std::unique_ptr<Call>> calls = Flood(2, kLong);
  decode_[0]->AwaitDecodes(2);
  EXPECT_EQ(fleet_->DecodeViews().at(1).reserved_tokens, 2 * (kPrompt + ExpectedOutput::kUnknown));
  Hold(false);
  Finish(calls);
  EXPECT_TRUE(MetricBecomes("runahead_requests_in_flight", 0));
  EXPECT_EQ(fleet_->DecodeViews().at(1).reserved_tokens, 0);
}

// Else what is kept for one that waits would never be enough for it, and smaller ones would take the rest.
TEST_F(OutputForecastTest, WhereLeasesDoNotGrowRoomIsKeptForAllOfThem) {
  constexpr int kHalf = kLong / 2;
  StartWithMemory(2 * (kPrompt + kHalf) + kPrompt + kLong, ReserveMode::kExpected, /*grows=*/false);
  Hold(true);
  std::vector<std::unique_ptr<Call>> gone = Flood(2, kHalf), calls = Flood(1, kLong);
  decode_[0]->AwaitDecodes(3);
  EXPECT_EQ(fleet_->DecodeViews().at(1).room(), 0);
  Call large(*stub_, Ask(kLong), testing::kInVain);
  ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"memory\"}", 1));
  Call small(*stub_, Ask(500));
  ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"memory\"}", 2));
  const int asked = static_cast<int>(decode_[0]->reserve_requests().size());
  gone[0]->Cancel();
  decode_[0]->AwaitLeases(2);
  decode_[0]->AwaitReservations(asked + 1);  // the large one is refused again
  gone[1]->Cancel();
  EXPECT_TRUE(large.Read().has_value()) << "the small one has taken its room";
  Hold(false);
  EXPECT_TRUE(large.Finish().status.ok());
  EXPECT_TRUE(small.Finish().status.ok());
  Finish(calls);
  for (auto& call : gone) EXPECT_EQ(call->Finish().status.code(), absl::StatusCode::kCancelled);
}

TEST_F(OutputForecastTest, WhatNoEmptyStoreHoldsIsRefusedHoweverLittleIsExpected) {
  StartWithMemory(kPrompt + kLong - 1);
  const absl::Status status = Generate(Ask(kLong)).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(status.message(), HasSubstr("4005 tokens"));
  EXPECT_TRUE(decode_[0]->reserve_requests().empty());
}

}  // namespace
}  // namespace runahead
