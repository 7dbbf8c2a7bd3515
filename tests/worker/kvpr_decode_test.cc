#include "worker/kvpr_decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_device.h"
#include "server/base/clock.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class KvprDecodeTest : public ::testing::Test {
 protected:
  KvprDecodeTest() {
    const auto file = *OpenGguf(WriteSynthetic(SmallModel(1), "kvpr_decode"));
    device_ =
        *NewCpuDevice({.threads = 1, .memory_budget = 64 << 20, .emulated_link = *EmulatedLink::Create({.gbps = 100})});
    model_ = *LoadModel(file, device_, kUseDecode, [](int, int) {});
    store_ = *KvStore::Create({.layers = 1, .row_bytes = model_->kv_row_bytes(), .capacity_tokens = 4 * kKvBlockTokens},
                              *device_, RealClock());
    stream_ = device_->NewStream("test");
    options_.max_batch = 3;
    options_.host_lane = options_.recompute = "off";
  }
  // What NewKvprLoop says where `spare` bytes are for other things.
  std::string Refusal(size_t spare) {
    DecodeMetrics metrics(registry_);
    const auto lanes = MeasureKvprLanes(options_, *model_, *device_, *host_, model_->kv_row_bytes(), metrics);
    if (!lanes.ok()) return lanes.status().ToString();
    const auto loop = NewKvprLoop(options_, *model_, {*device_, *host_, *stream_}, *store_, spare, *lanes, metrics);
    return loop.status().ToString();
  }
  size_t Left() const {
    return device_->memory_left() -
           static_cast<size_t>(KvprLoop::ScratchBytes(*model_, *device_, store_->options(), options_.max_batch));
  }

  std::shared_ptr<Device> device_;
  const std::shared_ptr<Device> host_ = *NewCpuDevice({.threads = 1});
  std::shared_ptr<const Model> model_;
  std::unique_ptr<KvStore> store_;
  std::unique_ptr<Stream> stream_;
  MetricRegistry registry_{"cpu"};
  WorkerOptions options_;
};

TEST_F(KvprDecodeTest, TooLittleMemoryIsRefusedByTheOptionThatSaysHowMuchThereIs) {
  EXPECT_THAT(Refusal(Left() - 1000),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED: device_memory_budget: KV passes through the device"),
                    HasSubstr("1000 are allowed"), HasSubstr("max_batch"), Not(HasSubstr("kv_device_budget"))));
}

TEST_F(KvprDecodeTest, SoItIsWhereStepsLeaveNothing) {
  EXPECT_THAT(Refusal(Left()), AllOf(HasSubstr("RESOURCE_EXHAUSTED: device_memory_budget: "),
                                     HasSubstr(absl::StrCat(device_->memory_left(), " bytes are left beside weights")),
                                     HasSubstr("steps of 3 sequences take"), HasSubstr("a smaller max_batch")));
}

TEST_F(KvprDecodeTest, ABudgetForKvIsNamedWhereItIsGiven) {
  options_.kv_device_budget = 1000;
  EXPECT_THAT(Refusal(0), AllOf(HasSubstr("RESOURCE_EXHAUSTED: kv_device_budget: KV passes through the device"),
                                HasSubstr("1000 are allowed"), HasSubstr("max_batch")));
}

// X of 96 columns, and KV of as many or of a third.
class StoredXTest : public ::testing::Test {
 protected:
  struct Stored {
    DType compute = DType::kF32, kv = DType::kF32;
    std::string kv_bits = "16", x_bits = "auto", recompute = "auto";
    int64_t kv_heads = 6;
    bool link = true;
    int64_t kv_memory = 1 << 30;
    double recompute_s = 1e-9;  // as measured at start: of a position, over a link of a gigabyte a second
  };
  static std::pair<int64_t, std::string> Of(const Stored& stored, RowForm form) {
    CpuDeviceOptions device{.threads = 1, .compute_dtype = stored.compute, .kv_dtype = stored.kv};
    if (stored.link) device.emulated_link = *EmulatedLink::Create({.gbps = 100});
    const std::shared_ptr<Device> made = *NewCpuDevice(device);
    ModelConfig config;
    config.layers = 1;
    config.context_length = 4096;
    config.hidden = 96;
    config.heads = 6;
    config.kv_heads = stored.kv_heads;
    config.head_dim = 16;
    WorkerOptions options;
    options.max_batch = 32;
    options.kv_bits = stored.kv_bits;
    options.x_bits = stored.x_bits;
    options.recompute = stored.recompute;
    options.kv_memory = stored.kv_memory;
    LaneCosts measured;
    measured.link_bytes_per_s = 1e9;
    measured.kv_bytes = static_cast<double>(2 * 16 * stored.kv_heads) * static_cast<double>(DTypeSize(stored.kv));
    measured.x_bytes = static_cast<double>(RowFormBytes(KeptXForm(options, config, stored.kv, form), config.hidden));
    measured.recompute_s = stored.recompute_s;
    const KeptX kept = XToKeep(options, config, *made, form, measured);
    EXPECT_EQ(kept.row_bytes > 0, kept.text.starts_with("X is kept"));
    return {kept.row_bytes, kept.text};
  }
};

