// Frames whose bits flip on the way: sent again, and given up with their job only.
#include <array>
#include <atomic>

#include "tests/testing/patience.h"
#include "tests/testing/remote_device.h"
#include "tests/worker/link/edge_contract.h"
#include "tests/worker/link/flipping_engine.h"
#include "tests/worker/link/new_engine.h"
#include "worker/link/message/message_edge.h"
#include "worker/link/paced_edge.h"

namespace runahead {
namespace {

using ::runahead::testing::FlippingEngine;
using ::runahead::testing::NewEngine;
using ::runahead::testing::Pattern;
using ::runahead::testing::RemoteDevice;

struct Network {
  const char* name;
  bool staged;  // frames are memory that the host cannot read
  bool paced;
};

// A chain of three: frames go from 0 to 1 to 2.
class DamagedFrame : public ::testing::TestWithParam<Network> {
 protected:
  struct Process {
    std::unique_ptr<FlippingEngine> engine;
    std::unique_ptr<EdgeFactory> edges;
    std::atomic<int> corrupt = 0, again = 0;
  };

  DamagedFrame() {
    for (Process& process : processes_) {
      process.engine = std::make_unique<FlippingEngine>(NewEngine(), device_);
      auto staging = GetParam().staged ? std::make_unique<EdgeStaging>(device_, 1 << 20) : nullptr;
      const FrameFaults faults{.on_corrupt = [&process] { ++process.corrupt; },
                               .on_retry = [&process] { ++process.again; }};
      process.edges = std::make_unique<MessageEdgeFactory>(
          *process.engine, MessageEdgeOptions{.staging = std::move(staging), .faults = faults});
      if (GetParam().paced) {
        process.edges = std::make_unique<PacedEdgeFactory>(std::move(process.edges), 100.0, RealClock(), LinkNoise{});
      }
    }
    for (int i = 0; i < 2; ++i) {
      there_[i] = *processes_[i].edges->Open(processes_[i + 1].edges->self());
      back_[i] = *processes_[i + 1].edges->Open(processes_[i].edges->self());
    }
  }
  ~DamagedFrame() override {
    for (Process& process : processes_) process.edges.reset();
  }

  BufferRef Holding(const BufferRef& bytes) { return GetParam().staged ? device_.Holding(bytes) : bytes; }
  BufferRef Room(size_t bytes) { return GetParam().staged ? device_.Room(bytes) : testing::Room(bytes); }
  std::string Peek(const BufferRef& ref) {
    return GetParam().staged ? std::string(device_.Peek(ref)) : std::string(testing::Bytes(ref));
  }
  static absl::StatusCode Code(const Event& event) { return event.Wait(testing::LongestWait()).code(); }

