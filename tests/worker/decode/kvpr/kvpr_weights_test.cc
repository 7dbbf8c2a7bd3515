// KVPR with weights that are streamed from host memory, against the same with resident ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "tests/testing/test_device.h"
#include "tests/testing/wrapping_device.h"
#include "tests/worker/decode/kvpr/kvpr_cases.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"
#include "worker/decode/kvpr/copy_pieces.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/profile.h"
#include "worker/decode/kvpr/weight_stream.h"

namespace runahead {
namespace {

// An odd number, so that a layer is in either slot by turns.
constexpr int64_t kLayers = 3;

LoadedModel Streamed(const LoadedModel& resident, std::shared_ptr<Device> device) {
  const unsigned uses = kUsePrefill | kUseDecode | kUseStreamed;
  return {resident.file, device, *LoadModel(resident.file, device, uses, [](int, int) {})};
}

class KvprWeightsTest : public ::testing::TestWithParam<Heads> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
};

TEST_P(KvprWeightsTest, StreamedWeightsGiveBitwiseWhatResidentOnesGive) {
  const LoadedModel resident = LoadHeads(GetParam(), DType::kF32, kLayers);
  const LoadedModel streamed = Streamed(resident, resident.device);
  for (const int64_t l : {0, 128, 100'000}) {
    for (const int64_t resident_blocks : {0, 7}) {
      SCOPED_TRACE(std::to_string(l) + ", " + std::to_string(resident_blocks));
      KvprWorld plain(resident, Prompts(), Steps());
      KvprWorld world(streamed, Prompts(), Steps(), true, {}, &resident);
      KvprOptions options;
      if (resident_blocks > 0) options.device_bytes = BytesWithResident(resident, resident_blocks);
      plain.UseKvpr(SplitAt(l), options);
      if (resident_blocks > 0) options.device_bytes += WeightStream::DeviceBytes(*streamed.model);
      const KvprLoop& loop = world.UseKvpr(SplitAt(l), options);
      for (int64_t step = 0; step < Steps(); ++step) {
        SCOPED_TRACE(step);
        ExpectSame(world.Step(), plain.Step());
      }
      EXPECT_EQ(loop.resident_bytes() > 0, resident_blocks > 0);
    }
  }
}

// What the device recomputes for the next layer while the host attends needs that layer's weights early.
TEST_P(KvprWeightsTest, BesideAHostLane) {
  const LoadedModel resident = LoadHeads(GetParam(), DType::kF32, kLayers);
  const LoadedModel streamed = Streamed(resident, resident.device);
  const std::vector<int64_t> prompts = {1000, 100};
  KvprWorld plain(resident, prompts, Steps()), world(streamed, prompts, Steps(), true, {}, &resident);
  const auto split = [] {
    auto given = std::make_unique<GivenSplit>([](size_t, const LaneShape&) { return 64; },
                                              [](size_t, const LaneShape&) { return 1; });
    given->recompute_s = 1;  // so no X stays on the device
    return given;
  };
  int64_t on_host = 0;
  KvprOptions options = WindowsOf(resident, 2, 3);
  options.host = &plain.host();
  plain.UseKvpr(split(), options);
  options.device_bytes += WeightStream::DeviceBytes(*streamed.model);
  options.host = &world.host();
  options.on_step = [&](const KvprStep& step) { on_host += step.plan.rows.host; };
  world.UseKvpr(split(), options);
  for (int64_t step = 0; step < Steps(); ++step) ExpectSame(world.Step(), plain.Step());
  world.LeaveAll();
  EXPECT_GT(on_host, 0);
}

TEST_P(KvprWeightsTest, SequencesComeAndGo) {
  const LoadedModel resident = LoadHeads(GetParam(), DType::kF32, kLayers);
  const LoadedModel streamed = Streamed(resident, resident.device);
  const std::vector<int64_t> prompts = {255, 600, 300, 20};
  KvprWorld plain(resident, prompts, 20), world(streamed, prompts, 20, true, {}, &resident);
  plain.UseKvpr(SplitAt(64));
  world.UseKvpr(SplitAt(64));
  const std::vector<std::vector<size_t>> steps = {{0}, {0, 1}, {0, 1, 2}, {2, 1}, {2, 1, 3}, {1, 3}, {1}, {3, 1}};
  for (const std::vector<size_t>& picked : steps) ExpectSame(world.Step(picked), plain.Step(picked));
  world.End(1);
  plain.End(1);
  for (int step = 0; step < 3; ++step) ExpectSame(world.Step({3, 0}), plain.Step({3, 0}));
}

TEST_P(KvprWeightsTest, OverQuantisedStores) {
  const LoadedModel resident = LoadHeads(GetParam(), DType::kF32, kLayers);
  if (resident.model->config().kv_dim() % 32 != 0) GTEST_SKIP() << "rows are no whole groups";
  const LoadedModel streamed = Streamed(resident, resident.device);
  const KvQuant quant{.bits = 8, .group = 32};
  KvprWorld plain(resident, {300, 100}, 3, true, quant), world(streamed, {300, 100}, 3, true, quant, &resident);
  plain.UseKvpr(SplitAt(128));
  world.UseKvpr(SplitAt(128));
  for (int step = 0; step < 3; ++step) ExpectSame(world.Step(), plain.Step());
}

INSTANTIATE_TEST_SUITE_P(Heads, KvprWeightsTest, ::testing::Values(kMha, kGqa, kOpt),
                         [](const auto& info) { return std::string(info.param.name); });

// A family that multiplies with a matrix where it was loaded, not where the layer's copies are, is seen.
class KvprFamilyWeightsTest : public KvprWeightsTest {};

TEST_P(KvprFamilyWeightsTest, StreamedWeightsGiveBitwiseWhatResidentOnesGive) {
  const LoadedModel resident = LoadHeads(GetParam(), DType::kF32, kLayers);
  const LoadedModel streamed = Streamed(resident, resident.device);
  KvprWorld plain(resident, {300, 100}, Steps()), world(streamed, {300, 100}, Steps(), true, {}, &resident);
  plain.UseKvpr(SplitAt(64));
  world.UseKvpr(SplitAt(64));
  for (int64_t step = 0; step < Steps(); ++step) ExpectSame(world.Step(), plain.Step());
}

INSTANTIATE_TEST_SUITE_P(Families, KvprFamilyWeightsTest, ::testing::ValuesIn(kOtherFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

class KvprWeightStreamTest : public ::testing::Test {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
};

// What comes from homes, and by what pieces; a product that fails when it is told to.
class WatchedDevice final : public WrappingDevice {
 public:
  using WrappingDevice::WrappingDevice;
  absl::Status Copy(Stream& stream, const ConstBufferRef& from, const BufferRef& to) override {
    if (homes.contains(from.buffer.get())) {
      bytes += from.size;
      largest = std::max(largest, from.size);
    }
    return inner_->Copy(stream, from, to);
  }
  absl::Status Linear(Stream& stream, const ConstTensor& x, std::shared_ptr<const Weights> w,
                      const LinearOptions& options, const MutTensor& out) override {
    if (fail_after >= 0 && fail_after-- == 0) return absl::InternalError("as told");
    return inner_->Linear(stream, x, std::move(w), options, out);
  }
  absl::flat_hash_set<const Buffer*> homes;
  size_t bytes = 0, largest = 0;
  int fail_after = -1;  // so many products
};

size_t LayerBytes(const Model& model, int64_t layer) {
  size_t bytes = 0;
  for (const auto& matrix : model.Matrices(layer)) bytes += matrix->home().size;
  return bytes;
}

TEST_F(KvprWeightStreamTest, AStepBringsEachLayerOnce) {
  const LoadedModel resident = LoadHeads(kMha, DType::kF32, kLayers);
  const auto watched = std::make_shared<WatchedDevice>(resident.device);
  const LoadedModel streamed = Streamed(resident, watched);
  size_t step_bytes = 0;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& matrix : streamed.model->Matrices(layer)) watched->homes.insert(matrix->home().buffer.get());
    step_bytes += LayerBytes(*streamed.model, layer);
  }
  KvprWorld world(streamed, {300, 100}, 4, true, {}, &resident);
  world.UseKvpr(SplitAt(64));
  for (size_t step = 1; step <= 4; ++step) {
    world.Step();
    EXPECT_EQ(watched->bytes, step * step_bytes + LayerBytes(*streamed.model, 0)) << "the next step's first is ahead";
  }
  EXPECT_LE(watched->largest, kWeightPieceBytes);
  EXPECT_DOUBLE_EQ(StreamedLayerBytes(*streamed.model), static_cast<double>(step_bytes) / kLayers);
}

TEST_F(KvprWeightStreamTest, AfterAStepThatFailedTheNextIsAsIfItHadNotBeen) {
  const LoadedModel resident = LoadHeads(kMha, DType::kF32, kLayers);
  const auto watched = std::make_shared<WatchedDevice>(resident.device);
  const LoadedModel streamed = Streamed(resident, watched);
  for (const int products : {0, 2, 6, 9, 11}) {
    SCOPED_TRACE(products);
    KvprWorld plain(resident, {300, 100}, 4), world(streamed, {300, 100}, 4, true, {}, &resident);
    plain.UseKvpr(SplitAt(0));
    world.UseKvpr(SplitAt(0));
    ExpectSame(world.Step(), plain.Step());
    watched->fail_after = products;
    EXPECT_EQ(world.TryStep({0, 1}).status().code(), absl::StatusCode::kInternal);
    for (int step = 0; step < 2; ++step) ExpectSame(world.Step(), plain.Step());
  }
}

TEST_F(KvprWeightStreamTest, RefusesABudgetWithoutRoomForTwoLayersAndNamesThem) {
  const LoadedModel resident = LoadHeads(kMha, DType::kF32, kLayers);
  const LoadedModel streamed = Streamed(resident, resident.device);
  const int64_t weights = WeightStream::DeviceBytes(*streamed.model);
  EXPECT_EQ(WeightStream::DeviceBytes(*resident.model), 0);
  EXPECT_GE(weights, static_cast<int64_t>(2 * LayerBytes(*streamed.model, 0)));
  KvprWorld world(streamed, {10}, 2, true, {}, &resident);
  DeviceMemory memory(streamed.device);
  KvprOptions options;
  options.max_rows = 1;
  options.device_bytes = BytesWithResident(resident, 0) + weights;
  const auto loop =
      KvprLoop::Create(*streamed.model, *streamed.device, world.store(), memory.stream(), SplitAt(0), options);
  ASSERT_TRUE(loop.ok()) << loop.status();
  EXPECT_LE((*loop)->device_bytes(), options.device_bytes);
  options.device_bytes = weights;
  EXPECT_THAT(KvprLoop::Create(*streamed.model, *streamed.device, world.store(), memory.stream(), SplitAt(0), options)
                  .status()
                  .ToString(),
              ::testing::AllOf(::testing::HasSubstr("RESOURCE_EXHAUSTED"),
                               ::testing::HasSubstr("weights " + std::to_string(weights)),
                               ::testing::HasSubstr(std::to_string(weights) + " are allowed")));
}

TEST_F(KvprWeightStreamTest, TheProfileFetchesWhatItRuns) {
  const LoadedModel resident = LoadHeads(kMha, DType::kF32, kLayers);
  const LoadedModel streamed = Streamed(resident, resident.device);
  const LaneProfileOptions options{.rows = 2,
                                   .stored_row_bytes = streamed.model->kv_row_bytes(),
                                   .x_row_bytes = 4 * streamed.model->config().hidden};
  const auto profile = MeasureLanes(*streamed.model, *streamed.device, options);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_GT(profile->costs.project_s, 0);
  EXPECT_GT(profile->costs.recompute_s, 0);
  EXPECT_DOUBLE_EQ(profile->costs.other_link_bytes, StreamedLayerBytes(*streamed.model));
}

}  // namespace
}  // namespace runahead
