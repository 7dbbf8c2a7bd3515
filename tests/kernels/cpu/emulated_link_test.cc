#include "kernels/cpu/emulated_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/cpu/manual_clock.h"

namespace runahead {
namespace {

constexpr absl::Duration kDefaultLatency = absl::Microseconds(10);

TEST(EmulatedLink, RefusesWhatNoLinkHas) {
  for (const double gbps : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(EmulatedLink::Create({.gbps = gbps}).status().code(), absl::StatusCode::kInvalidArgument) << gbps;
    EXPECT_EQ((*EmulatedLink::Create({.gbps = 1}))->SetRate(gbps).code(), absl::StatusCode::kInvalidArgument) << gbps;
  }
  const absl::Status latency = EmulatedLink::Create({.gbps = 1, .latency = absl::Seconds(-1)}).status();
  EXPECT_EQ(latency.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(latency.message()), testing::HasSubstr("latency"));
}

TEST(EmulatedLink, EachDirectionHasTheWholeRate) {
  std::vector<absl::Duration> ends;
  const auto wait = [&](absl::Time until) { ends.push_back(until - absl::UnixEpoch()); };
  const auto link = *EmulatedLink::Create({.gbps = 8, .clock = {[] { return absl::UnixEpoch(); }, wait, wait}});
  std::vector<std::byte> from(100'000), to(100'000);
  const absl::Duration takes = kDefaultLatency + absl::Microseconds(100);
  link->CopyToDevice(from.data(), to.data(), from.size());
  link->CopyToHost(from.data(), to.data(), from.size());
  link->CopyToHost(from.data(), to.data(), from.size());
  EXPECT_THAT(ends, testing::ElementsAre(takes, takes, 2 * takes));
}

// A device whose copies take time on a clock of the test, which also has its link.
class LinkedDeviceTest : public testing::Test {
 protected:
  BufferRef Bytes(MemoryKind kind) { return BufferRef::Whole(*device_->Allocate(1'000'000, kind)); }
  absl::Duration CopySeconds(const BufferRef& from, const BufferRef& to) {
    return manual_.Time([&] {
      EXPECT_TRUE(device_->Copy(*stream_, from, to).ok());
      EXPECT_TRUE(device_->Record(*stream_).Wait().ok());
    });
  }

  ManualClock manual_;
  const std::shared_ptr<EmulatedLink> link_ = *EmulatedLink::Create({.gbps = 8, .clock = manual_.clock()});
  const std::shared_ptr<Device> device_ = *NewCpuDevice({.emulated_link = link_});
  const std::unique_ptr<Stream> stream_ = device_->NewStream("copies");
};

TEST_F(LinkedDeviceTest, CopiesBetweenHostAndDeviceTakeTheTimeOfTheLink) {
  EXPECT_TRUE(device_->has_host_link());
  EXPECT_FALSE((*NewCpuDevice({}))->has_host_link());
  const BufferRef host = Bytes(MemoryKind::kHost), device = Bytes(MemoryKind::kDevice);
  const absl::Duration takes = kDefaultLatency + absl::Milliseconds(1);
  EXPECT_EQ(CopySeconds(host, device), takes);
  EXPECT_EQ(CopySeconds(device, host), takes);
  EXPECT_EQ(CopySeconds(host.Slice(0, 64), device.Slice(0, 64)), kDefaultLatency + absl::Nanoseconds(64));
  EXPECT_EQ(CopySeconds(host, Bytes(MemoryKind::kHost)), absl::ZeroDuration());
  EXPECT_EQ(CopySeconds(device, Bytes(MemoryKind::kDevice)), absl::ZeroDuration());
  const auto other = *NewCpuDevice({});
  EXPECT_EQ(CopySeconds(BufferRef::Whole(*other->Allocate(1'000'000, MemoryKind::kDevice)), device), takes)
      << "what is another device's comes over the link";
}

TEST_F(LinkedDeviceTest, ItsOwnerChangesTheRateWhileItRuns) {
  const BufferRef host = Bytes(MemoryKind::kHost), device = Bytes(MemoryKind::kDevice);
  EXPECT_EQ(CopySeconds(host, device), kDefaultLatency + absl::Milliseconds(1));
  ASSERT_TRUE(link_->SetRate(4).ok());
  EXPECT_EQ(CopySeconds(host, device), kDefaultLatency + absl::Milliseconds(2));
  EXPECT_EQ(CopySeconds(device, host), kDefaultLatency + absl::Milliseconds(2));
}

}  // namespace
}  // namespace runahead
