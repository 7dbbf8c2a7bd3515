// Streams, events and steps of the CUDA device, over an emulated GPU: what only it can tell. The rest is in
// kernels/device_stream_test.
#include <gtest/gtest.h>

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

TEST_F(CudaStepTest, WhatCannotBeRecordedRunsAsItIs) {
  Step({1, 2, 3});
  cuda_emulation::FailNext("cudaGraphInstantiate", cudaErrorNotSupported);
  const int64_t before = GraphLaunches();
  EXPECT_EQ(Step({4, 5, 6}), Rows({4, 5, 6}));
  EXPECT_EQ(Step({7, 8, 9}), Rows({7, 8, 9}));
  EXPECT_EQ(GraphLaunches(), before);
}

}  // namespace
}  // namespace runahead