TEST_F(StoredXTest, IsComparedWithKvAsItIsStored) {
  EXPECT_EQ(Of({}, RowForm::kF32).first, 384);
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kF32).first, 0) << "KV in f16 is as small as X in f32";
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kQ16).first, 204);
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kQ8).first, 108);
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "8"}, RowForm::kQ8).first, 108) << "KV takes 216";
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_heads = 3}, RowForm::kQ8).first, 108) << "KV takes 192";
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_heads = 2}, RowForm::kQ8).first, 0) << "KV takes 128, little more than X";
  EXPECT_EQ(Of({.recompute = "off"}, RowForm::kF32).first, 0);
  EXPECT_EQ(Of({.kv = DType::kF16, .recompute = "128", .kv_heads = 1}, RowForm::kQ8).first, 108) << "as it was asked";
  EXPECT_EQ(Of({.link = false}, RowForm::kF32).first, 0);
}

TEST_F(StoredXTest, IsQuantisedAsKvIsWhereItWouldBeAboutAsLarge) {
  const auto text = [](const std::string& sizes) { return "X is kept beside KV: X of a token takes " + sizes; };
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "8"}, RowForm::kQ16).second, text("108 bytes a layer in q8, KV 216"));
  EXPECT_EQ(Of({.kv_bits = "8"}, RowForm::kF32).second, text("108 bytes a layer in q8, KV 216"));
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "8"}, RowForm::kQ8).second, text("108 bytes a layer in q8, KV 216"));
  EXPECT_EQ(Of({.kv_bits = "4"}, RowForm::kF32).second, text("60 bytes a layer in q4, KV 120"));
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "4"}, RowForm::kQ8).second, text("60 bytes a layer in q4, KV 120"));
  // Where that would spare nothing either, it stays as it comes.
  EXPECT_EQ(
      Of({.kv = DType::kF16, .kv_bits = "4", .kv_heads = 4}, RowForm::kQ8).second,
      "nothing is recomputed, for it would hardly spare the link: X of a token takes 108 bytes a layer in q8, KV 72");
}

TEST_F(StoredXTest, IsInAsManyBitsAsXBitsSays) {
  EXPECT_EQ(Of({.x_bits = "8"}, RowForm::kF32).first, 108);
  EXPECT_EQ(Of({.x_bits = "4"}, RowForm::kF32).first, 60);
  EXPECT_EQ(Of({.kv_bits = "4", .x_bits = "8", .recompute = "128"}, RowForm::kF32).first, 108);
  EXPECT_EQ(Of({.kv_bits = "4", .x_bits = "16", .recompute = "128"}, RowForm::kF32).first, 384);
  EXPECT_EQ(Of({.kv_bits = "4", .x_bits = "16"}, RowForm::kF32).first, 0);
}

// KV of a row takes 768 ns on the link, X the half. Recomputation may be half of what it was measured to take.
TEST_F(StoredXTest, IsKeptWhereAStepMayBeATenthFaster) {
  EXPECT_EQ(Of({.recompute_s = 6e-6}, RowForm::kF32).first, 384);
  EXPECT_EQ(Of({.recompute_s = 1e-5}, RowForm::kF32).first, 0);
  // Room for 1,024 positions, which is one sequence of so many as well as 32 of 32, none of which fills a tile.
  EXPECT_EQ(Of({.kv_memory = 1024 * (768 + 384), .recompute_s = 3e-6}, RowForm::kF32).first, 384);
  EXPECT_EQ(Of({.recompute = "128", .recompute_s = 1e-5}, RowForm::kF32).first, 384) << "as it was asked";
}

TEST_F(StoredXTest, AWorkerSaysWhatItKeepsOrWhyItKeepsNone) {
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kQ16).second,
            "X is kept beside KV: X of a token takes 204 bytes a layer in q16, KV 384");
  EXPECT_EQ(
      Of({.kv = DType::kF16}, RowForm::kF32).second,
      "nothing is recomputed, for it would hardly spare the link: X of a token takes 384 bytes a layer in f32, KV 384");
  EXPECT_EQ(Of({.recompute = "off"}, RowForm::kF32).second, "nothing is recomputed (recompute: off)");
  EXPECT_EQ(
      Of({.recompute_s = 1e-5}, RowForm::kF32).second,
      "nothing is recomputed, for it would gain too little: steps of 32 sequences of 4096 tokens would be 1.08 times "
      "as fast at most");
  EXPECT_EQ(Of({.link = false}, RowForm::kF32).second, "nothing is recomputed: there is no link to spare");
}

}  // namespace
}  // namespace runahead
