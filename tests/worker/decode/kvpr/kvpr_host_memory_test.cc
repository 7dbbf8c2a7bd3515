// What decode takes of host memory is what docs/kvpr.md says.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tests/testing/wrapping_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

// Host memory that was asked for and is still held.
class HostMemoryDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::StatusOr<std::shared_ptr<Buffer>> Allocate(size_t bytes, MemoryKind kind) override {
    auto buffer = inner_->Allocate(bytes, kind);
    if (buffer.ok() && kind == MemoryKind::kHost) asked_.push_back({*buffer, bytes});
    return buffer;
  }
  int64_t held() const {
    int64_t bytes = 0;
    for (const auto& [buffer, size] : asked_) bytes += buffer.expired() ? 0 : static_cast<int64_t>(size);
    return bytes;
  }

 private:
  std::vector<std::pair<std::weak_ptr<Buffer>, size_t>> asked_;
};

constexpr int64_t kHostLayers = 3, kMaxBatch = 8, kStoreTokens = 16 * kKvBlockTokens;

class KvprHostMemoryTest : public ::testing::Test {
 protected:
  static void ExpectWithinFivePercent(int64_t held, int64_t formula) {
    EXPECT_LE(static_cast<double>(held), 1.05 * static_cast<double>(formula));
    EXPECT_GE(static_cast<double>(held), 0.95 * static_cast<double>(formula));
  }

  const LoadedModel loaded_ = LoadHeads(kMha, DType::kF32, kHostLayers);
  const std::shared_ptr<HostMemoryDevice> device_ = std::make_shared<HostMemoryDevice>(loaded_.device);
  const LoadedModel counted_{loaded_.file, device_,
                             *LoadModel(loaded_.file, device_, kUsePrefill | kUseDecode, [](int, int) {})};
  const ModelConfig& config_ = loaded_.model->config();
  const int64_t kv_row_ = 2 * config_.heads * config_.head_dim * 4, x_row_ = config_.hidden * 4;
};

TEST_F(KvprHostMemoryTest, IsThatOfBlocksAndOfWhatAStepSendsAndReceives) {
  std::vector<int64_t> prompts(kMaxBatch, 400);
  prompts[0] = 1000;
  KvprWorld world(counted_, prompts, 6);
  KvprOptions options = WindowsOf(loaded_, kMaxBatch, 12);
  options.host = &world.host();
  auto split = std::make_unique<GivenSplit>([](size_t, const LaneShape&) { return 64; },
                                            [](size_t, const LaneShape&) { return 100; });
  split->recompute_s = 1;  // so no X stays on the device
  int64_t on_host = 0;
  options.on_step = [&on_host](const KvprStep& step) { on_host += step.plan.rows.host; };
  world.UseKvpr(std::move(split), options);
  for (int step = 0; step < 4; ++step) world.Step();
  world.LeaveAll();
  EXPECT_GT(on_host, 0);
  int64_t blocks = 0, pieces = 0;
  for (const int64_t prompt : prompts) {
    blocks += KvBlocksFor(prompt + 6);
    pieces += (prompt + 6 + kSmallestPiece - 1) / kSmallestPiece;
  }
  const int64_t lane =
      kMaxBatch * config_.heads * config_.head_dim * 4 + pieces * config_.heads * (config_.head_dim + 1) * 4;
  ExpectWithinFivePercent(device_->held(), kHostLayers * blocks * kKvBlockTokens * (kv_row_ + x_row_) + lane);
}

TEST_F(KvprHostMemoryTest, QuantisedKvTakesOneLayerMoreThatIsNot) {
  const auto host = std::make_shared<HostMemoryDevice>(*NewCpuDevice({.threads = 1}));
  const KvQuant quant{.bits = 4, .group = 32};
  KvStoreOptions options{.layers = kHostLayers, .row_bytes = kv_row_, .capacity_tokens = kStoreTokens};
  options.x_row_bytes = x_row_;
  options.quantisation = KvQuantisation{quant, DType::kF32, host.get()};
  const auto store = *KvStore::Create(options, *device_, RealClock());
  const auto stream = device_->NewStream("test");
  const auto loop = KvprLoop::Create(*counted_.model, *device_, *store, *stream, SplitAt(0), {.max_rows = kMaxBatch});
  ASSERT_TRUE(loop.ok()) << loop.status();
  const int64_t stored_row = 2 * config_.heads * config_.head_dim / 2 + 2 * config_.heads * config_.head_dim / 32 * 4;
  ExpectWithinFivePercent(device_->held() + host->held(),
                          kHostLayers * kStoreTokens * (stored_row + x_row_) + kStoreTokens * kv_row_);
}

}  // namespace
}  // namespace runahead
