// Streams, events and steps: what every device must do.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/monotonic.h"
#include "tests/kernels/cpu/random_weights.h"
#include "tests/kernels/repeated_step.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/patience.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

class DeviceStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto device = OpenTestDevice(DType::kF32, 1);
    RUNAHEAD_SKIP_WITHOUT_DEVICE(device.status());
    device_ = *device;
    stream_ = device_->NewStream("a");
    other_ = device_->NewStream("b");
  }

  BufferRef Host(size_t bytes, int value = 0) {
    const BufferRef ref = BufferRef::Whole(*device_->Allocate(bytes, MemoryKind::kHost));
    std::memset(ref.data(), value, bytes);
    return ref;
  }
  BufferRef OnDevice(size_t bytes) { return BufferRef::Whole(*device_->Allocate(bytes, MemoryKind::kDevice)); }
  void ExpectAll(const BufferRef& host, int value) {
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(host.data()), host.size),
              std::string(host.size, static_cast<char>(value)));
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_, other_;
};

TEST_F(DeviceStreamTest, CallsRunInOrderAndRecordFiresAfterThem) {
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) device_->Call(*stream_, [&order, i] { order.push_back(i); });
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(DeviceStreamTest, WaitsForAHostEventWithoutHoldingTheThread) {
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

// A worker has some streams that wait for what comes over its links, and copies that they wait for go on beside them.
TEST_F(DeviceStreamTest, StreamsThatWaitDoNotHoldUpOthers) {
  std::vector<std::unique_ptr<Stream>> waiting, going_on;
  for (int i = 0; i < 12; ++i) {
    waiting.push_back(device_->NewStream("waits"));
    going_on.push_back(device_->NewStream("goes on"));
  }
  EventSource source;  // the streams go after it: where something fails they do not wait any longer
  std::vector<Event> ends;
  for (const auto& stream : waiting) {
    device_->WaitFor(*stream, source.event());
    ends.push_back(device_->Record(*stream));
  }
  for (int i = 0; i < 12; ++i) {
    const BufferRef from = Host(1 << 16, i), there = OnDevice(1 << 16), back = Host(1 << 16);
    ASSERT_TRUE(device_->Copy(*going_on[i], from, there).ok());
    const Event copied = device_->Record(*going_on[i]);
    device_->WaitFor(*other_, copied);
    ASSERT_TRUE(device_->Copy(*other_, there, back).ok());
    ASSERT_TRUE(device_->Record(*other_).Wait(testing::LongestWait()).ok());
    ExpectAll(back, i);
  }
  for (const Event& end : ends) EXPECT_FALSE(end.fired());
  source.Fire(absl::OkStatus());
  for (const Event& end : ends) EXPECT_TRUE(end.Wait().ok());
}

TEST_F(DeviceStreamTest, WaitsForAnotherStream) {
  EventSource source;
  const BufferRef from = Host(1 << 16, 3), there = OnDevice(1 << 16), back = Host(1 << 16);
  device_->WaitFor(*stream_, source.event());
  ASSERT_TRUE(device_->Copy(*stream_, from, there).ok());
  const Event first = device_->Record(*stream_);
  device_->WaitFor(*other_, first);
  ASSERT_TRUE(device_->Copy(*other_, there, back).ok());
  const Event second = device_->Record(*other_);
  EXPECT_FALSE(second.fired());
  source.Fire(absl::OkStatus());
  EXPECT_TRUE(second.Wait().ok());
  EXPECT_TRUE(first.Wait().ok());
  ExpectAll(back, 3);
}

TEST_F(DeviceStreamTest, WaitsForAnEventOfAStreamThatIsGone) {
  const Event last = device_->Record(*other_);
  other_.reset();  // waits for it
  EXPECT_TRUE(last.fired());
  device_->WaitFor(*stream_, last);
  EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
}

TEST_F(DeviceStreamTest, AMarkHasItsTimeOnceWhatIsBeforeItHasRun) {
  EventSource source;
  const absl::Time before = MonotonicNow();
  const auto first = device_->MarkTime(*stream_);
  device_->WaitFor(*stream_, source.event());
  const auto second = device_->MarkTime(*stream_);
  const Event done = device_->Record(*stream_);
  EXPECT_FALSE(second->time().has_value());
  const absl::Time fired = MonotonicNow();
  source.Fire(absl::OkStatus());
  ASSERT_TRUE(done.Wait().ok());
  ASSERT_TRUE(first->time().has_value() && second->time().has_value());
  // Two clocks may differ by some microseconds; a machine that is busy does not make times earlier.
  EXPECT_GE(*first->time(), before - absl::Milliseconds(1));
  EXPECT_GE(*second->time(), fired - absl::Milliseconds(1));
  EXPECT_GE(*second->time(), *first->time());
  stream_.reset();
  EXPECT_TRUE(second->time().has_value()) << "also when the stream is gone";
}

TEST_F(DeviceStreamTest, CopiesAllPartsInOneCall) {
  const BufferRef from = Host(3 << 16, 0), there = OnDevice(3 << 16), back = Host(3 << 16);
  for (size_t i = 0; i < from.size; ++i) from.data()[i] = static_cast<std::byte>(i * 7 + i / 256);
  const auto part = [](const BufferRef& ref, size_t i, size_t size) { return ref.Slice(i << 16, size); };
  ASSERT_TRUE(device_
                  ->CopyAll(*stream_, {{part(from, 2, 1 << 16), part(there, 0, 1 << 16)},
                                       {part(from, 0, 77), part(there, 1, 77)},
                                       {part(from, 1, 0), part(there, 2, 0)}})
                  .ok());
  ASSERT_TRUE(device_
                  ->CopyAll(*stream_, {{part(there, 1, 77), part(back, 0, 77)},
                                       {part(there, 0, 1 << 16), part(back, 2, 1 << 16)}})
                  .ok());
  EXPECT_TRUE(device_->CopyAll(*stream_, {}).ok());
  EXPECT_EQ(device_->CopyAll(*stream_, {{part(from, 0, 8), part(there, 0, 9)}}).code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(device_->Record(*stream_).Wait().ok());
  EXPECT_EQ(std::memcmp(back.data(), from.data(), 77), 0);
  EXPECT_EQ(std::memcmp(part(back, 2, 1).data(), part(from, 2, 1).data(), 1 << 16), 0);
}

TEST_F(DeviceStreamTest, HoldsBuffersUntilTheCopyHasRun) {
  EventSource source;
  device_->WaitFor(*stream_, source.event());
  BufferRef from = Host(1 << 16, 7), to = OnDevice(1 << 16);
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
  ExpectAll(back, 7);
}

// Tensors that go as soon as an op is enqueued live until it has run, and no longer.
TEST_F(DeviceStreamTest, OpsHoldWhatTheyTouchUntilTheyHaveRun) {
  constexpr int64_t kRows = 3, kDim = 64, kCols = 2 * kDim;
  const AttentionShape shape{.heads = 2, .kv_heads = 1, .head_dim = kDim, .kv_dtype = DType::kF32, .scale = 0.125f};
  std::vector<std::weak_ptr<Buffer>> given;
  const auto tensor = [&](int64_t rows, int64_t cols) {
    const BufferRef ref = OnDevice(rows * cols * sizeof(float));
    given.push_back(ref.buffer);
    return MakeTensor(ref, DType::kF32, rows, cols);
  };
  const auto layer = [&] { return tensor(kRows, 2 * kDim).ref; };
  const auto prompt = [&] { return *device_->MakeKvTable(*stream_, KvLayout::OnePage(kRows, kRows)); };
  const auto step = [&] { return *device_->MakeKvTable(*stream_, KvLayout::OnePage(1, kRows)); };
  const auto partials = [&](const KvTable& table) { return tensor(table.pieces(), 2 * (kDim + 1)); };
  const std::pair<const char*, std::function<absl::Status()>> ops[] = {
      {"HeadNorm", [&] { return device_->HeadNorm(*stream_, tensor(kRows, kCols), kDim, tensor(1, kDim), 1e-5f); }},
      {"Rope",
       [&] {
         const Rotation rotation{.table = tensor(kRows, kDim)};
         return device_->Rope(*stream_, tensor(kRows, kCols), kDim, rotation, *prompt(), 0);
       }},
      {"StoreQkv",
       [&] {
         const Tensor qkv = tensor(kRows, 2 * kCols), q = tensor(kRows, kCols);
         return device_->StoreQkv(*stream_, qkv, shape, q, *prompt(), 0, layer());
       }},
      {"Attention",
       [&] {
         const Tensor q = tensor(kRows, kCols), out = tensor(kRows, kCols);
         return device_->Attention(*stream_, q, shape, *prompt(), layer(), out);
       }},
      {"AttendPieces",
       [&] {
         const auto table = step();
         return device_->AttendPieces(*stream_, tensor(1, kCols), shape, *table, layer(), partials(*table));
       }},
      {"MergePieces",
       [&] {
         const auto table = step();
         return device_->MergePieces(*stream_, partials(*table), shape, *table, tensor(1, kCols));
       }},
      {"GatedActivate",
       [&] {
         const Tensor gate_up = tensor(kRows, 2 * kCols);
         return device_->GatedActivate(*stream_, gate_up, Activation::kSilu, tensor(kRows, kCols));
       }},
      {"Activate",
       [&] { return device_->Activate(*stream_, tensor(kRows, kCols), Activation::kRelu, tensor(kRows, kCols)); }},
      {"GatherRows", [&] { return device_->GatherRows(*stream_, tensor(kRows, kCols), {1}, tensor(1, kCols)); }},
      {"ExchangeRows",
       [&] {
         return device_->ExchangeRows(*stream_, tensor(kRows, kCols), {{1, 0}}, tensor(kRows, kCols));
       }},
  };
  for (const auto& [name, enqueue] : ops) {
    SCOPED_TRACE(name);
    const EventSource source;
    device_->WaitFor(*stream_, source.event());
    given.clear();
    ASSERT_EQ(enqueue(), absl::OkStatus());
    const Event done = device_->Record(*stream_);
    for (size_t i = 0; i < given.size(); ++i) EXPECT_FALSE(given[i].expired()) << i;
    source.Fire(absl::OkStatus());
    ASSERT_TRUE(done.Wait().ok());
    for (size_t i = 0; i < given.size(); ++i) EXPECT_TRUE(given[i].expired()) << i;
  }
}

TEST_F(DeviceStreamTest, DestroyingAStreamWaitsForWhatItHas) {
  EventSource source;
  std::atomic<bool> ran{false};
  device_->WaitFor(*stream_, source.event());
  device_->Call(*stream_, [&ran] { ran = true; });
  std::thread release([&source] { source.Fire(absl::OkStatus()); });
  stream_.reset();
  EXPECT_TRUE(ran);
  release.join();
}

class DeviceStepTest : public DeviceStreamTest {
 protected:
  void SetUp() override {
    DeviceStreamTest::SetUp();
    if (device_ != nullptr) step_ = std::make_unique<RepeatedStep>(*device_, *stream_);
  }

  std::unique_ptr<RepeatedStep> step_;
};

TEST_F(DeviceStepTest, EachComputesWithItsOwnArrays) {
  for (const std::vector<int32_t>& ids : {std::vector<int32_t>{1, 2, 3}, {4, 5, 6}, {49, 0, 7}, {1, 2, 3}}) {
    step_->Run(ids);
    EXPECT_EQ(step_->Read(), step_->Backwards(ids));
  }
}

TEST_F(DeviceStepTest, ManyInFlightKeepTheirArraysApart) {
  EventSource source;
  std::vector<BufferRef> results;
  device_->WaitFor(*stream_, source.event());
  for (int i = 0; i < 40; ++i) {
    step_->Run({i, i + 1, i + 2});
    results.push_back(Host(step_->copy().ref.size));
    ASSERT_TRUE(device_->Copy(*stream_, step_->copy().ref, results.back()).ok());
  }
  source.Fire(absl::OkStatus());
  ASSERT_TRUE(device_->Record(*stream_).Wait().ok());
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(step_->Floats(results[i]), step_->Backwards({i, i + 1, i + 2})) << i;
  }
}

// More than what streams keep for arrays at a time. The second time they have it from the first.
TEST_F(DeviceStepTest, LongArraysOfManyInFlightAreKeptApart) {
  constexpr int kSteps = 6;
  KvLayout many{
      .page_tokens = 1, .pages = std::vector<int32_t>(60'000), .sequences = {{.length = 60'000, .end = 60'000}}};
  for (const bool in_steps : {true, false, true, false}) {
    const EventSource source;
    std::vector<BufferRef> results;
    device_->WaitFor(*stream_, source.event());
    for (int i = 0; i < kSteps; ++i) {
      if (in_steps) device_->BeginStep(*stream_);
      ASSERT_TRUE(device_->MakeKvTable(*stream_, many).ok());
      step_->EmbedRows({i, i + 10, i + 20});
      step_->CopyBackwards();
      if (in_steps) device_->EndStep(*stream_);
      results.push_back(Host(step_->copy().ref.size));
      ASSERT_TRUE(device_->Copy(*stream_, step_->copy().ref, results.back()).ok());
    }
    source.Fire(absl::OkStatus());
    ASSERT_TRUE(device_->Record(*stream_).Wait().ok());
    for (int i = 0; i < kSteps; ++i) {
      EXPECT_EQ(step_->Floats(results[i]), step_->Backwards({i, i + 10, i + 20})) << i << ", in steps: " << in_steps;
    }
  }
}

TEST_F(DeviceStepTest, OtherMemoryIsAnotherStep) {
  for (int i = 0; i < 2; ++i) step_->Run({1, 2, 3});
  const Tensor before = step_->copy();
  step_->SetCopy(step_->NewTensor());
  step_->Run({7, 8, 9});
  EXPECT_EQ(step_->Read(), step_->Backwards({7, 8, 9}));
  step_->SetCopy(before);
  EXPECT_EQ(step_->Read(), step_->Backwards({1, 2, 3}));
}

TEST_F(DeviceStepTest, RecordWaitAndCallDivideAStep) {
  for (int i = 0; i < 3; ++i) {
    std::atomic<int> called{0};
    device_->BeginStep(*stream_);
    step_->EmbedRows({i, i + 1, i + 2});
    const Event middle = device_->Record(*stream_);
    EXPECT_TRUE(middle.Wait().ok()) << "what was enqueued before Record runs, though the step is not at its end";
    device_->Call(*stream_, [&called] { ++called; });
    device_->WaitFor(*stream_, device_->Record(*other_));
    step_->CopyBackwards();
    device_->EndStep(*stream_);
    EXPECT_EQ(step_->Read(), step_->Backwards({i, i + 1, i + 2}));
    EXPECT_EQ(called, 1);
  }
}

TEST_F(DeviceStepTest, LongArraysArriveToo) {
  std::vector<int32_t> ids(100000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % 50);
  const Tensor many =
      MakeTensor(OnDevice(ids.size() * RepeatedStep::kCols * 4), DType::kF32, ids.size(), RepeatedStep::kCols);
  for (int round = 0; round < 3; ++round) {
    device_->BeginStep(*stream_);
    step_->EmbedRows({5, 6, 7});
    ASSERT_TRUE(device_->Embed(*stream_, step_->table(), ids, false, many).ok());
    step_->CopyBackwards();
    device_->EndStep(*stream_);
    EXPECT_EQ(step_->Read(), step_->Backwards({5, 6, 7}));
  }
}

TEST_F(DeviceStepTest, AnArgumentErrorLeavesTheRestOfTheStep) {
  device_->BeginStep(*stream_);
  step_->EmbedRows({1, 2, 3});
  EXPECT_FALSE(device_->Embed(*stream_, step_->table(), {50, 0, 0}, false, step_->out()).ok());
  step_->CopyBackwards();
  device_->EndStep(*stream_);
  EXPECT_EQ(step_->Read(), step_->Backwards({1, 2, 3}));
}

// Steps of a decode, whose attention covers one row more each time: what is kept of a step must not be too old for it.
TEST(DeviceStepAttention, GrowingLengthsAreWhatTheyAreWithoutSteps) {
  const auto device = OpenTestDevice(DType::kBF16, 1);
  RUNAHEAD_SKIP_WITHOUT_DEVICE(device.status());
  constexpr int64_t kMost = 530, kHeads = 2, kHeadDim = 64;
  const AttentionShape shape{
      .heads = kHeads, .kv_heads = 1, .head_dim = kHeadDim, .kv_dtype = DType::kBF16, .scale = 0.2f};
  DeviceMemory memory(*device);
  const Tensor kv = memory.NewTensor(RandomFloats(kMost * 2 * kHeadDim, 1), kMost, DType::kBF16);
  const Tensor q = memory.NewTensor(RandomFloats(2 * kHeads * kHeadDim, 2), 2, DType::kBF16);
  const Tensor partials = memory.Empty(16, kHeads * (kHeadDim + 1));
  const auto attend = [&](int64_t length, const Tensor& out) {
    KvLayout layout{.page_tokens = 1, .pages = std::vector<int32_t>(kMost), .sequences = {}};
    std::iota(layout.pages.begin(), layout.pages.end(), 0);
    for (const int64_t own : {length, length / 2}) layout.sequences.push_back({.length = own, .end = own});
    const auto table = memory.device().MakeKvTable(memory.stream(), std::move(layout));
    ASSERT_TRUE(table.ok()) << table.status();
    const Tensor in = partials.Rows(0, (*table)->pieces());
    ASSERT_TRUE(memory.device().AttendPieces(memory.stream(), q, shape, **table, kv.ref, in).ok());
    ASSERT_TRUE(memory.device().MergePieces(memory.stream(), in, shape, **table, out).ok());
  };
  const Tensor in_steps = memory.Empty(2, kHeads * kHeadDim, DType::kBF16);
  const Tensor alone = memory.Empty(2, kHeads * kHeadDim, DType::kBF16);
  for (const int64_t length : {254, 255, 256, 257, 258, 259, 511, 512, 513, 514, 256}) {
    memory.device().BeginStep(memory.stream());
    attend(length, in_steps);
    memory.device().EndStep(memory.stream());
    attend(length, alone);
    EXPECT_EQ(memory.Read(in_steps), memory.Read(alone)) << length;
  }
}

}  // namespace
}  // namespace runahead
