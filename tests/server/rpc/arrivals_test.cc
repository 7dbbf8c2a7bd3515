#include "server/rpc/arrivals.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/rpc/status.h"
#include "tests/testing/await_change.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMessage = 1 << 20;
constexpr int64_t kRate = 1000;
constexpr uint64_t kOther = 500;

class FakeCall final : public Arrivals::Call {
 public:
  void Read() override {
    MutexLock lock(mu_);
    reading_ = true;
    changed_.NotifyAll();
  }
  void GiveUp(const absl::Status& why) override {
    MutexLock lock(mu_);
    EXPECT_TRUE(given_up_.ok());
    given_up_ = why;
    changed_.NotifyAll();
  }
  bool reading() {
    MutexLock lock(mu_);
    return reading_;
  }
  absl::Status given_up() {
    MutexLock lock(mu_);
    return given_up_;
  }
  absl::Status AwaitGivenUp() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("the call is given up");
    while (given_up_.ok()) {
      if (!wait.Next(mu_, changed_)) break;
    }
    return given_up_;
  }
  void AwaitReading() {
    MutexLock lock(mu_);
    testing::ChangeWait wait("the call reads");
    while (!reading_) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool reading_ RUNAHEAD_GUARDED_BY(mu_) = false;
  absl::Status given_up_ RUNAHEAD_GUARDED_BY(mu_);
};

class ArrivalsTest : public ::testing::Test {
 protected:
  ~ArrivalsTest() override {
    for (const auto& call : calls_) {
      if (call->given_up().ok() && !arrivals_.Abandon(*call)) (void)arrivals_.Arrived(*call);
    }
  }
  FakeCall& Enter(const std::string& peer) {
    FakeCall& call = *calls_.emplace_back(std::make_unique<FakeCall>());
    arrivals_.Enter(call, peer);
    return call;
  }
  void Receive(const std::string& peer, uint64_t bytes) {
    MutexLock lock(mu_);
    bytes_[peer] += bytes;
  }
  std::optional<uint64_t> Received(const std::string& peer) {
    MutexLock lock(mu_);
    if (peer == "unknown") return std::nullopt;
    return bytes_[peer];
  }
  // So much time, which is looked at after each quarter of a second; `each` is called before that.
  void Pass(
      absl::Duration time, const std::function<void()>& each = [] {}) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(250)) {
      each();
      clock_.AwaitWaiters(1);
      clock_.Advance(absl::Milliseconds(250));
      clock_.AwaitWaiters(1);
    }
  }

  Mutex mu_;
  std::map<std::string, uint64_t> bytes_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<std::string> hung_up_ RUNAHEAD_GUARDED_BY(mu_);
  testing::FakeClock clock_;
  std::vector<std::unique_ptr<FakeCall>> calls_;
  int slow_ = 0, full_ = 0, long_ = 0, reading_ = 0, waiting_ = 0;
  int64_t bytes_counted_ = 0;
  Arrivals arrivals_{
      {.bytes = 2 * kMessage,
       .message_bytes = kMessage,
       .max_waiting = 4,
       .max_refused = 10,
       .min_rate = kRate,
       .other_bytes = kOther},
      {.changed = [this](int reading, int waiting,
                         int64_t bytes) { reading_ = reading, waiting_ = waiting, bytes_counted_ = bytes; },
       .refused =
           [this](ArrivalWatcher::Refusal why) {
             ++(why == ArrivalWatcher::Refusal::kSlow ? slow_ : why == ArrivalWatcher::Refusal::kFull ? full_ : long_);
           }},
      clock_,
      [this](const std::string& peer) { return Received(peer); },
      [this](const std::string& peer) {
        MutexLock lock(mu_);
        hung_up_.push_back(peer);
      }};
};

