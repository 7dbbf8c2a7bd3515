#include "worker/prefill/layer_ring.h"

#include <gtest/gtest.h>

#include "tests/testing/fake_device.h"

namespace runahead {
namespace {

class LayerRingTest : public ::testing::Test {
 protected:
  BufferRef Memory(size_t bytes) { return BufferRef::Whole(*device_.Allocate(bytes, MemoryKind::kDevice)); }

  testing::FakeDevice device_;
};

TEST_F(LayerRingTest, KvAndXOfAllSlotsLieInTheMemoryAndApart) {
  const LayerRows rows{.kv = 7, .kv_row_bytes = 12, .x = 3, .x_row_bytes = 10};
  const auto ring = LayerRing::Create(Memory(4 * 114 + 113), /*layers=*/6, rows);
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->slots(), 4);
  size_t end = 0;
  for (int64_t layer = 0; layer < 4; ++layer) {
    const BufferRef kv = ring->Kv(layer), x = ring->X(layer);
    EXPECT_EQ(kv.size, 84u);
    EXPECT_EQ(x.size, 30u);
    EXPECT_EQ(kv.offset, end);
    EXPECT_EQ(x.offset, end + kv.size);
    end = x.offset + x.size;
    EXPECT_LE(end, kv.buffer->size());
  }
  EXPECT_EQ(ring->Kv(5).offset, ring->Kv(1).offset);
  EXPECT_EQ(ring->X(5).offset, ring->X(1).offset);
}

TEST_F(LayerRingTest, WithoutXItTakesAsManySlotsAsKvAllows) {
  const auto ring = LayerRing::Create(Memory(5 * 84), 6, {.kv = 7, .kv_row_bytes = 12, .x = 0, .x_row_bytes = 10});
  ASSERT_TRUE(ring.ok()) << ring.status();
  EXPECT_EQ(ring->slots(), 5);
  EXPECT_EQ(ring->X(0).size, 0u);
}

TEST_F(LayerRingTest, PartsOfSlotsLieApartAndAreFreeForThemselves) {
  const LayerRows rows{.kv = 7, .kv_row_bytes = 12, .x = 3, .x_row_bytes = 10};
  const LayerRing ring = *LayerRing::Create(Memory(3 * 114), /*layers=*/3, rows);
  LayerRing first = ring.Part({{.kv = 4, .kv_row_bytes = 12, .x = 1, .x_row_bytes = 10}});
  const LayerRing second = ring.Part({{.kv = 2, .kv_row_bytes = 12, .x = 2, .x_row_bytes = 10}, 5, 1});
  EXPECT_EQ(second.slots(), 3);
  for (int64_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(first.Kv(layer).offset, ring.Kv(layer).offset);
    EXPECT_EQ(first.Kv(layer).size, 48u);
    EXPECT_EQ(second.Kv(layer).offset, ring.Kv(layer).offset + 60);
    EXPECT_EQ(second.Kv(layer).size, 24u);
    EXPECT_EQ(second.X(layer).offset, ring.X(layer).offset + 10);
    EXPECT_EQ(second.X(layer).size, 20u);
    EXPECT_EQ(second.AllKv(layer).size, 84u);
    EXPECT_EQ(first.AllX(layer).offset, ring.X(layer).offset);
  }
  const EventSource used;
  first.Occupy(1, used.event());
  EXPECT_FALSE(first.Free(1).fired());
  EXPECT_TRUE(second.Free(1).fired());
}

TEST_F(LayerRingTest, FewerThanTheLeastSlotsAreRefusedWithBothSizes) {
  const LayerRows rows{.kv = 7, .kv_row_bytes = 12, .x = 3, .x_row_bytes = 10};
  const absl::Status refused = LayerRing::Create(Memory(3 * 114 - 1), 6, rows).status();
  EXPECT_EQ(refused,
            absl::ResourceExhaustedError(
                "the KV of 7 tokens and X of 3 needs 3 layer buffers of 114 bytes; this worker has 341 bytes a "
                "job: raise prefill_memory or shorten the prompt"));
}

}  // namespace
}  // namespace runahead