  RemoteDevice device_;
  std::array<Process, 3> processes_;
  std::array<std::shared_ptr<Edge>, 2> there_, back_;
};

// Small ones travel with their header, large ones in chunks.
constexpr size_t kSizes[] = {1, 100, 8192, 8193, 300'001, 3 << 20};

TEST_P(DamagedFrame, IsSentAgainUntilItIsWhole) {
  int damaged = 0;
  for (const int flips : {1, kTransferAttempts - 1}) {
    for (const size_t size : kSizes) {
      const FrameId id{static_cast<JobId>(++damaged), flips, 1};
      processes_[0].engine->Flip(flips);
      const BufferRef into = Room(size);
      const Event sent = there_[0]->Send(id, Holding(Pattern(size, size)), Event());
      const Reception got = back_[0]->Recv(id, into);
      EXPECT_EQ(Code(got), absl::StatusCode::kOk);
      EXPECT_EQ(Code(sent), absl::StatusCode::kOk);
      EXPECT_EQ(Peek(into), testing::Bytes(Pattern(size, size)));
      EXPECT_EQ(Code(there_[0]->Finish(id.job)), absl::StatusCode::kOk);
    }
  }
  const int flipped = processes_[0].engine->flipped();
  EXPECT_EQ(flipped, static_cast<int>(std::size(kSizes)) * kTransferAttempts);
  EXPECT_EQ(processes_[1].corrupt, flipped);
  EXPECT_EQ(processes_[0].again, flipped);
}

TEST_P(DamagedFrame, IsGivenUpWithItsJobAndTheEdgeLives) {
  for (const size_t size : kSizes) {
    const JobId job = 2 * size;
    processes_[0].engine->Flip(kTransferAttempts);
    const Event sent = there_[0]->Send({job, 0, 0}, Holding(Pattern(size, 1)), Event());
    EXPECT_EQ(Code(back_[0]->Recv({job, 0, 0}, Room(size))), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Code(sent), absl::StatusCode::kDataLoss);
    EXPECT_EQ(Code(there_[0]->Finish(job)), absl::StatusCode::kDataLoss);
    // Another job's frame, on the same edge.
    const BufferRef into = Room(size);
    there_[0]->Send({job + 1, 0, 0}, Holding(Pattern(size, 2)), Event());
    EXPECT_EQ(Code(back_[0]->Recv({job + 1, 0, 0}, into)), absl::StatusCode::kOk);
    EXPECT_EQ(Peek(into), testing::Bytes(Pattern(size, 2)));
    EXPECT_TRUE(there_[0]->Health().ok());
    EXPECT_TRUE(back_[0]->Health().ok());
  }
}

TEST_P(DamagedFrame, OnTheSecondLinkIsSentAgainThere) {
  for (const size_t size : kSizes) {
    const FrameId id{size, 0, 1};
    processes_[1].engine->Flip(1);
    const BufferRef into = Room(size), end = Room(size);
    const Reception middle = back_[0]->Recv(id, into);
    const Event passed = there_[1]->SendSummed(id, into, middle, middle.sum());
    const Event got = back_[1]->Recv(id, end);
    there_[0]->Send(id, Holding(Pattern(size, size)), Event());
    EXPECT_EQ(Code(got), absl::StatusCode::kOk);
    EXPECT_EQ(Code(passed), absl::StatusCode::kOk);
    EXPECT_EQ(Peek(end), testing::Bytes(Pattern(size, size)));
  }
  EXPECT_EQ(processes_[1].corrupt, 0);
  EXPECT_EQ(processes_[1].again, static_cast<int>(std::size(kSizes)));
  EXPECT_EQ(processes_[2].corrupt, static_cast<int>(std::size(kSizes)));
}

// The sum is the origin's along the whole chain: what flips in a worker that passes the frame on is found behind it.
TEST_P(DamagedFrame, InTheMemoryOfWhoPassesItOnIsFoundBehindIt) {
  constexpr size_t kSize = 300'001;
  const FrameId id{1, 0, 1};
  const BufferRef into = Room(kSize);
  const Reception middle = back_[0]->Recv(id, into);
  there_[0]->Send(id, Holding(Pattern(kSize, 1)), Event());
  ASSERT_EQ(Code(middle), absl::StatusCode::kOk);
  EXPECT_EQ(middle.sum()->kind, FrameSum::Kind::kHost);
  const BufferRef other = Holding(Pattern(kSize, 2));
  const Event passed = there_[1]->SendSummed(id, other, middle, middle.sum());
  EXPECT_EQ(Code(back_[1]->Recv(id, Room(kSize))), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Code(passed), absl::StatusCode::kDataLoss);
}

TEST_P(DamagedFrame, OfADroppedJobLeavesNothingBehind) {
  for (JobId job = 1; job <= 20; ++job) {
    processes_[0].engine->Flip(kTransferAttempts);
    const Event sent = there_[0]->Send({job, 0, 0}, Holding(Pattern(100'000, job)), Event());
    const Event got = back_[0]->Recv({job, 0, 0}, Room(100'000));
    (job % 2 == 0 ? there_[0] : back_[0])->Drop(job);
    EXPECT_NE(Code(sent), absl::StatusCode::kDeadlineExceeded);
    EXPECT_NE(Code(got), absl::StatusCode::kDeadlineExceeded);
    EXPECT_NE(Code(there_[0]->Finish(job)), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(there_[0]->Health().ok());
}

INSTANTIATE_TEST_SUITE_P(Networks, DamagedFrame,
                         ::testing::Values(Network{"Tcp", false, false}, Network{"TcpStaged", true, false},
                                           Network{"TcpPaced", false, true}),
                         [](const auto& network) { return network.param.name; });

}  // namespace
}  // namespace runahead
