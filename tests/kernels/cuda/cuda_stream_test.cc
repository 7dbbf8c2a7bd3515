// Streams, events and steps of the CUDA device, over an emulated GPU.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/cuda/cuda_device.h"
#include "tests/testing/cuda_emulation/control.h"
#include "tests/testing/device_tensor.h"

namespace runahead {
namespace {

using cuda_emulation::CountLiveObjects;
using cuda_emulation::GraphLaunches;

class CudaStreamTest : public testing::Test {
 protected:
  BufferRef Host(size_t bytes) { return BufferRef::Whole(*device_->Allocate(bytes, MemoryKind::kHost)); }
  BufferRef Gpu(size_t bytes) { return BufferRef::Whole(*device_->Allocate(bytes, MemoryKind::kDevice)); }

  const std::shared_ptr<Device> device_ = *NewCudaDevice({.compute_dtype = DType::kF32, .memory_budget = 64 << 20});
  std::unique_ptr<Stream> stream_ = device_->NewStream("a");
  std::unique_ptr<Stream> other_ = device_->NewStream("b");
};

TEST_F(CudaStreamTest, CallsRunInOrderAndRecordFiresAfterThem) {
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) device_->Call(*stream_, [&order, i] { order.push_back(i); });
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(CudaStreamTest, WaitsForAHostEventWithoutHoldingTheThread) {
  EventSource source;
  std::atomic<bool> ran{false};
  device_->WaitFor(*stream_, source.event());
  device_->Call(*stream_, [&ran] { ran = true; });
  const Event after = device_->Record(*stream_);
  EXPECT_TRUE(device_->Record(*other_).Wait().ok());  // the other stream goes on
  EXPECT_FALSE(after.fired());
  EXPECT_FALSE(ran);
  source.Fire(absl::CancelledError("any status lets the stream go on"));
  EXPECT_TRUE(after.Wait().ok());
  EXPECT_TRUE(ran);
}

TEST_F(CudaStreamTest, WaitsForAnotherStreamOnTheDevice) {
  EventSource source;
  device_->WaitFor(*stream_, source.event());
  const Event first = device_->Record(*stream_);
  ASSERT_NE(first.native(), nullptr);
  device_->WaitFor(*other_, first);
  const Event second = device_->Record(*other_);
  EXPECT_FALSE(second.fired());
  source.Fire(absl::OkStatus());
  EXPECT_TRUE(second.Wait().ok());
  EXPECT_TRUE(first.fired());
}

TEST_F(CudaStreamTest, WaitsForAnEventOfAStreamThatIsGone) {
  const Event last = device_->Record(*other_);
  other_.reset();  // waits for it
  EXPECT_TRUE(last.fired());
  device_->WaitFor(*stream_, last);
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
}

TEST_F(CudaStreamTest, HoldsBuffersUntilTheCopyHasRun) {
  EventSource source;
  device_->WaitFor(*stream_, source.event());
  BufferRef from = Host(1 << 16), to = Gpu(1 << 16);
  std::memset(from.data(), 7, from.size);
  const std::weak_ptr<Buffer> from_alive = from.buffer, to_alive = to.buffer;
  const BufferRef back = Host(1 << 16);
  ASSERT_TRUE(device_->Copy(*stream_, from, to).ok());
  ASSERT_TRUE(device_->Copy(*stream_, to, back).ok());
  const Event done = device_->Record(*stream_);
  from = BufferRef();
  to = BufferRef();
  EXPECT_FALSE(from_alive.expired());
  EXPECT_FALSE(to_alive.expired());
  source.Fire(absl::OkStatus());
  ASSERT_TRUE(done.Wait().ok());
  EXPECT_TRUE(from_alive.expired());
  EXPECT_TRUE(to_alive.expired());
  EXPECT_EQ(back.data()[(1 << 16) - 1], std::byte{7});
}

TEST_F(CudaStreamTest, LetsGoOfBuffersAlsoWhereNobodyRecords) {
  const int before = CountLiveObjects().device_allocations;
  for (int i = 0; i < 2000; ++i) {
    const BufferRef from = Gpu(256), to = Gpu(256);
    ASSERT_TRUE(device_->Copy(*stream_, from, to).ok());
  }
  // 64 MiB would hold them all; what is let go is seen on the way.
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
  EXPECT_EQ(CountLiveObjects().device_allocations, before);
}

TEST_F(CudaStreamTest, WhatACallHoldsIsFreedOutsideTheCall) {
  // The emulation aborts where CUDA is called from within a call, as freeing GPU memory there would.
  auto held = std::make_shared<BufferRef>(Gpu(256));
  const std::weak_ptr<BufferRef> alive = held;
  device_->Call(*stream_, [held = std::move(held)] {});
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
  EXPECT_TRUE(alive.expired());
}

TEST_F(CudaStreamTest, DestroyingAStreamWaitsForWhatItHas) {
  EventSource source;
  std::atomic<bool> ran{false};
  device_->WaitFor(*stream_, source.event());
  device_->Call(*stream_, [&ran] { ran = true; });
  std::thread release([&source] { source.Fire(absl::OkStatus()); });
  stream_.reset();
  EXPECT_TRUE(ran);
  release.join();
}

TEST_F(CudaStreamTest, LeavesNothingBehind) {
  const auto before = CountLiveObjects();
  {
    const auto device = *NewCudaDevice({.compute_dtype = DType::kBF16});
    const auto stream = device->NewStream("c");
    const auto buffer = *device->Allocate(1 << 20, MemoryKind::kDevice);
    const auto host = *device->Allocate(1 << 20, MemoryKind::kHost);
    device->BeginStep(*stream);
    ASSERT_TRUE(device->Copy(*stream, BufferRef::Whole(host), BufferRef::Whole(buffer)).ok());
    device->EndStep(*stream);
    EXPECT_TRUE(device->Record(*stream).Wait().ok());
  }
  EXPECT_EQ(CountLiveObjects(), before);
}

// out = the rows of a table, and then its norm: ops with arrays of the host's, in one step.
class CudaStepTest : public CudaStreamTest {
 protected:
  static constexpr int64_t kRows = 3, kCols = 32;

