#include "server/base/span_recorder.h"

#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

absl::Time At(int64_t ns) {
  return absl::FromUnixNanos(ns);
}

TEST(SpanRecorder, GivesWhatWasAddedInOrderAndOnce) {
  SpanRecorder recorder;
  recorder.Add("qkv", 3, At(1'000'000'007), At(1'000'000'010), 64);
  recorder.Add("queue", -1, At(5), At(4));
  const SpanRecorder::Recorded recorded = recorder.Take();
  ASSERT_EQ(recorded.spans.size(), 2u);
  const RecordedSpan &qkv = recorded.spans[0], &queue = recorded.spans[1];
  EXPECT_EQ(std::string(qkv.name), "qkv");
  EXPECT_EQ(qkv.layer, 3);
  EXPECT_EQ(qkv.start_ns, 1'000'000'007);
  EXPECT_EQ(qkv.duration_ns, 3);
  EXPECT_EQ(qkv.amount, 64);
  EXPECT_EQ(queue.layer, -1);
  EXPECT_EQ(queue.duration_ns, 0) << "it cannot end before it began";
  EXPECT_EQ(recorded.dropped, 0);
  EXPECT_TRUE(recorder.Take().spans.empty());
}

TEST(SpanRecorder, KeepsTheFirstAndCountsWhatItDrops) {
  SpanRecorder recorder(3);
  for (int64_t i = 0; i < 5; ++i) recorder.Add("step", -1, At(i), At(i + 1));
  const SpanRecorder::Recorded recorded = recorder.Take();
  ASSERT_EQ(recorded.spans.size(), 3u);
  EXPECT_EQ(recorded.spans.back().start_ns, 2);
  EXPECT_EQ(recorded.dropped, 2);
}

TEST(SpanRecorder, HalfOfTheRoomIsNotForDetails) {
  SpanRecorder recorder(4);
  for (int64_t i = 0; i < 5; ++i) recorder.AddDetail("transfer", i, At(i), At(i + 1));
  recorder.Add("step", -1, At(0), At(9));
  const SpanRecorder::Recorded recorded = recorder.Take();
  ASSERT_EQ(recorded.spans.size(), 3u);
  EXPECT_EQ(std::string(recorded.spans.back().name), "step");
  EXPECT_EQ(recorded.dropped, 3);
}

TEST(SpanRecorder, ThreadsMayAddWhileOneTakes) {
  constexpr int kThreads = 4, kEach = 1000;
  SpanRecorder recorder(kThreads * kEach);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&recorder] {
      for (int64_t at = 0; at < kEach; ++at) recorder.Add("send", at, At(at), At(at + 1), at);
    });
  }
  size_t taken = recorder.Take().spans.size();
  for (std::thread& thread : threads) thread.join();
  taken += recorder.Take().spans.size();
  EXPECT_EQ(taken, static_cast<size_t>(kThreads * kEach));
}

}  // namespace
}  // namespace runahead
