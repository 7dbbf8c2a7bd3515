#include "worker/link/message/edge_staging.h"

#include <array>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/patience.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/link/message/message_world.h"

namespace runahead {
namespace {

using ::runahead::testing::Bytes;
using ::runahead::testing::EdgeContract;
using ::runahead::testing::EdgeWorld;
using ::runahead::testing::FakeDevice;
using ::runahead::testing::MessageWorld;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::RemoteDevice;

// Each process with a device of its own and `bytes` of staging each way.
std::unique_ptr<EdgeWorld> World(const std::function<std::shared_ptr<Device>()>& device, size_t bytes) {
  const std::array<std::shared_ptr<Device>, 3> devices = {device(), device(), device()};
  return std::make_unique<MessageWorld>(
      [devices, bytes](int process) { return std::make_unique<EdgeStaging>(*devices[process], bytes); });
}
std::shared_ptr<Device> Fake() {
  return std::make_shared<FakeDevice>();
}
std::shared_ptr<Device> Cpu() {
  return *NewCpuDevice({});
}

INSTANTIATE_TEST_SUITE_P(Fake, EdgeContract, ::testing::Values([] { return World(Fake, 8 << 20); }));
INSTANTIATE_TEST_SUITE_P(Cpu, EdgeContract, ::testing::Values([] { return World(Cpu, 8 << 20); }));

// A single chunk, of less than a frame.
INSTANTIATE_TEST_SUITE_P(NoRoom, EdgeContract, ::testing::Values([] { return World(Fake, 1); }));

class StagedEdge : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 1000;
  static constexpr size_t kStaging = 8 * 1024;  // eight chunks, a frame each

  StagedEdge() : a_(Factory(*engine_a_)), b_(Factory(*engine_b_)) {
    ab_ = *a_->Open(engine_b_->self());
    ba_ = *b_->Open(engine_a_->self());
  }
  std::unique_ptr<MessageEdgeFactory> Factory(MessageEngine& engine) {
    return std::make_unique<MessageEdgeFactory>(
        engine, MessageEdgeOptions{.staging = std::make_unique<EdgeStaging>(device_, kStaging)});
  }
  static absl::StatusCode Code(const Event& event) { return event.Wait(testing::LongestWait()).code(); }
  BufferRef Holding(uint64_t seed, size_t bytes = kBytes) { return device_.Holding(Pattern(bytes, seed)); }
  size_t live_jobs() const { return a_->live_jobs(engine_b_->self()) + b_->live_jobs(engine_a_->self()); }

