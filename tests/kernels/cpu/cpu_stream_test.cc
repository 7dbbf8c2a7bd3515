// Streams through the device: order, waiting, what they hold. (No op of oneDNN, so that tsan can watch.)
#include "kernels/cpu/cpu_stream.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cpu/cpu_device.h"

namespace runahead {
namespace {

std::shared_ptr<Device> MakeDevice() {
  return *NewCpuDevice({.threads = 2});
}

BufferRef Bytes(Device& device, size_t bytes, MemoryKind kind = MemoryKind::kDevice) {
  return BufferRef::Whole(*device.Allocate(bytes, kind));
}

TEST(CpuStream, AStreamRunsInOrder) {
  auto device = MakeDevice();
  auto stream = device->NewStream("order");
  std::vector<int> seen;  // written by the stream's thread only
  for (int i = 0; i < 100; ++i) device->Call(*stream, [&seen, i] { seen.push_back(i); });
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  ASSERT_EQ(seen.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[i], i);
}

TEST(CpuStream, StreamsWaitForEventsAndRunBesideEachOther) {
  auto device = MakeDevice();
  auto first = device->NewStream("first"), second = device->NewStream("second");
  EventSource gate;
  int value = 0;
  device->WaitFor(*first, gate.event());
  device->Call(*first, [&] { value = 1; });
  const Event one = device->Record(*first);
  device->WaitFor(*second, one);
  device->Call(*second, [&] { value = value * 10 + 2; });
  const Event two = device->Record(*second);
  auto third = device->NewStream("third");
  EXPECT_TRUE(device->Record(*third).Wait().ok());  // does not stand behind the others
  EXPECT_FALSE(one.fired());
  EXPECT_FALSE(two.fired());
  gate.Fire(absl::CancelledError("any status lets the stream go on"));
  EXPECT_TRUE(two.Wait().ok());
  EXPECT_EQ(value, 12);
}

// The nice value of the stream's thread.
int NiceOf(Device& device, Stream& stream) {
  int nice = 0;
  device.Call(stream, [&nice] { nice = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); });
  EXPECT_TRUE(device.Record(stream).Wait().ok());
  return nice;
}

TEST(CpuStream, StepsBackToComputeAndNotToCopy) {
  auto device = *NewCpuDevice({.nice = 3, .emulated_link = *EmulatedLink::Create({.gbps = 100})});
  const int own = getpriority(PRIO_PROCESS, static_cast<id_t>(gettid()));
  auto copies = device->NewStream("copies"), computes = device->NewStream("computes");
  const BufferRef host = Bytes(*device, 64, MemoryKind::kHost), there = Bytes(*device, 64);
  std::memset(host.data(), 0, 64);
  ASSERT_TRUE(device->Copy(*copies, host, there).ok());
  device->WaitFor(*computes, device->Record(*copies));
  EXPECT_EQ(NiceOf(*device, *copies), own);
  const Tensor x = MakeTensor(there, DType::kF32, 1, 16);
  for (int time = 0; time < 2; ++time) {
    ASSERT_TRUE(device->Scale(*computes, x, 2, false, x).ok());
    EXPECT_EQ(NiceOf(*device, *computes), own + 3);
  }
  EXPECT_EQ(NiceOf(*device, *copies), own);
}

TEST(CpuStream, DestroyingAStreamRunsWhatWasEnqueued) {
  auto device = MakeDevice();
  int ran = 0;
  Event last;
  {
    auto stream = device->NewStream("short");
    for (int i = 0; i < 10; ++i) device->Call(*stream, [&] { ++ran; });
    last = device->Record(*stream);
  }
  EXPECT_EQ(ran, 10);
  EXPECT_TRUE(last.fired());
}

TEST(CpuStream, HoldsBuffersUntilTheOperationHasRun) {
  auto device = MakeDevice();
  auto stream = device->NewStream("hold");
  EventSource gate;
  device->WaitFor(*stream, gate.event());
  BufferRef from = Bytes(*device, 8), to = Bytes(*device, 8);
  std::memset(from.data(), 7, 8);
  std::weak_ptr<Buffer> watch = from.buffer;
  ASSERT_TRUE(device->Copy(*stream, from, to).ok());
  from = {};
  EXPECT_FALSE(watch.expired());
  gate.Fire(absl::OkStatus());
  ASSERT_TRUE(device->Record(*stream).Wait().ok());
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(to.data()[7], std::byte{7});
}

// As on a GPU: ops and copies are launches, and everything is a call.
TEST(CpuStream, ChargesForCallsAndLaunches) {
  struct Spent {
    std::atomic<int> calls{0}, launches{0};
  };
  const auto spent = std::make_shared<Spent>();
  CpuDeviceOptions options{.emulated_link = *EmulatedLink::Create({.gbps = 1000})};
  options.charges = {.call = absl::Seconds(1), .launch = absl::Seconds(2), .spend = [spent](absl::Duration duration) {
                       ++(duration == absl::Seconds(1) ? spent->calls : spent->launches);
                     }};
  const auto device = *NewCpuDevice(options);
  const auto stream = device->NewStream("charged");
  const Tensor x = MakeTensor(Bytes(*device, 32), DType::kF32, 1, 8);
  const auto expect = [&](int calls, int launches) {
    ASSERT_TRUE(device->Record(*stream).Wait().ok());
    EXPECT_EQ(spent->calls.exchange(0), calls + 1) << "the record";
    EXPECT_EQ(spent->launches.exchange(0), launches);
  };
  ASSERT_TRUE(device->Activate(*stream, x, Activation::kRelu, x).ok());
  device->MarkTime(*stream);
  device->WaitFor(*stream, Event());  // has fired: there is nothing to wait for
  ASSERT_TRUE(
      device->CopyAll(*stream, {{x.ref.Slice(0, 8), x.ref.Slice(8, 8)}, {x.ref.Slice(16, 8), x.ref.Slice(24, 8)}})
          .ok());
  expect(3, 2);
  device->BeginStep(*stream);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(device->Activate(*stream, x, Activation::kRelu, x).ok());
  device->EndStep(*stream);
  expect(1, 1);
}

TEST(CpuStream, PacedCopiesArriveWhole) {
  auto device = *NewCpuDevice({.emulated_link = *EmulatedLink::Create({.gbps = 100})});
  auto up = device->NewStream("up"), down = device->NewStream("down");
  const size_t bytes = (1 << 20) + 13;
  BufferRef host = Bytes(*device, bytes, MemoryKind::kHost), on_device = Bytes(*device, bytes);
  BufferRef back = Bytes(*device, bytes, MemoryKind::kHost);
  for (size_t i = 0; i < bytes; ++i) host.data()[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(device->Copy(*up, host, on_device).ok());
  device->WaitFor(*down, device->Record(*up));
  ASSERT_TRUE(device->Copy(*down, on_device, back).ok());
  ASSERT_TRUE(device->Record(*down).Wait().ok());
  EXPECT_EQ(std::memcmp(host.data(), back.data(), bytes), 0);
  EXPECT_EQ(device->Copy(*up, host, on_device.Slice(0, 5)).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace runahead
