#include "worker/kv/tier_choice.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/testing/fake_clock.h"
#include "tests/testing/remote_device.h"

namespace runahead {
namespace {

// A card with little memory.
class SmallCard final : public testing::RemoteDevice {
 public:
  explicit SmallCard(size_t bytes, absl::Status full = absl::ResourceExhaustedError("the card is full"))
      : bytes_(bytes), full_(std::move(full)) {}
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kDevice && bytes > bytes_) return full_;
    return RemoteDevice::Allocate(bytes, kind);
  }

 private:
  const size_t bytes_;
  const absl::Status full_;
};

constexpr int64_t kTierTokens = 4 * kKvBlockTokens;

absl::StatusCode CodeOn(Device& device, size_t spare_bytes = 0, int64_t tokens = kTierTokens) {
  testing::FakeClock clock;
  const auto store =
      CreateDeviceStore({.layers = 2, .row_bytes = 8, .capacity_tokens = tokens}, spare_bytes, device, clock);
  if (store.ok()) {
    EXPECT_EQ((*store)->stats().capacity_bytes, 2 * 8 * kTierTokens);
    EXPECT_EQ((*store)->options().tier, MemoryKind::kDevice);
  }
  return store.status().code();
}

TEST(TierChoice, TakesTheCardWhereTheStoreFitsThere) {
  SmallCard large(2 * 8 * kTierTokens), small(2 * 8 * kTierTokens - 1);
  EXPECT_EQ(CodeOn(large), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOn(small), absl::StatusCode::kResourceExhausted);
}

TEST(TierChoice, LeavesTheCardToWhatComesLater) {
  // It refuses by the size of one allocation.
  SmallCard card(2 * 8 * kTierTokens);
  EXPECT_EQ(CodeOn(card, 2 * 8 * kTierTokens), absl::StatusCode::kOk);
  EXPECT_EQ(CodeOn(card, 2 * 8 * kTierTokens + 1), absl::StatusCode::kResourceExhausted);
}

TEST(TierChoice, GivesOtherErrorsAsTheyAre) {
  SmallCard card(1 << 20);
  EXPECT_EQ(CodeOn(card, 0, 1), absl::StatusCode::kInvalidArgument);
  SmallCard broken(0, absl::InternalError("the card fell off the bus"));
  EXPECT_EQ(CodeOn(broken), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace runahead