TEST_F(ArrivalsTest, SoManyAreReadAndTheOthersWait) {
  FakeCall& first = Enter("a");
  FakeCall& second = Enter("b");
  FakeCall& third = Enter("c");
  EXPECT_TRUE(first.reading());
  EXPECT_TRUE(second.reading());
  EXPECT_FALSE(third.reading());
  EXPECT_EQ(reading_, 2);
  EXPECT_EQ(waiting_, 1);
  EXPECT_TRUE(arrivals_.Arrived(first));
  EXPECT_TRUE(third.reading());
  EXPECT_EQ(waiting_, 0);
}

// Was: 2.1 GB of a router for 300,000 calls over one connection, which had not said that it knows the limit of 1,024.
TEST_F(ArrivalsTest, AConnectionWhoseCallsComeThoughTheyAreRefusedIsHungUpOn) {
  const auto hung_up = [&] {
    MutexLock lock(mu_);
    return hung_up_;
  };
  for (int i = 0; i < 6; ++i) Enter("unknown");  // two are read, four wait
  for (int second = 0; second < 3; ++second) {
    for (int i = 0; i < 10; ++i) Enter("patient");
    EXPECT_EQ(waiting_, 4);
    Pass(absl::Seconds(1));
    EXPECT_THAT(hung_up(), ::testing::IsEmpty());
  }
  EXPECT_GT(full_, 10) << "in all";
  for (int i = 0; i < 50; ++i) Enter("greedy");
  Pass(absl::Milliseconds(250));
  EXPECT_THAT(hung_up(), ::testing::ElementsAre("greedy"));
}

TEST_F(ArrivalsTest, ConnectionsHaveTheirTurns) {
  FakeCall& first = Enter("a");
  FakeCall& second = Enter("a");
  FakeCall& third = Enter("a");
  FakeCall& fourth = Enter("a");
  FakeCall& other = Enter("b");
  EXPECT_TRUE(arrivals_.Arrived(first));
  EXPECT_TRUE(arrivals_.Arrived(second));
  EXPECT_TRUE(other.reading()) << "after all of those that came before it";
  EXPECT_NE(third.reading(), fourth.reading());
}

TEST_F(ArrivalsTest, WhoIsGoneWaitsNoMore) {
  FakeCall& first = Enter("a");
  Enter("a");
  FakeCall& gone = Enter("a");
  EXPECT_TRUE(arrivals_.Abandon(gone));
  EXPECT_FALSE(arrivals_.Abandon(gone));
  EXPECT_FALSE(arrivals_.Abandon(first)) << "it is read: that ends by itself";
  EXPECT_TRUE(arrivals_.Arrived(first));
  EXPECT_FALSE(gone.reading());
}

TEST_F(ArrivalsTest, NoMoreMayWait) {
  for (int i = 0; i < 6; ++i) Enter("a");
  const absl::Status refused = Enter("a").given_up();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("request_memory"));
  EXPECT_TRUE(RetryAfter(refused));
  EXPECT_EQ(full_, 1);
}

TEST_F(ArrivalsTest, WhoHasNoneFindsRoomInPlaceOfWhoHasMany) {
  for (int i = 0; i < 6; ++i) Enter("a");
  FakeCall& other = Enter("b");
  EXPECT_TRUE(other.given_up().ok());
  EXPECT_FALSE(calls_[5]->given_up().ok()) << "the last of the many";
  EXPECT_EQ(waiting_, 4);
  EXPECT_TRUE(Enter("b").given_up().ok());
  EXPECT_FALSE(Enter("b").given_up().ok()) << "they have as many now";
}