  RemoteDevice device_;
  const std::unique_ptr<MessageEngine> engine_a_ = NewEngine(), engine_b_ = NewEngine();
  std::unique_ptr<MessageEdgeFactory> a_, b_;
  std::shared_ptr<Edge> ab_, ba_;
};

TEST_F(StagedEdge, TheHostNeverTouchesDeviceMemory) {
  const BufferRef into = device_.Room(kBytes);
  const Event got = ba_->Recv({1, 0, 0}, into);
  EXPECT_EQ(Code(ab_->Send({1, 0, 0}, Holding(1), Event())), absl::StatusCode::kOk);
  EXPECT_EQ(Code(got), absl::StatusCode::kOk);
  EXPECT_EQ(device_.Peek(into), Bytes(Pattern(kBytes, 1)));
}

TEST_F(StagedEdge, StagingIsBoundedAndEveryFrameHasItsTurn) {
  constexpr int kFrames = 200;
  std::vector<BufferRef> into;
  std::vector<Event> all;
  for (int i = 0; i < kFrames; ++i) {
    const size_t bytes = 1 + (i * 37) % 3000;
    into.push_back(device_.Room(bytes));
    all.push_back(ba_->Recv({1, i, 0}, into.back()));
    all.push_back(ab_->Send({1, i, 0}, Holding(i, bytes), Event()));
  }
  for (const Event& event : all) EXPECT_EQ(Code(event), absl::StatusCode::kOk);
  for (int i = 0; i < kFrames; ++i) EXPECT_EQ(device_.Peek(into[i]), Bytes(Pattern(into[i].size, i)));
  EXPECT_LE(device_.host_bytes(), 4 * kStaging) << "two processes, two lanes each";
  EXPECT_EQ(Code(ab_->Finish(1)), absl::StatusCode::kOk);
}

TEST_F(StagedEdge, WhatIsLargerThanTheStagingPassesThroughItChunkByChunk) {
  const size_t large = 3 * kStaging + 1;
  std::vector<Event> all;
  std::vector<BufferRef> into;
  for (int i = 0; i < 6; ++i) {
    const size_t bytes = i % 2 == 0 ? large : kBytes;
    into.push_back(device_.Room(bytes));
    all.push_back(ba_->Recv({1, i, 0}, into.back()));
    all.push_back(ab_->Send({1, i, 0}, Holding(i, bytes), Event()));
  }
  for (const Event& event : all) EXPECT_EQ(Code(event), absl::StatusCode::kOk);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(device_.Peek(into[i]), Bytes(Pattern(into[i].size, i)));
  EXPECT_LE(device_.host_bytes(), 4 * kStaging) << "two processes, two lanes each";
}

TEST_F(StagedEdge, CopyWireAndCopyBackOfOneFrameOverlap) {
  const size_t large = 5 * kStaging;
  const BufferRef into = device_.Room(large);
  const Event got = ba_->Recv({1, 0, 0}, into);
  const Event sent = ab_->Send({1, 0, 0}, Holding(1, large), Event());
  EXPECT_EQ(Code(got), absl::StatusCode::kOk);
  EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
  EXPECT_EQ(device_.Peek(into), Bytes(Pattern(large, 1)));
  const std::string directions = device_.directions();
  EXPECT_EQ(directions.size(), 2 * large / 1024);
  EXPECT_LT(directions.find('i'), static_cast<size_t>(2 * kStagedChunks))
      << "more is staged than may be under way at both ends: " << directions;
}

TEST_F(StagedEdge, SendsThatHoldAllRoomDoNotKeepReceivesWaiting) {
  std::vector<Event> stuck;
  for (int i = 0; i < 8; ++i) stuck.push_back(ab_->Send({1, i, 0}, Holding(1), Event()));
  const Event got = ab_->Recv({2, 0, 0}, device_.Room(kBytes));
  ba_->Send({2, 0, 0}, Holding(2), Event());
  EXPECT_EQ(Code(got), absl::StatusCode::kOk);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(Code(ba_->Recv({1, i, 0}, device_.Room(kBytes))), absl::StatusCode::kOk);
  for (const Event& event : stuck) EXPECT_EQ(Code(event), absl::StatusCode::kOk);
}

TEST_F(StagedEdge, ADroppedJobGivesItsRoomBackAndItsWaitersUp) {
  std::vector<Event> sends, recvs;
  for (int i = 0; i < 8; ++i) {
    sends.push_back(ab_->Send({1, i, 0}, Holding(1), Event()));
    recvs.push_back(ab_->Recv({1, i, 1}, device_.Room(kBytes)));
  }
  const Event other = ab_->Recv({2, 0, 1}, device_.Room(kBytes));
  ab_->Drop(1);
  for (const Event& event : recvs) EXPECT_EQ(Code(event), absl::StatusCode::kCancelled);
  for (const Event& event : sends) EXPECT_NE(Code(event), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Code(ab_->Send({1, 9, 0}, Holding(1), Event())), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(ab_->Recv({1, 9, 1}, device_.Room(kBytes))), absl::StatusCode::kCancelled);
  ba_->Send({2, 0, 1}, Holding(2), Event());
  EXPECT_EQ(Code(other), absl::StatusCode::kOk);
  for (const JobId job : {1, 2}) {
    for (Edge* edge : {ab_.get(), ba_.get()}) edge->Finish(job).Wait(testing::LongestWait()).IgnoreError();
  }
  EXPECT_EQ(live_jobs(), 0u);
}

TEST_F(StagedEdge, AFrameInTransferIsSentWholeThoughItsJobIsDropped) {
  EventSource gate;
  device_.HoldCopies(gate.event());
  const BufferRef into = device_.Room(kBytes);
  const Event got = ba_->Recv({1, 0, 0}, into);
  BufferRef bytes = Holding(1);
  const std::weak_ptr<Buffer> held = bytes.buffer;
  const Event sent = ab_->Send({1, 0, 0}, std::move(bytes), Event());
  bytes = {};
  const Event waiting = ab_->Send({1, 1, 0}, Holding(2), Event());
  device_.AwaitCopyEnqueued();
  ab_->Drop(1);
  ba_->Drop(1);
  EXPECT_NE(Code(waiting), absl::StatusCode::kOk);
  EXPECT_FALSE(sent.fired()) << "its bytes are being read";
  gate.Fire(absl::OkStatus());
  EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
  EXPECT_EQ(Code(got), absl::StatusCode::kOk);
  EXPECT_EQ(device_.Peek(into), Bytes(Pattern(kBytes, 1)));
  EXPECT_TRUE(held.expired());
  EXPECT_EQ(Code(ab_->Finish(1)), absl::StatusCode::kCancelled);
  EXPECT_EQ(Code(ba_->Finish(1)), absl::StatusCode::kCancelled);
  EXPECT_EQ(live_jobs(), 0u);
}

TEST_F(StagedEdge, WhatNobodyWantsHoldsNoStaging) {
  std::vector<Event> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(ab_->Send({1, i, 0}, Holding(1), Event()));
  ab_->Send({2, 0, 0}, Holding(2), Event());
  EXPECT_EQ(Code(ba_->Recv({2, 0, 0}, device_.Room(kBytes))), absl::StatusCode::kOk);
  EXPECT_EQ(device_.copies(), 2);
  for (int i = 19; i >= 0; --i) EXPECT_EQ(Code(ba_->Recv({1, i, 0}, device_.Room(kBytes))), absl::StatusCode::kOk);
  for (const Event& event : waiting) EXPECT_EQ(Code(event), absl::StatusCode::kOk);
}

TEST_F(StagedEdge, ThePeerNeedNotStage) {
  const auto engine = NewEngine();
  MessageEdgeFactory host(*engine);
  const auto to_a = *host.Open(engine_a_->self()), to_host = *a_->Open(engine->self());
  for (const size_t bytes : {kBytes, size_t{100'000}}) {
    const JobId job = bytes;
    const BufferRef at_host = testing::Room(bytes), at_a = device_.Room(bytes);
    const Event host_got = to_a->Recv({job, 0, 0}, at_host), a_got = to_host->Recv({job, 0, 1}, at_a);
    to_host->Send({job, 0, 0}, Holding(1, bytes), Event());
    to_a->Send({job, 0, 1}, Pattern(bytes, 2), Event());
    EXPECT_EQ(Code(host_got), absl::StatusCode::kOk);
    EXPECT_EQ(Code(a_got), absl::StatusCode::kOk);
    EXPECT_EQ(Bytes(at_host), Bytes(Pattern(bytes, 1)));
    EXPECT_EQ(device_.Peek(at_a), Bytes(Pattern(bytes, 2)));
  }
}

TEST_F(StagedEdge, NonsenseFromAPeerHarmsNothingElse) {
  std::mt19937 random(3);
  const auto stranger = NewEngine();
  const auto to_stranger = *a_->Open(stranger->self());
  to_stranger->Recv({1, 0, 0}, device_.Room(kBytes));
  to_stranger->Send({1, 1, 0}, Holding(1), Event());
  for (int i = 0; i < 500; ++i) {
    std::string header(random() % 2 == 0 ? 16 : random() % 60, '\0');
    // Small numbers, where they hit something.
    for (size_t at = 0; at < header.size(); at += 8) header[at] = static_cast<char>(random() % 4);
    const bool frame = random() % 3 > 0;
    const BufferRef bytes = frame && random() % 2 == 0 ? Pattern(kBytes, i) : BufferRef();
    stranger->Send(engine_a_->self(), frame ? MessageKind::kEdgeFrame : MessageKind::kEdgeControl, header, bytes,
                   [](const absl::Status&) {});
  }
  ab_->Send({3, 0, 0}, Holding(2), Event());
  EXPECT_EQ(Code(ba_->Recv({3, 0, 0}, device_.Room(kBytes))), absl::StatusCode::kOk);
}

TEST_F(StagedEdge, CloseAwaitsTheCopiesUnderWay) {
  EventSource gate;
  ASSERT_EQ(Code(ab_->Finish(9)), absl::StatusCode::kOk);  // they are connected
  const BufferRef into = device_.Room(kBytes);
  const Event got = ba_->Recv({1, 0, 0}, into);
  device_.HoldCopies(gate.event());
  const Event sent = ab_->Send({1, 0, 0}, Holding(1), Event());
  const Event waits = ab_->Recv({1, 0, 1}, device_.Room(kBytes));
  device_.AwaitCopyEnqueued();
  std::thread closing([&] { a_->Close(engine_b_->self()); });
  EXPECT_EQ(Code(waits), absl::StatusCode::kUnavailable);
  // Before the copy ends: what has been copied once the connection is gone is not sent.
  EXPECT_EQ(Code(got), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(sent.fired()) << "its bytes are being read";
  gate.Fire(absl::OkStatus());
  closing.join();
  EXPECT_TRUE(sent.fired());
  EXPECT_EQ(ab_->Health().code(), absl::StatusCode::kUnavailable);
}

TEST_F(StagedEdge, WithoutPinnedMemoryItIsPlainMemory) {
  RemoteDevice poor;
  poor.RefuseHostMemory(true);
  const auto engine = NewEngine();
  MessageEdgeFactory c(*engine, {.staging = std::make_unique<EdgeStaging>(poor, kStaging)});
  const auto cb = *c.Open(engine_b_->self());
  const auto bc = *b_->Open(engine->self());
  for (const size_t bytes : {kBytes, 3 * kStaging}) {
    const JobId job = bytes;
    const BufferRef into = poor.Room(bytes);
    const Event got = cb->Recv({job, 0, 1}, into);
    const Event sent = cb->Send({job, 0, 0}, poor.Holding(Pattern(bytes, 2)), Event());
    bc->Send({job, 0, 1}, Holding(3, bytes), Event());
    EXPECT_EQ(Code(bc->Recv({job, 0, 0}, device_.Room(bytes))), absl::StatusCode::kOk);
    EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
    EXPECT_EQ(Code(got), absl::StatusCode::kOk);
    EXPECT_EQ(poor.Peek(into), Bytes(Pattern(bytes, 3)));
  }
  EXPECT_EQ(poor.host_bytes(), 0u);
}

TEST_F(StagedEdge, ManyJobsWithDropsLeaveNothing) {
  std::mt19937 random(5);
  constexpr JobId kJobs = 40;
  std::vector<Event> all;
  std::vector<std::function<void()>> steps;
  for (JobId job = 1; job <= kJobs; ++job) {
    for (int layer = 0; layer < 4; ++layer) {
      const size_t bytes = random() % 3000;
      const auto hold = [this, job, bytes] { return bytes == 0 ? BufferRef() : Holding(job, bytes); };
      const auto room = [this, bytes] { return bytes == 0 ? BufferRef() : device_.Room(bytes); };
      steps.push_back([&, job, layer, hold] { all.push_back(ab_->Send({job, layer, 0}, hold(), Event())); });
      steps.push_back([&, job, layer, room] { all.push_back(ba_->Recv({job, layer, 0}, room())); });
    }
    if (job % 3 == 0) steps.push_back([&, job] { ab_->Drop(job); });
    if (job % 4 == 0) steps.push_back([&, job] { ba_->Drop(job); });
  }
  for (const auto& step : steps) step();
  for (JobId job = 1; job <= kJobs; ++job) {
    all.push_back(ab_->Finish(job));
    all.push_back(ba_->Finish(job));
  }
  for (const Event& event : all) {
    const absl::StatusCode code = Code(event);
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled) << *event.status();
  }
  EXPECT_EQ(live_jobs(), 0u);
}

}  // namespace
}  // namespace runahead
