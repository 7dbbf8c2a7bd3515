#include "worker/decode/kvpr/staging_ring.h"

#include <gtest/gtest.h>

namespace runahead {
namespace {

// Rows of 8 bytes, chunks of 256 tokens or more, 1,024 and 6 slots wanted.
StagingSize SizeWithin(std::optional<int64_t> device_tokens) {
  StagingWish wish{.row_bytes = 8, .least_tokens = 256, .chunk_tokens = 1024, .slots = 6};
  if (device_tokens) wish.device_bytes = 8 * *device_tokens;
  return SizeOf(wish);
}

void ExpectSize(std::optional<int64_t> device_tokens, int64_t chunk_tokens, int64_t slots) {
  const StagingSize size = SizeWithin(device_tokens);
  EXPECT_EQ(size.chunk_tokens, chunk_tokens) << device_tokens.value_or(-1);
  EXPECT_EQ(size.slots, slots) << device_tokens.value_or(-1);
}

TEST(StagingRingTest, TakesHalfOfTheDevicesRoomAndRatherMoreSlotsThanLargerOnes) {
  ExpectSize(std::nullopt, 1024, 6);
  ExpectSize(100'000, 1024, 6);
  ExpectSize(2 * 4 * 1024, 1024, 4);
  ExpectSize(2 * 4 * 1024 - 1, 512, 6);
  ExpectSize(2 * 4 * 512 - 1, 256, 6);
  // As small as they may be: fewer then, but never one.
  ExpectSize(2 * 3 * 256, 256, 3);
  ExpectSize(1, 256, 2);
}

TEST(StagingRingTest, WhoWantsTwoSlotsGetsTheirRoom) {
  StagingWish wish{.row_bytes = 8, .least_tokens = 256, .chunk_tokens = 1024, .slots = 2};
  wish.device_bytes = 8 * 2 * 2 * 1024;
  EXPECT_EQ(SizeOf(wish).chunk_tokens, 1024);
  EXPECT_EQ(SizeOf(wish).slots, 2);
}

}  // namespace
}  // namespace runahead