TEST_F(ArrivalsTest, WhoKeptOthersWaitingComesLast) {
  FakeCall& first = Enter("a");
  FakeCall& second = Enter("b");
  FakeCall& third = Enter("a");
  FakeCall& fourth = Enter("b");
  Pass(absl::Seconds(2), [&] { Receive("b", kMessage / 30); });  // as fast as to be counted as the longest
  EXPECT_FALSE(first.AwaitGivenUp().ok());
  // Whoever took its place has gone; only slow ones and others wait.
  FakeCall& honest = Enter("c");
  FakeCall& slow = Enter("a");
  EXPECT_TRUE(arrivals_.Arrived(second));
  for (FakeCall* const call : {&third, &fourth}) {
    if (call->reading() && !honest.reading()) (void)arrivals_.Arrived(*call);
  }
  EXPECT_TRUE(honest.reading());
  EXPECT_FALSE(slow.reading());
}

TEST_F(ArrivalsTest, AMessageThatDoesNotComeIsGivenUp) {
  FakeCall& silent = Enter("a");
  FakeCall& comes = Enter("b");
  Pass(absl::Seconds(9), [&] { Receive("b", kRate / 4 + 1); });
  EXPECT_TRUE(silent.given_up().ok());
  Pass(absl::Seconds(2), [&] { Receive("b", kRate / 4 + 1); });
  const absl::Status why = silent.AwaitGivenUp();
  EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(why.message()), HasSubstr("min_arrival_rate"));
  EXPECT_FALSE(arrivals_.Arrived(silent));
  Pass(absl::Seconds(30), [&] { Receive("b", kRate / 4 + 1); });
  EXPECT_TRUE(comes.given_up().ok());
  EXPECT_EQ(slow_, 1);
}

TEST_F(ArrivalsTest, WhereOthersWaitItIsGivenUpSooner) {
  FakeCall& silent = Enter("a");
  FakeCall& comes = Enter("b");
  FakeCall& waits = Enter("c");
  Pass(absl::Seconds(2), [&] { Receive("b", kMessage / 30); });
  EXPECT_FALSE(silent.AwaitGivenUp().ok());
  waits.AwaitReading();
  EXPECT_TRUE(comes.given_up().ok());
}

// The bytes that come count for the younger message: the older one had its time.
TEST_F(ArrivalsTest, OfTwoOnAConnectionTheOneThatStandsStillGoes) {
  FakeCall& stands = Enter("a");
  Pass(absl::Seconds(5));
  FakeCall& comes = Enter("a");
  Pass(absl::Seconds(6), [&] { Receive("a", kRate / 4 + 1); });
  EXPECT_FALSE(stands.AwaitGivenUp().ok());
  Pass(absl::Seconds(20), [&] { Receive("a", kRate / 4 + 1); });
  EXPECT_TRUE(comes.given_up().ok());
}

TEST_F(ArrivalsTest, AConnectionThatBringsMoreThanItsMessagesMayIsGivenUp) {
  FakeCall& longer = Enter("a");
  FakeCall& longest = Enter("b");
  Pass(absl::Milliseconds(250));  // from now on it is known what comes
  Receive("a", kMessage + kOther + 1);
  Receive("b", kMessage + kOther);
  Pass(absl::Milliseconds(250));
  const absl::Status why = longer.AwaitGivenUp();
  EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(why.message()), HasSubstr("send a shorter one"));
  EXPECT_TRUE(longest.given_up().ok());
  // A message that has arrived counts with its own size.
  FakeCall& next = Enter("b");
  EXPECT_TRUE(arrivals_.Arrived(longest, kMessage));
  Receive("b", kMessage);
  Pass(absl::Milliseconds(250));
  EXPECT_TRUE(next.given_up().ok());
  Enter("c");  // so that time goes on being looked at
  Receive("b", 1);
  Pass(absl::Milliseconds(250));
  EXPECT_FALSE(next.AwaitGivenUp().ok());
  EXPECT_EQ(long_, 2);
  EXPECT_EQ(slow_, 0);
}

TEST_F(ArrivalsTest, WhatCameOfAMessageThatItsClientGaveUpIsNotTakenForALongOne) {
  FakeCall& given_up = Enter("a");
  FakeCall& next = Enter("a");
  Pass(absl::Milliseconds(250));
  Receive("a", kMessage);
  EXPECT_TRUE(arrivals_.Arrived(given_up));
  Receive("a", kMessage + kOther);
  Pass(absl::Milliseconds(250));
  EXPECT_TRUE(next.given_up().ok());
}

