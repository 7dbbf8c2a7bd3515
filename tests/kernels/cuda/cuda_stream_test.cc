// Streams, events and steps of the CUDA device, over an emulated GPU: what only it can tell. The rest is in
// kernels/device_stream_test.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_params.h"
#include "kernels/cuda/step_graphs.h"
#include "tests/kernels/cpu/random_weights.h"
#include "tests/kernels/repeated_step.h"
#include "tests/testing/await.h"
#include "tests/testing/cuda_emulation/control.h"
#include "tests/testing/patience.h"

namespace runahead {
namespace {

using cuda_emulation::CountLiveObjects;
using cuda_emulation::GraphLaunches;
using cuda_emulation::KernelLaunches;

class CudaStreamTest : public ::testing::Test {
 protected:
  BufferRef Host(size_t bytes) { return BufferRef::Whole(*device_->Allocate(bytes, MemoryKind::kHost)); }
  BufferRef Gpu(size_t bytes) { return BufferRef::Whole(*device_->Allocate(bytes, MemoryKind::kDevice)); }

  const std::shared_ptr<Device> device_ = *NewCudaDevice({.compute_dtype = DType::kF32, .memory_budget = 64 << 20});
  std::unique_ptr<Stream> stream_ = device_->NewStream("a");
  std::unique_ptr<Stream> other_ = device_->NewStream("b");
};

TEST_F(CudaStreamTest, EventsCarryWhatOtherStreamsWaitForOnTheDevice) {
  const EventSource source;
  device_->WaitFor(*stream_, source.event());  // one that has fired needs none
  EXPECT_NE(device_->Record(*stream_).native(), nullptr);
}

TEST_F(CudaStreamTest, AnEventThatHasFiredKeepsNothingOfTheGpu) {
  const int before = CountLiveObjects().events;
  const Event event = device_->Record(*stream_);
  ASSERT_TRUE(event.Wait().ok());
  EXPECT_TRUE(testing::Await("its stream's thread is through with the event",
                             [&] { return CountLiveObjects().events <= before; }));
}

TEST_F(CudaStreamTest, LetsGoOfBuffersAlsoWhereNobodyRecords) {
  const int before = CountLiveObjects().device_allocations;
  for (int i = 0; i < 2000; ++i) {
    const BufferRef from = Gpu(256), to = Gpu(256);
    ASSERT_TRUE(device_->Copy(*stream_, from, to).ok());
  }
  EXPECT_TRUE(testing::Await("all but 300 of the buffers are let go of",
                             [&] { return CountLiveObjects().device_allocations <= before + 300; }));
}

// A step of KVPR makes tables for all its chunks while copies of megabytes are on their way.
TEST_F(CudaStreamTest, ArraysOfCallsThatFollowEachOtherComeByOneKernelAndNoCopy) {
  const int64_t copies = cuda_emulation::Copies(), kernels = KernelLaunches();
  std::vector<std::shared_ptr<const KvTable>> tables;
  for (int i = 0; i < 9; ++i) tables.push_back(*device_->MakeKvTable(*stream_, KvLayout::OnePage(1, 300 + i)));
  EXPECT_EQ(KernelLaunches(), kernels) << "not before something reads them";
  const Tensor x = MakeTensor(Gpu(8 * 4), DType::kF32, 1, 8),
               angles = MakeTensor(Gpu(512 * 8 * 4), DType::kF32, 512, 8);
  ASSERT_TRUE(device_->Rope(*stream_, x, 8, {.table = angles}, *tables.back(), 0).ok());
  ASSERT_TRUE(device_->Record(*stream_).Wait().ok());
  EXPECT_EQ(KernelLaunches(), kernels + 2);
  EXPECT_EQ(cuda_emulation::Copies(), copies);
}

TEST_F(CudaStreamTest, WhatACallHoldsIsFreedOutsideTheCall) {
  // The emulation aborts where CUDA is called from within a call, as freeing GPU memory there would.
  auto held = std::make_shared<BufferRef>(Gpu(256));
  const std::weak_ptr<BufferRef> alive = held;
  device_->Call(*stream_, [held = std::move(held)] {});
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
  EXPECT_TRUE(alive.expired());
}

// Events of the host fire before the stream comes to where it waits for them.
TEST_F(CudaStreamTest, AFlagIsNobodyElsesBeforeTheStreamHasPassedIt) {
  const EventSource first, second, others;
  device_->WaitFor(*stream_, first.event());
  device_->WaitFor(*stream_, second.event());
  const Event passed = device_->Record(*stream_);
  second.Fire(absl::OkStatus());
  device_->WaitFor(*other_, others.event());
  first.Fire(absl::OkStatus());
  EXPECT_TRUE(passed.Wait(testing::LongestWait()).ok()) << "the other stream's wait took the flag that was raised";
  others.Fire(absl::OkStatus());
}

TEST_F(CudaStreamTest, AWorkspaceThatGrowsIsKeptUntilWhatUsesItHasRun) {
  const auto device = *NewCudaDevice({.compute_dtype = DType::kBF16});
  const auto stream = device->NewStream("c");
  const RandomWeights words(WeightType::kF32, 40, 32, 1);
  const auto weights = *device->LoadWeights(words.Source(), kUsePrefill);
  const auto tensor = [&](int64_t rows, int64_t cols) {
    return MakeTensor(BufferRef::Whole(*device->Allocate(rows * cols * 2, MemoryKind::kDevice)), DType::kBF16, rows,
                      cols);
  };
  const Tensor x = tensor(64, 32), out = tensor(64, 40);
  const LinearOptions options{.activation = Activation::kSilu};  // applied to sums that pass through the workspace
  const EventSource source;
  device->WaitFor(*stream, source.event());
  ASSERT_TRUE(device->Linear(*stream, x.Rows(0, 1), weights, options, out.Rows(0, 1)).ok());
  const int before = CountLiveObjects().device_allocations;
  ASSERT_TRUE(device->Linear(*stream, x, weights, options, out).ok());
  EXPECT_EQ(CountLiveObjects().device_allocations, before + 1);
  source.Fire(absl::OkStatus());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  EXPECT_EQ(CountLiveObjects().device_allocations, before);
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

TEST_F(CudaStepTest, ArraysThatFindNoPinnedMemoryAreRefusedAndTheNextStepsRun) {
  cuda_emulation::FailNext("cudaHostRegister", cudaErrorNotSupported);
  cuda_emulation::FailNext("cudaHostAlloc", cudaErrorMemoryAllocation);
  device_->BeginStep(*stream_);
  const absl::Status status = device_->Embed(*stream_, step_.table(), {1, 2, 3}, false, step_.out());
  device_->EndStep(*stream_);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  for (int i = 0; i < 3; ++i) ExpectStep({i, i + 1, i + 2});
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

// What was enqueued before is given to the GPU at once: it does not wait for what the step waits for, and is done when
// the event says so.
TEST_F(CudaStepTest, RecordWaitAndCallGiveTheGpuWhatIsBeforeThem) {
  const std::function<void(const Event&)> divide[] = {
      [&](const Event&) { device_->Record(*stream_); },
      [&](const Event& event) { device_->WaitFor(*stream_, event); },
      [&](const Event&) { device_->Call(*stream_, [] {}); },
  };
  for (const auto& by : divide) {
    const EventSource source;
    const int64_t before = KernelLaunches() + GraphLaunches();
    device_->BeginStep(*stream_);
    step_.EmbedRows({1, 2, 3});
    EXPECT_EQ(KernelLaunches() + GraphLaunches(), before);
    by(source.event());
    EXPECT_EQ(KernelLaunches() + GraphLaunches(), before + 1);
    source.Fire(absl::OkStatus());
    step_.CopyBackwards();
    device_->EndStep(*stream_);
    EXPECT_EQ(step_.Read(), step_.Backwards({1, 2, 3}));
  }
}

TEST_F(CudaStepTest, KeepsTheGraphsOfTheLastSteps) {
  constexpr int kMore = 3;
  const int before = CountLiveObjects().graph_execs;
  std::vector<Tensor> copies;
  for (size_t i = 0; i < StepGraphs::kMost + kMore; ++i) copies.push_back(step_.NewTensor());
  const auto run = [&](const Tensor& copy) {
    step_.SetCopy(copy);
    ExpectStep({4, 5, 6});
  };
  for (const Tensor& copy : copies) {
    for (int i = 0; i < 2; ++i) run(copy);
  }
  EXPECT_EQ(CountLiveObjects().graph_execs, before + static_cast<int>(StepGraphs::kMost));
  int64_t launches = GraphLaunches();
  for (auto copy = copies.rbegin(); copy != copies.rend() - kMore; ++copy) run(*copy);
  EXPECT_EQ(GraphLaunches(), launches + static_cast<int64_t>(StepGraphs::kMost));
  launches = GraphLaunches();
  for (int i = 0; i < 2; ++i) {  // forgotten, and seen for the first time again
    for (int first = 0; first < kMore; ++first) run(copies[first]);
    EXPECT_EQ(GraphLaunches(), launches + i * kMore);
  }
}

// A recorded step holds as long as addresses do.
TEST(CudaParams, WhatLiesBehindAnArrayThatGrowsByALittleStaysWhereItIs) {
  const auto behind = [](size_t count) {
    CudaParams params;
    params.Add(std::vector<int64_t>(count));
    return params.Add(std::vector<int32_t>{1});
  };
  EXPECT_EQ(behind(65), behind(128));
  EXPECT_EQ(behind(0), behind(8));
}

}  // namespace
}  // namespace runahead