  void SetUp() override {
    for (int i = 0; i < 50 * kCols; ++i) values_.push_back(static_cast<float>(i));
    const WeightSource source{nullptr, kCols, {{WeightType::kF32, reinterpret_cast<std::byte*>(values_.data()), 50}}};
    table_ = *device_->LoadWeights(source, kUseDecode);
    out_ = MakeTensor(Gpu(kRows * kCols * 4), DType::kF32, kRows, kCols);
    copy_ = MakeTensor(Gpu(kRows * kCols * 4), DType::kF32, kRows, kCols);
  }
  // Returns what a step computed.
  std::vector<float> Step(const std::vector<int32_t>& ids) {
    device_->BeginStep(*stream_);
    EXPECT_TRUE(device_->Embed(*stream_, *table_, ids, out_).ok());
    EXPECT_TRUE(device_->GatherRows(*stream_, out_, {2, 1, 0}, copy_).ok());
    device_->EndStep(*stream_);
    return Read();
  }
  std::vector<float> Read() {
    const BufferRef host = Host(copy_.ref.size);
    EXPECT_TRUE(device_->Copy(*stream_, copy_.ref, host).ok());
    EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
    const float* const at = reinterpret_cast<const float*>(host.data());
    return {at, at + kRows * kCols};
  }
  static std::vector<float> Rows(const std::vector<int32_t>& ids) {
    std::vector<float> rows;
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      for (int64_t c = 0; c < kCols; ++c) rows.push_back(static_cast<float>(*id * kCols + c));
    }
    return rows;
  }

