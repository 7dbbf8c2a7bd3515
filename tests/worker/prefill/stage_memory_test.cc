#include "worker/prefill/stage_memory.h"

#include <gtest/gtest.h>

#include "scheduler/placement/overtaking.h"
#include "tests/testing/fake_device.h"
#include "worker/prefill/layer_ring.h"

namespace runahead {
namespace {

using Region = StageMemory::Region;
constexpr Region kRegions[] = {StageMemory::kFirstHalf, StageMemory::kSecondHalf, StageMemory::kInterleaved};

TEST(StageMemory, RegionsLieInTheMemoryAndApart) {
  testing::FakeDevice device;
  for (const size_t bytes : {2, 1000, 4096, 100007}) {
    const StageMemory memory(bytes, *StageMemory::Allocate(bytes, device));
    for (const Region region : kRegions) {
      const BufferRef whole = memory.Of(region);
      EXPECT_LE(whole.offset + whole.size, whole.buffer->size()) << bytes;
      for (const Region other : kRegions) {
        if (region >= other) continue;
        EXPECT_LE(whole.offset + whole.size, memory.Of(other).offset) << bytes;
      }
    }
  }
}

TEST(StageMemory, ARegionIsTakenOnce) {
  testing::FakeDevice device;
  StageMemory memory(1000, *StageMemory::Allocate(1000, device));
  EXPECT_EQ(memory.TakeHalf(), StageMemory::kFirstHalf);
  EXPECT_EQ(memory.TakeInterleaved(), StageMemory::kInterleaved);
  EXPECT_EQ(memory.TakeInterleaved(), std::nullopt);
  EXPECT_TRUE(memory.half_free());
  EXPECT_EQ(memory.TakeHalf(), StageMemory::kSecondHalf);
  EXPECT_FALSE(memory.half_free());
  EXPECT_EQ(memory.TakeHalf(), std::nullopt);
  EXPECT_EQ(memory.taken_bytes(), 500 + 500 + 125);
  memory.GiveBack(StageMemory::kFirstHalf);
  EXPECT_EQ(memory.taken_bytes(), 500 + 125);
  EXPECT_EQ(memory.TakeHalf(), StageMemory::kFirstHalf);
}

// Of a prompt that is as long as a quarter of the longest that fits a half.
TEST(StageMemory, TheRegionForInterleavedPromptsHoldsTheFewestBuffersOfTheLongest) {
  testing::FakeDevice device;
  for (const int64_t row_bytes : {16, 48, 4096}) {
    for (const size_t bytes : {100'000, 1'000'007, 10'000'001}) {
      const StageMemory memory(bytes, *StageMemory::Allocate(bytes, device));
      const int64_t longest = MaxPrefixTokens(memory.half_bytes(), row_bytes) / kOvertakenShare;
      EXPECT_LE(longest, MaxPrefixTokens(memory.interleaved_bytes(), row_bytes)) << bytes << " " << row_bytes;
    }
  }
}

}  // namespace
}  // namespace runahead
