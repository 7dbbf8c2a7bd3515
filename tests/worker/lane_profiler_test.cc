#include "worker/lane_profiler.h"

#include <gtest/gtest.h>

#include <memory>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/worker/decode/kvpr/counting_device.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

using ::runahead::testing::Value;

class LaneProfilerTest : public ::testing::Test {
 protected:
  LaneProfilerTest() {
    SyntheticModel small = SmallModel(1);
    small.kv_heads = small.heads;
    const auto file = *OpenGguf(WriteSynthetic(small, "lane_profiler"));
    device_ = *NewCpuDevice({.threads = 1, .emulated_link = link_});
    model_ = *LoadModel(file, device_, kUseDecode | kUseRecompute, [](int, int) {});
    profiler_ = std::make_unique<LaneProfiler>(*model_, *device_, LaneProfiler::Host{&host_, 16}, metrics_, clock_);
  }
  double Link() const { return Value(registry_, "runahead_link_bandwidth_bytes_per_second"); }

  const std::shared_ptr<EmulatedLink> link_ = *EmulatedLink::Create({.gbps = 8});
  CountingHost host_{*NewCpuDevice({.threads = 1})};
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Model> model_;
  MetricRegistry registry_{"cpu"};
  DecodeMetrics metrics_{registry_};
  testing::FakeClock clock_;
  std::unique_ptr<LaneProfiler> profiler_;
};

TEST_F(LaneProfilerTest, MeasuresLinkAndHostAgainOnceAMinuteHasPassedAndNothingElse) {
  const ModelConfig& config = model_->config();
  const auto profile =
      profiler_->Measure({.rows = 1, .stored_row_bytes = model_->kv_row_bytes(), .x_row_bytes = 4 * config.hidden});
  ASSERT_TRUE(profile.ok()) << profile.status();
  const double before = profile->costs.link_bytes_per_s;
  EXPECT_NEAR(Link() / before, 1, 1e-4);
  LaneCosts seen = profile->costs;  // by the steps since
  seen.project_s = 2;
  seen.attend_s = 3;
  seen.recompute_s = 4;
  FixedSplit split(0, seen);
  ASSERT_TRUE(link_->SetRate(0.08).ok());  // a hundredth: no busy machine made the first look so slow
  const int64_t attended = host_.attended;

  clock_.Advance(LaneProfiler::kAgain - absl::Milliseconds(1));
  profiler_->MeasureAgain(split);
  EXPECT_EQ(split.costs().link_bytes_per_s, before);
  EXPECT_NEAR(Link() / before, 1, 1e-4);
  EXPECT_EQ(host_.attended, attended);

  clock_.Advance(absl::Milliseconds(1));
  profiler_->MeasureAgain(split);
  const LaneCosts now = split.costs();
  EXPECT_LT(now.link_bytes_per_s, before / 2);
  EXPECT_NEAR(Link() / now.link_bytes_per_s, 1, 1e-4);
  EXPECT_LT(Value(registry_, "runahead_link_copy_bytes_per_second{block_bytes=\"1048576\",direction=\"to_device\"}"),
            before / 2);
  EXPECT_GT(host_.attended, attended);
  EXPECT_NEAR(
      Value(registry_, "runahead_kvpr_host_bytes_per_second{beside=\"nothing\"}") * now.host_attend_s / now.kv_bytes, 1,
      1e-4);
  EXPECT_EQ(now.project_s, 2);
  EXPECT_EQ(now.attend_s, 3);
  EXPECT_EQ(now.recompute_s, 4);
  EXPECT_EQ(Value(registry_, "runahead_kvpr_layer_seconds{work=\"project\"}"), 2);
  EXPECT_EQ(Value(registry_, "runahead_kvpr_position_seconds{work=\"attend\"}"), 3);

  // That was the last look.
  const int64_t attended_again = host_.attended;
  clock_.Advance(LaneProfiler::kAgain - absl::Milliseconds(1));
  profiler_->MeasureAgain(split);
  EXPECT_EQ(host_.attended, attended_again);
}

}  // namespace
}  // namespace runahead
