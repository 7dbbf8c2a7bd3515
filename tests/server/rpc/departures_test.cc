#include "server/rpc/departures.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"
#include "tests/testing/await_change.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLeastRate = 1000;

class LeavingCall final : public Departures::Call {
 public:
  void CutOff() override {
    MutexLock lock(mu_);
    EXPECT_FALSE(cut_off_);
    cut_off_ = true;
    changed_.NotifyAll();
  }
  bool cut_off() {
    MutexLock lock(mu_);
    return cut_off_;
  }
  void AwaitCutOff() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("the call is cut off");
    while (!cut_off_) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool cut_off_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

class DeparturesTest : public ::testing::Test {
 protected:
  ~DeparturesTest() override {
    for (const auto& call : calls_) departures_.Leave(*call);
    EXPECT_EQ(bytes_, 0);
  }
  // One that found room.
  LeavingCall& Enter(const std::string& peer, int64_t bytes) {
    LeavingCall& call = *calls_.emplace_back(std::make_unique<LeavingCall>());
    EXPECT_EQ(departures_.Enter(call, peer, bytes), absl::OkStatus());
    return call;
  }
  absl::Status Refused(const std::string& peer, int64_t bytes) {
    LeavingCall call;
    return departures_.Enter(call, peer, bytes);
  }
  void Pass(absl::Duration time) {
    clock_.AwaitWaiters(1);
    clock_.Advance(time);
    clock_.AwaitWaiters(1);
  }

  testing::FakeClock clock_;
  std::vector<std::unique_ptr<LeavingCall>> calls_;
  int64_t bytes_ = 0;
  int slow_ = 0, full_ = 0;
  Departures departures_{
      {.bytes = 10'000, .call_bytes = 100, .min_rate = kLeastRate, .patience = absl::Seconds(10)},
      {.changed = [this](int64_t bytes) { bytes_ = bytes; },
       .cut = [this](DepartureWatcher::Cut why) { ++(why == DepartureWatcher::Cut::kSlow ? slow_ : full_); }},
      clock_};
};

TEST_F(DeparturesTest, AnAnswerCountsUntilItsCallHasEnded) {
  LeavingCall& first = Enter("a", 1000);
  EXPECT_EQ(bytes_, 1100);
  LeavingCall& second = Enter("a", 0);
  EXPECT_EQ(bytes_, 1200);
  departures_.Leave(first);
  EXPECT_EQ(bytes_, 100);
  departures_.Leave(second);
  departures_.Leave(second);
  EXPECT_EQ(bytes_, 0);
}

TEST_F(DeparturesTest, OneThatIsNotTakenIsCutOffWhenItsTimeIsOver) {
  LeavingCall& large = Enter("a", 5 * kLeastRate);
  LeavingCall& small = Enter("a", 0);
  Pass(absl::Seconds(9));
  EXPECT_FALSE(small.cut_off());
  Pass(absl::Seconds(2));
  small.AwaitCutOff();
  EXPECT_EQ(bytes_, 5 * kLeastRate + 100);
  Pass(absl::Seconds(3));
  EXPECT_FALSE(large.cut_off());
  Pass(absl::Seconds(2));
  large.AwaitCutOff();
  Pass(absl::Minutes(1));  // once
  EXPECT_EQ(slow_, 2);
}

TEST_F(DeparturesTest, WhoHasLeftIsNotCutOff) {
  LeavingCall& left = Enter("a", 0);
  LeavingCall& stays = Enter("a", kLeastRate);
  departures_.Leave(left);
  Pass(absl::Minutes(1));
  stays.AwaitCutOff();
  EXPECT_FALSE(left.cut_off());
}

TEST_F(DeparturesTest, AConnectionFindsNoRoomInPlaceOfItsOwnAnswers) {
  for (int i = 0; i < 3; ++i) Enter("a", 3000);
  const absl::Status refused = Refused("a", 3000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("request_memory"));
  EXPECT_TRUE(RetryAfter(refused));
  EXPECT_EQ(full_, 1);
  for (const auto& call : calls_) EXPECT_FALSE(call->cut_off());
}

TEST_F(DeparturesTest, OthersFindRoomInPlaceOfTheOldestOfWhoHasMost) {
  LeavingCall& honest = Enter("b", 2000);
  for (int i = 0; i < 2; ++i) Enter("a", 3000);
  LeavingCall& other = Enter("c", 3000);
  EXPECT_TRUE(calls_[1]->cut_off()) << "the oldest of the connection that has most";
  EXPECT_FALSE(Refused("d", 3000).ok()) << "none has more than it would";
  EXPECT_FALSE(Refused("d", 2900).ok()) << "a and c would give all that they have more, and it would not do";
  for (LeavingCall* const call : {&honest, &other, calls_[2].get()}) EXPECT_FALSE(call->cut_off());
  EXPECT_EQ(full_, 3);
}

TEST_F(DeparturesTest, WhatNeverFitsIsRefused) {
  LeavingCall& other = Enter("a", 9000);
  EXPECT_FALSE(Refused("b", 10'000).ok());
  EXPECT_FALSE(other.cut_off());
}

}  // namespace
}  // namespace runahead