TEST_F(ArrivalsTest, MessagesThatComeSlowlyLeaveRoomForOthers) {
  FakeCall& first = Enter("a");
  FakeCall& second = Enter("b");
  FakeCall& third = Enter("c");
  EXPECT_EQ(bytes_counted_, 2 * kMessage);
  Pass(absl::Seconds(1), [&] {
    for (const char* peer : {"a", "b", "c"}) Receive(peer, kRate / 4 + 1);
  });
  EXPECT_TRUE(first.reading() && second.reading() && third.reading());
  EXPECT_LT(bytes_counted_, kMessage / 2);
}

TEST_F(ArrivalsTest, MessagesThatComeFasterThanTheyDidMayNotTakeMoreThanThereIs) {
  for (const char* peer : {"a", "b", "c"}) Enter(peer);
  Pass(absl::Seconds(1), [&] {
    for (const char* peer : {"a", "b", "c"}) Receive(peer, kRate / 4 + 1);
  });
  for (const char* peer : {"a", "b", "c"}) Receive(peer, kMessage / 2);
  Pass(absl::Milliseconds(250));
  EXPECT_EQ(full_, 1);
  EXPECT_EQ(reading_, 2);
  EXPECT_LE(bytes_counted_, 2 * kMessage);
}

// Two come as fast as lets them take all that there is.
TEST_F(ArrivalsTest, NobodyWaitsForLong) {
  FakeCall& first = Enter("a");
  FakeCall& second = Enter("b");
  FakeCall& third = Enter("c");
  FakeCall& fourth = Enter("d");
  FakeCall& fifth = Enter("e");
  Pass(absl::Seconds(9), [&] {
    for (const char* peer : {"a", "b"}) Receive(peer, kMessage / 48);
  });
  EXPECT_EQ(reading_, 2);
  EXPECT_EQ(waiting_, 3);
  Pass(absl::Seconds(1), [&] {
    for (const char* peer : {"a", "b"}) Receive(peer, kMessage / 48);
  });
  // They had their time: one makes room, the other one may go on.
  EXPECT_NE(first.given_up().ok(), second.given_up().ok());
  EXPECT_TRUE(third.reading());
  EXPECT_FALSE(fourth.reading());
  for (FakeCall* call : {&fourth, &fifth}) {
    const absl::Status why = call->AwaitGivenUp();
    EXPECT_EQ(why.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(RetryAfter(why));
  }
  EXPECT_EQ(full_, 3);
}

// Was: a slow client that comes as fast as it must was ended after 10 s, for it alone was read for so long.
TEST_F(ArrivalsTest, ASlowMessageThatComesOutlivesAFloodOfOnesThatDoNot) {
  FakeCall& slow = Enter("slow");
  Pass(absl::Seconds(60), [&] {
    Receive("slow", kRate / 2);
    for (int i = 0; i < 8 && waiting_ < 2; ++i) Enter(absl::StrCat("flood-", calls_.size()));
    EXPECT_TRUE(slow.given_up().ok());
  });
  EXPECT_GT(slow_, 5) << "the flood's";
}

// Where the kernel does not say what comes, the longest message at the lowest rate is waited for.
TEST_F(ArrivalsTest, AConnectionOfWhichNothingIsKnownHasTheTimeOfTheLongestMessage) {
  FakeCall& call = Enter("unknown");
  Pass(absl::Seconds(kMessage / kRate));
  EXPECT_TRUE(call.given_up().ok());
  Enter("another");  // so that time goes on being looked at
  Pass(absl::Seconds(21), [&] { Receive("another", kRate); });
  EXPECT_FALSE(call.AwaitGivenUp().ok());
}

}  // namespace
}  // namespace runahead
