// What stays on the device is neither copied nor read from the host again, and is written through all the same.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/worker/decode/kvpr/counting_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

class KvprResidentTest : public ::testing::Test {
 protected:
  const LoadedModel loaded_ = LoadHeads(kMha, DType::kF32, 3);
  const std::shared_ptr<CountingDevice> counting_ = std::make_shared<CountingDevice>(loaded_.device);
  const LoadedModel counted_{loaded_.file, counting_,
                             *LoadModel(loaded_.file, counting_, kUsePrefill | kUseDecode, [](int, int) {})};
  const size_t row_ = static_cast<size_t>(loaded_.model->kv_row_bytes());
  const size_t x_row_ = static_cast<size_t>(4 * loaded_.model->config().hidden);
  static constexpr size_t kLast = 2;  // the layer whose loads never run ahead of their step: the ring has two slots
};

TEST_F(KvprResidentTest, AWindowIsNotCopiedAgain) {
  const std::vector<int64_t> prompts = {700, 300, 100};
  KvprWorld world(counted_, prompts, 6);
  KvprOptions options = WindowsOf(loaded_, 3, 4);
  LaneRows rows;
  options.on_step = [&rows](const KvprStep& step) { rows = step.plan.rows; };
  auto split = SplitAt(64);
  split->recompute_s = 1;  // so no X stays on the device
  const KvprLoop& loop = world.UseKvpr(std::move(split), options);
  world.Step();  // all passes, and what there is room for stays
  counting_->Watch(world.store());
  size_t streamed = 0, recomputed = 0;
  for (int step = 0; step < 3; ++step) {
    world.Step();  // reports the one before
    if (step == 0) continue;
    streamed += static_cast<size_t>(rows.streamed);
    recomputed += static_cast<size_t>(rows.recomputed);
    EXPECT_GT(rows.resident, 0);
    EXPECT_EQ(rows.x_streamed, rows.recomputed);
    EXPECT_LE(static_cast<size_t>(rows.resident) * row_ * 3, static_cast<size_t>(loop.resident_bytes()));
  }
  world.LeaveAll();
  streamed += static_cast<size_t>(rows.streamed);
  recomputed += static_cast<size_t>(rows.recomputed);
  // All rows but those that the steps themselves make, of those sequences that have no window.
  EXPECT_LE(counting_->kv_bytes[kLast], streamed * row_);
  EXPECT_GE(counting_->kv_bytes[kLast], (streamed - 3 * prompts.size()) * row_);
  EXPECT_EQ(counting_->x_bytes[kLast], recomputed * x_row_);
  EXPECT_EQ(counting_->written_back, 3 * prompts.size() * 3 * (row_ + x_row_));
}

// There is room for X of two blocks beside a window of one.
TEST_F(KvprResidentTest, XIsNeitherCopiedNorReadAgain) {
  KvprWorld world(counted_, {900}, 8), twin(counted_, {900}, 8);
  KvprOptions options = WindowsOf(loaded_, 1, 2);
  twin.UseKvpr(SplitAt(704), options);
  LaneRows rows;
  options.on_step = [&rows](const KvprStep& step) { rows = step.plan.rows; };
  const KvprLoop& loop = world.UseKvpr(SplitAt(704), options);
  for (int step = 0; step < 2; ++step) ExpectSame(world.Step(), twin.Step());
  ASSERT_EQ(loop.resident_bytes(), static_cast<int64_t>(3 * (512 * x_row_ + 256 * row_)));
  counting_->Watch(world.store());
  world.Step();
  EXPECT_EQ(counting_->recomputed, 3 * 704);
  EXPECT_EQ(counting_->x_bytes[kLast], (704 - 512) * x_row_);
  EXPECT_EQ(counting_->kv_bytes[kLast], (768 - 704) * row_);
  twin.Step();
  world.PoisonX(0, 0, 512);
  world.Poison(0, 768, 900);
  for (int step = 0; step < 3; ++step) ExpectSame(world.Step(), twin.Step());
  EXPECT_EQ(rows.x_streamed, 704 - 512) << "what the runtime says itself";
}

}  // namespace
}  // namespace runahead
