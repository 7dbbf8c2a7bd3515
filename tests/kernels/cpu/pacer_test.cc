#include "kernels/cpu/pacer.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/kernels/cpu/manual_clock.h"

namespace runahead {
namespace {

constexpr double kGigabyte = 8;  // gigabits per second
constexpr absl::Duration kLatency = absl::Microseconds(10);

// Bytes that go from one place to another.
struct PacedBytes {
  explicit PacedBytes(size_t size) : from(size, std::byte{7}), to(size) {}
  void Over(Pacer& pacer) { pacer.Copy(from.data(), to.data(), from.size()); }
  std::vector<std::byte> from, to;
};

TEST(Pacer, ACopyTakesItsLatencyAndItsBytesAtTheRate) {
  ManualClock manual;
  Pacer pacer(kGigabyte, kLatency, manual.clock());
  PacedBytes large(1'000'000), small(64);
  EXPECT_EQ(manual.Time([&] { large.Over(pacer); }), kLatency + absl::Milliseconds(1));
  EXPECT_EQ(large.to, large.from);
  EXPECT_EQ(manual.Time([&] { small.Over(pacer); }), kLatency + absl::Nanoseconds(64));
  EXPECT_EQ(manual.Time([&] {
    for (int i = 0; i < 100; ++i) small.Over(pacer);
  }),
            100 * (kLatency + absl::Nanoseconds(64)));
}

TEST(Pacer, SingleStoresGoBetweenThePiecesOfCopies) {
  ManualClock manual;
  Pacer pacer(kGigabyte, kLatency, manual.clock());
  PacedBytes large(1'000'000);
  EXPECT_EQ(manual.Time([&] { pacer.Interleave(1000); }), kLatency + absl::Microseconds(1))
      << "nothing else is on its way";
  const absl::Time before = manual.now;
  large.Over(pacer);
  manual.now = before + kLatency;  // the link is taken for another millisecond
  EXPECT_EQ(manual.Time([&] { pacer.Interleave(1000); }), kLatency + absl::Microseconds(1));
  manual.now = before + kLatency;
  EXPECT_EQ(manual.Time([&] { large.Over(pacer); }), kLatency + absl::Milliseconds(2) + absl::Microseconds(1))
      << "what was moved between is moved";
}

TEST(Pacer, IdleTimeIsNotSavedUp) {
  ManualClock manual;
  Pacer pacer(kGigabyte, kLatency, manual.clock());
  PacedBytes bytes(100'000);
  for (const absl::Duration idle : {absl::Microseconds(20), absl::Milliseconds(4), absl::Seconds(60)}) {
    manual.now += idle;
    EXPECT_EQ(manual.Time([&] { bytes.Over(pacer); }), kLatency + absl::Microseconds(100)) << idle;
  }
}

// Where a machine is busy waits end late, which a link would not.
TEST(Pacer, CopiesThatFollowAtOnceMakeUpForLateWaits) {
  ManualClock manual;
  Pacer pacer(kGigabyte, kLatency, manual.clock());
  PacedBytes bytes(100'000), pieces(10'000'000);
  const absl::Duration takes = kLatency + absl::Microseconds(100);
  const absl::Duration late = absl::Microseconds(300);
  manual.late = late;
  const absl::Duration many = manual.Time([&] {
    for (int i = 0; i < 50; ++i) bytes.Over(pacer);
  });
  EXPECT_GE(many, 50 * takes);
  EXPECT_LE(many, 50 * takes + late) << "at most the last one is late";
  const absl::Duration one = manual.Time([&] { pieces.Over(pacer); });
  EXPECT_LE(one, kLatency + absl::Milliseconds(10) + late) << "and so it is within a copy";
  manual.late = absl::ZeroDuration();
  manual.now += absl::Milliseconds(1);
  EXPECT_EQ(manual.Time([&] { bytes.Over(pacer); }), takes) << "this one was not queued behind them";
  manual.late = absl::Seconds(1);
  bytes.Over(pacer);
  manual.late = absl::ZeroDuration();
  EXPECT_EQ(manual.Time([&] {
    for (int i = 0; i < 50; ++i) bytes.Over(pacer);
  }),
            50 * takes - absl::Milliseconds(5))
      << "no more than that is made up for";
}

TEST(Pacer, HalvingTheRateDoublesTheTimeOfTheNextCopy) {
  ManualClock manual;
  Pacer pacer(kGigabyte, absl::ZeroDuration(), manual.clock());
  PacedBytes bytes(3'000'000);
  const auto copy = [&] { bytes.Over(pacer); };
  EXPECT_EQ(manual.Time(copy), absl::Milliseconds(3));
  pacer.SetRate(kGigabyte / 2);
  EXPECT_EQ(manual.Time(copy), absl::Milliseconds(6));
  pacer.SetRate(kGigabyte);
  EXPECT_EQ(manual.Time(copy), absl::Milliseconds(3));
}

TEST(Pacer, TheRateMayChangeWhileACopyRuns) {
  ManualClock manual;
  Pacer* changed = nullptr;
  Pacer::Clock clock = manual.clock();
  clock.sleep_until = [&, sleep = clock.sleep_until](absl::Time until) {
    changed->SetRate(kGigabyte / 2);
    sleep(until);
  };
  Pacer pacer(kGigabyte, kLatency, clock);
  changed = &pacer;
  PacedBytes bytes(10'000'000);
  const absl::Duration took = manual.Time([&] { bytes.Over(pacer); });
  EXPECT_GE(took, kLatency + absl::Milliseconds(10));
  EXPECT_LE(took, kLatency + absl::Milliseconds(20));
  EXPECT_EQ(manual.Time([&] { bytes.Over(pacer); }), kLatency + absl::Milliseconds(20));
}

TEST(Pacer, ThreadsShareOneDirection) {
  Mutex mu;
  absl::Time latest = absl::UnixEpoch();
  const auto wait = [&](absl::Time until) {
    MutexLock lock(mu);
    latest = std::max(latest, until);
  };
  Pacer pacer(kGigabyte, kLatency, {[] { return absl::UnixEpoch(); }, wait, wait});
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      PacedBytes bytes(1'000'000);
      for (int copy = 0; copy < 10; ++copy) bytes.Over(pacer);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(latest - absl::UnixEpoch(), 40 * (kLatency + absl::Milliseconds(1)));
}

TEST(Pacer, TheSystemClockWaitsLongEnough) {
  const Pacer::Clock clock = Pacer::SystemClock();
  for (const absl::Duration wait : {absl::Microseconds(5), absl::Microseconds(500)}) {
    const absl::Time until = clock.now() + wait;
    clock.wait_until(until);
    EXPECT_GE(clock.now(), until);
  }
}

}  // namespace
}  // namespace runahead
