// Streams, events and steps of the CUDA device, over an emulated GPU: what only it can tell. The rest is in
// kernels/device_stream_test.
#include <gtest/gtest.h>

#include <thread>

#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/repeated_step.h"
#include "tests/testing/cuda_emulation/control.h"

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

TEST_F(CudaStreamTest, EventsCarryWhatOtherStreamsWaitForOnTheDevice) {
  EXPECT_NE(device_->Record(*stream_).native(), nullptr);
}

TEST_F(CudaStreamTest, LetsGoOfBuffersAlsoWhereNobodyRecords) {
  const int before = CountLiveObjects().device_allocations;
  for (int i = 0; i < 2000; ++i) {
    const BufferRef from = Gpu(256), to = Gpu(256);
    ASSERT_TRUE(device_->Copy(*stream_, from, to).ok());
  }
  while (CountLiveObjects().device_allocations > before + 300) std::this_thread::yield();
}

TEST_F(CudaStreamTest, WhatACallHoldsIsFreedOutsideTheCall) {
  // The emulation aborts where CUDA is called from within a call, as freeing GPU memory there would.
  auto held = std::make_shared<BufferRef>(Gpu(256));
  const std::weak_ptr<BufferRef> alive = held;
  device_->Call(*stream_, [held = std::move(held)] {});
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
  EXPECT_TRUE(alive.expired());
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

class CudaStepTest : public CudaStreamTest {
 protected:
  void ExpectStep(const std::vector<int32_t>& ids) {
    step_.Run(ids);
    EXPECT_EQ(step_.Read(), step_.Backwards(ids));
  }

  RepeatedStep step_{*device_, *stream_};
};

TEST_F(CudaStepTest, AStepThatComesAgainIsAGraphAndComputesWithItsOwnArrays) {
  const int64_t before = GraphLaunches();
  ExpectStep({1, 2, 3});
  EXPECT_EQ(GraphLaunches(), before) << "the first time libraries load what they need";
  ExpectStep({4, 5, 6});
  EXPECT_EQ(GraphLaunches(), before + 1);
  ExpectStep({49, 0, 7});
  EXPECT_EQ(GraphLaunches(), before + 2);
}

TEST_F(CudaStepTest, AnotherShapeIsAnotherGraph) {
  for (int i = 0; i < 2; ++i) ExpectStep({1, 2, 3});
  const int64_t before = GraphLaunches();
  step_.SetCopy(step_.NewTensor());
  ExpectStep({3, 2, 1});
  EXPECT_EQ(GraphLaunches(), before);
}

TEST_F(CudaStepTest, WhatCannotBeRecordedRunsAsItIs) {
  ExpectStep({1, 2, 3});
  cuda_emulation::FailNext("cudaGraphInstantiate", cudaErrorNotSupported);
  const int64_t before = GraphLaunches();
  ExpectStep({4, 5, 6});
  ExpectStep({7, 8, 9});
  EXPECT_EQ(GraphLaunches(), before);
}

}  // namespace
}  // namespace runahead