  std::vector<float> values_;
  std::shared_ptr<const Weights> table_;
  Tensor out_, copy_;
};

TEST_F(CudaStepTest, AStepThatComesAgainIsAGraphAndComputesWithItsOwnArrays) {
  const int64_t before = GraphLaunches();
  EXPECT_EQ(Step({1, 2, 3}), Rows({1, 2, 3}));
  EXPECT_EQ(GraphLaunches(), before) << "the first time libraries load what they need";
  EXPECT_EQ(Step({4, 5, 6}), Rows({4, 5, 6}));
  EXPECT_EQ(GraphLaunches(), before + 1);
  EXPECT_EQ(Step({49, 0, 7}), Rows({49, 0, 7}));
  EXPECT_EQ(GraphLaunches(), before + 2);
}

TEST_F(CudaStepTest, AnotherShapeIsAnotherGraph) {
  for (int i = 0; i < 2; ++i) Step({1, 2, 3});
  const int64_t before = GraphLaunches();
  copy_ = MakeTensor(Gpu(kRows * kCols * 4), DType::kF32, kRows, kCols);  // other memory, the same shape
  EXPECT_EQ(Step({3, 2, 1}), Rows({3, 2, 1}));
  EXPECT_EQ(GraphLaunches(), before);
}

TEST_F(CudaStepTest, RecordWaitAndCallDivideAStep) {
  EventSource source;
  for (int i = 0; i < 3; ++i) {
    std::atomic<int> called{0};
    device_->BeginStep(*stream_);
    ASSERT_TRUE(device_->Embed(*stream_, *table_, {i, i + 1, i + 2}, out_).ok());
    const Event middle = device_->Record(*stream_);
    EXPECT_TRUE(middle.Wait().ok()) << "what was enqueued before Record runs, though the step is not at its end";
    device_->Call(*stream_, [&called] { ++called; });
    ASSERT_TRUE(device_->GatherRows(*stream_, out_, {2, 1, 0}, copy_).ok());
    device_->EndStep(*stream_);
    EXPECT_EQ(Read(), Rows({i, i + 1, i + 2}));
    EXPECT_EQ(called, 1);
  }
}

TEST_F(CudaStepTest, MoreArraysThanThereIsRoomForStillArrive) {
  std::vector<int32_t> ids(100000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 50);
  const Tensor many = MakeTensor(Gpu(ids.size() * kCols * 4), DType::kF32, ids.size(), kCols);
  for (int round = 0; round < 3; ++round) {
    device_->BeginStep(*stream_);
    ASSERT_TRUE(device_->Embed(*stream_, *table_, {5, 6, 7}, out_).ok());
    ASSERT_TRUE(device_->Embed(*stream_, *table_, ids, many).ok());
    ASSERT_TRUE(device_->GatherRows(*stream_, out_, {2, 1, 0}, copy_).ok());
    device_->EndStep(*stream_);
    EXPECT_EQ(Read(), Rows({5, 6, 7}));
  }
}

TEST_F(CudaStepTest, WhatCannotBeRecordedRunsAsItIs) {
  Step({1, 2, 3});
  cuda_emulation::FailNext("cudaGraphInstantiate", cudaErrorNotSupported);
  const int64_t before = GraphLaunches();
  EXPECT_EQ(Step({4, 5, 6}), Rows({4, 5, 6}));
  EXPECT_EQ(Step({7, 8, 9}), Rows({7, 8, 9}));
  EXPECT_EQ(GraphLaunches(), before);
}

TEST_F(CudaStepTest, AnArgumentErrorLeavesTheRestOfTheStep) {
  device_->BeginStep(*stream_);
  ASSERT_TRUE(device_->Embed(*stream_, *table_, {1, 2, 3}, out_).ok());
  EXPECT_FALSE(device_->Embed(*stream_, *table_, {50, 0, 0}, out_).ok());
  ASSERT_TRUE(device_->GatherRows(*stream_, out_, {2, 1, 0}, copy_).ok());
  device_->EndStep(*stream_);
  EXPECT_EQ(Read(), Rows({1, 2, 3}));
}

}  // namespace
}  // namespace runahead
