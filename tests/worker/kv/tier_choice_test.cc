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

constexpr int64_t kTokens = 4 * kKvBlockTokens;

MemoryKind ChosenOn(Device& device, size_t spare_bytes = 0) {
  testing::FakeClock clock;
  const auto store =
      CreateStoreWhereItFits({.layers = 2, .row_bytes = 8, .capacity_tokens = kTokens}, spare_bytes, device, clock);
  EXPECT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->stats().capacity_bytes, 2 * 8 * kTokens);
  return (*store)->options().tier;
}

TEST(TierChoice, TakesTheCardWhereTheStoreFitsThere) {
  SmallCard large(2 * 8 * kTokens), small(2 * 8 * kTokens - 1);
  EXPECT_EQ(ChosenOn(large), MemoryKind::kDevice);
  EXPECT_EQ(ChosenOn(small), MemoryKind::kHost);
}

TEST(TierChoice, LeavesTheCardToWhatComesLater) {
  // It refuses by the size of one allocation.
  SmallCard card(2 * 8 * kTokens);
  EXPECT_EQ(ChosenOn(card, 2 * 8 * kTokens), MemoryKind::kDevice);
  EXPECT_EQ(ChosenOn(card, 2 * 8 * kTokens + 1), MemoryKind::kHost);
}

TEST(TierChoice, StaysInHostMemoryWhereThatIsTheDevices) {
  testing::FakeDevice device;
  EXPECT_EQ(ChosenOn(device), MemoryKind::kHost);
}

TEST(TierChoice, GivesOtherErrorsAsTheyAre) {
  SmallCard card(1 << 20);
  testing::FakeClock clock;
  EXPECT_EQ(CreateStoreWhereItFits({.layers = 2, .row_bytes = 8, .capacity_tokens = 1}, 0, card, clock).status().code(),
            absl::StatusCode::kInvalidArgument);
  SmallCard broken(0, absl::InternalError("the card fell off the bus"));
  EXPECT_EQ(CreateStoreWhereItFits({.layers = 2, .row_bytes = 8, .capacity_tokens = kTokens}, 0, broken, clock)
                .status()
                .code(),
            absl::StatusCode::kInternal)
      << "though host memory would hold it";
}

}  // namespace
}  // namespace runahead
