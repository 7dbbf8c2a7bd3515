// In which order a step of KVPR enqueues its work: what lets link, device and host work at the same time. No time is
// measured here.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
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
  absl::Status ExchangeRows(Stream& stream, const ConstTensor& x, std::vector<RowMove> rows,
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

// Holds up either the loads behind the first one, or all attention; what was enqueued before runs.
class HeldStepDevice final : public WrappingDevice {
 public:
  enum class Hold { kNothing, kLoads, kAttention };
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer != kv_) return inner_->Copy(stream, from, to);
    if (++loads_ > 1 && hold_ == Hold::kLoads) inner_->WaitFor(stream, gate.event());
    const absl::Status status = inner_->Copy(stream, from, to);
    if (loads_ == kHeldSlots) last_loaded = inner_->Record(stream);
    return status;
  }
  absl::Status AttendPieces(Stream& stream, const ConstTensor& q, const AttentionShape& shape, const KvTable& table,
                            const ConstBufferRef& layer, const MutTensor& partials) override {
    if (hold_ == Hold::kAttention) inner_->WaitFor(stream, gate.event());
    const absl::Status status = inner_->AttendPieces(stream, q, shape, table, layer, partials);
    if (!first_attended.has_value()) first_attended = inner_->Record(stream);
    return status;
  }
  void Begin(Hold hold, const KvStore& store) {
    hold_ = hold;
    kv_ = store.arena().Layer(0).buffer;
  }

  static constexpr int kHeldSlots = 3;
  const EventSource gate;
  std::optional<Event> first_attended, last_loaded;  // the last one for which there is a slot

 private:
  Hold hold_ = Hold::kNothing;
  std::shared_ptr<Buffer> kv_;  // the store's
  int loads_ = 0;
};

class KvprHeldStepTest : public ::testing::TestWithParam<HeldStepDevice::Hold> {};

// Whichever of the two is held up, the other one goes on, and the thread that enqueues waits for neither.
TEST_P(KvprHeldStepTest, LinkAndDeviceWorkAtTheSameTime) {
  const LoadedModel loaded = LoadHeads(kMha, DType::kF32, kOrderedLayers);
  const auto device = std::make_shared<HeldStepDevice>(loaded.device);
  const LoadedModel watched = LoadAgainOn(loaded, device);
  KvprWorld world(watched, {900}, 3);
  KvprOptions options;
  options.chunk_tokens = 256;
  options.slots = HeldStepDevice::kHeldSlots;
  world.UseKvpr(SplitAt(0), options);
  device->Begin(GetParam(), world.store());
  std::future<absl::Status> step = std::async(std::launch::async, [&] { return world.TryStep({0}).status(); });
  const bool enqueued = step.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  EXPECT_TRUE(enqueued);
  if (enqueued) {
    const bool loads = GetParam() == HeldStepDevice::Hold::kLoads;
    const std::optional<Event>& goes_on = loads ? device->first_attended : device->last_loaded;
    EXPECT_TRUE(goes_on.has_value() && goes_on->Wait(absl::Seconds(20)).ok());
    EXPECT_FALSE((loads ? device->last_loaded : device->first_attended)->fired());
  }
  device->gate.Fire(absl::OkStatus());
  EXPECT_EQ(step.get(), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Holds, KvprHeldStepTest,
                         ::testing::Values(HeldStepDevice::Hold::kLoads, HeldStepDevice::Hold::kAttention),
                         [](const auto& info) {
                           return std::string(info.param == HeldStepDevice::Hold::kLoads ? "Loads" : "Attention");
                         });

// Holds up all loads until somebody waits for them; attention fails.
class FailingStepDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  std::unique_ptr<Stream> NewStream(std::string_view name) override {
    std::unique_ptr<Stream> stream = inner_->NewStream(name);
    if (name == "kvpr load") load_stream_ = stream.get();
    return stream;
  }
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (from.buffer != kv) return inner_->Copy(stream, from, to);
    inner_->WaitFor(stream, gate.event());
    const absl::Status status = inner_->Copy(stream, from, to);
    last_load = inner_->Record(stream);
    return status;
  }
  absl::Status AttendPieces(Stream&, const ConstTensor&, const AttentionShape&, const KvTable&, const ConstBufferRef&,
                            const MutTensor&) override {
    return absl::InternalError("as told");
  }
  Event Record(Stream& stream) override {
    Event recorded = inner_->Record(stream);
    if (leaves && &stream == load_stream_) gate.Fire(absl::OkStatus());
    return recorded;
  }
  const EventSource gate;
  std::shared_ptr<Buffer> kv;  // the store's
  bool leaves = false;
  std::optional<Event> last_load;

 private:
  const Stream* load_stream_ = nullptr;
};

// Its lease is given back next, and somebody else writes to its blocks.
TEST(KvprOrderTest, NothingReadsWhatASequenceHadOnceItHasLeftAfterAStepThatFailed) {
  const LoadedModel loaded = LoadHeads(kMha, DType::kF32, kOrderedLayers);
  const auto device = std::make_shared<FailingStepDevice>(loaded.device);
  const LoadedModel watched = LoadAgainOn(loaded, device);
  KvprWorld world(watched, {900}, 2);
  world.UseKvpr(SplitAt(0));
  device->kv = world.store().arena().Layer(0).buffer;
  EXPECT_EQ(world.TryStep({0}).status().code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(device->last_load.has_value());
  ASSERT_FALSE(device->last_load->fired());
  device->leaves = true;
  world.LeaveAll();
  EXPECT_TRUE(device->last_load->fired());
  device->gate.Fire(absl::OkStatus());
}

// Lets nothing of a layer's weights come but K's and V's rows of its first matrix, and says when the first
// recomputation has run.
class HeldWeightsDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    const auto begin = held_before.find(from.buffer.get());
    if (begin != held_before.end() && from.offset < begin->second) inner_->WaitFor(stream, gate.event());
    return inner_->Copy(stream, from, to);
  }
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override {
    const absl::Status status = inner_->Linear(stream, x, std::move(w), options, out);
    if (options.first_row > 0 && !recomputed.has_value()) recomputed = inner_->Record(stream);
    return status;
  }
  const EventSource gate;
  absl::flat_hash_map<const Buffer*, size_t> held_before;  // the offset in each home
  std::optional<Event> recomputed;
};

TEST(KvprOrderTest, RecomputationDoesNotWaitForOtherWeightsThanKsAndVs) {
  const LoadedModel resident = LoadHeads(kMha, DType::kF32, kOrderedLayers);
  const auto device = std::make_shared<HeldWeightsDevice>(resident.device);
  const LoadedModel streamed = LoadAgainOn(resident, device, kUseStreamed);
  for (int64_t layer = 0; layer < kOrderedLayers; ++layer) {
    const LayerMatrices matrices = streamed.model->Matrices(layer);
    const ModelConfig& config = streamed.model->config();
    const ConstBufferRef kv = matrices[0]->HomeFrom(config.heads * config.head_dim);
    ASSERT_GT(kv.offset, matrices[0]->home().offset);
    for (const auto& matrix : matrices) {
      const bool fresh = device->held_before.emplace(matrix->home().buffer.get(), SIZE_MAX).second;
      ASSERT_TRUE(fresh) << "homes have memory of their own";
    }
    device->held_before[kv.buffer.get()] = kv.offset;
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
