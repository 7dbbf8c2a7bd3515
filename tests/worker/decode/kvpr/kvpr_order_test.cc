// In which order a step of KVPR enqueues its work: what lets link, device and host work at the same time. No time is
// measured here.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "tests/testing/wrapping_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {
namespace {

constexpr int64_t kOrderedLayers = 3;

LoadedModel LoadAgainOn(const LoadedModel& loaded, std::shared_ptr<Device> device, unsigned more_uses = 0) {
  const unsigned uses = kUsePrefill | kUseDecode | more_uses;
  return {loaded.file, device, *LoadModel(loaded.file, device, uses, [](int, int) {})};
}

// What had been enqueued when something else was.
class OrderDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer == kv_) loads.push_back(from.offset / kv_layer_);
    return inner_->Copy(stream, from, to);
  }
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override {
    loads_before_attention.push_back(loads.size());
    partials_cols_ = shape.heads * (shape.head_dim + 1);
    return inner_->AttendPieces(stream, q, shape, table, layer, partials);
  }
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override {
    if (options.first_row > 0) recomputed += x.rows;
    return inner_->Linear(stream, x, std::move(w), options, out);
  }
  // q goes to the host, and partials, which are wider, come back.
  absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<int32_t> rows,
                            const MutTensor& out) override {
    if (x.cols == partials_cols_) recomputed_before_partials.push_back(recomputed);
    return inner_->ExchangeRows(stream, x, std::move(rows), out);
  }
  void Watch(const KvStore& store) {
    kv_ = store.arena().Layer(0).buffer;
    kv_layer_ = store.arena().Layer(0).size;
  }

  std::vector<size_t> loads;                        // copies of KV: the layer of each
  std::vector<size_t> loads_before_attention;       // of each call
  int64_t recomputed = 0;                           // rows
  std::vector<int64_t> recomputed_before_partials;  // of each time that the host's partials came

 private:
  std::shared_ptr<Buffer> kv_;  // the store's
  size_t kv_layer_ = 1;
  int64_t partials_cols_ = -1;
};

// Four chunks a layer, a copy of KV each.
TEST(KvprOrderTest, LoadsRunAheadOfAttentionAndOverTheEndOfTheStep) {
  constexpr size_t kLoads = kOrderedLayers * 4;
  const LoadedModel loaded = LoadHeads(kMha, DType::kF32, kOrderedLayers);
  const auto device = std::make_shared<OrderDevice>(loaded.device);
  const LoadedModel watched = LoadAgainOn(loaded, device);
  KvprWorld world(watched, {900}, 4);
  KvprOptions options;
  options.chunk_tokens = 256;
  options.slots = 3;
  world.UseKvpr(SplitAt(0), options);
  device->Watch(world.store());
  for (size_t step = 0; step < 3; ++step) {
    SCOPED_TRACE(step);
    device->loads_before_attention.clear();
    world.Step();
    ASSERT_EQ(device->loads_before_attention.size(), kLoads);
    for (size_t i = 0; i < kLoads; ++i) {
      const size_t attended = step * kLoads + i;
      EXPECT_GE(device->loads_before_attention[i], std::min(attended + 2, (step + 1) * kLoads)) << i;
    }
    EXPECT_GT(device->loads.size(), (step + 1) * kLoads) << "the next step's first loads are ahead of it";
    EXPECT_EQ(device->loads.back(), 0u);
  }
}

TEST(KvprOrderTest, TheNextLayerIsRecomputedWhileTheHostAttends) {
  const LoadedModel loaded = LoadHeads(kMha, DType::kF32, kOrderedLayers);
  const auto device = std::make_shared<OrderDevice>(loaded.device);
  const LoadedModel watched = LoadAgainOn(loaded, device);
  KvprWorld world(watched, {1000}, 6);
  auto split = std::make_unique<GivenSplit>([](size_t, const LaneShape&) { return 64; },
                                            [](size_t, const LaneShape&) { return 1; });
  split->recompute_s = 1;  // so no X stays on the device
  KvprOptions options = WindowsOf(loaded, 1, 1);
  options.host = &world.host();
  world.UseKvpr(std::move(split), options);
  device->recomputed = 0;
  world.Step();  // all passes, for the window to stay
  for (int64_t step = 1; step < 4; ++step) world.Step();
  ASSERT_EQ(device->recomputed_before_partials.size(), size_t{3 * kOrderedLayers});
  for (int64_t i = 0; i < 3 * kOrderedLayers; ++i) {
    // That of the layer itself and of the one that comes next, be it of the next step.
    EXPECT_GE(device->recomputed_before_partials[i], 64 * (kOrderedLayers + i + 2)) << i;
  }
}

// Lets nothing of a layer's weights come but its first matrix, and says when the first recomputation has run.
class HeldWeightsDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (held.contains(from.buffer.get())) inner_->WaitFor(stream, gate.event());
    return inner_->Copy(stream, from, to);
  }
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override {
    const absl::Status status = inner_->Linear(stream, x, std::move(w), options, out);
    if (options.first_row > 0 && !recomputed.has_value()) recomputed = inner_->Record(stream);
    return status;
  }
  const EventSource gate;
  absl::flat_hash_set<const Buffer*> held;
  std::optional<Event> recomputed;
};

TEST(KvprOrderTest, RecomputationDoesNotWaitForTheWeightsOfTheMlp) {
  const LoadedModel resident = LoadHeads(kMha, DType::kF32, kOrderedLayers);
  const auto device = std::make_shared<HeldWeightsDevice>(resident.device);
  const LoadedModel streamed = LoadAgainOn(resident, device, kUseStreamed);
  for (int64_t layer = 0; layer < kOrderedLayers; ++layer) {
    const LayerMatrices matrices = streamed.model->Matrices(layer);
    for (size_t i = 1; i < matrices.size(); ++i) device->held.insert(matrices[i]->home().buffer.get());
    ASSERT_FALSE(device->held.contains(matrices[0]->home().buffer.get()));
  }
  KvprWorld world(streamed, {300}, 3, true, {}, &resident);
  world.UseKvpr(SplitAt(64));
  const auto logits = world.TryStep({0});
  EXPECT_TRUE(logits.ok()) << logits.status();
  EXPECT_TRUE(device->recomputed.has_value());
  if (device->recomputed.has_value()) {
    EXPECT_EQ(device->recomputed->Wait(absl::Seconds(20)), absl::OkStatus());
  }
  device->gate.Fire(absl::OkStatus());
}

}  // namespace
}  // namespace runahead
