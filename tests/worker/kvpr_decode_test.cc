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
    std::optional<LaneProfile> profile;
    const auto loop = NewKvprLoop(options_, *model_, {*device_, *host_, *stream_}, *store_, spare, {metrics, profile});
    return loop.status().ToString();
  }
  size_t Left() const {
    return device_->memory_left() -
           static_cast<size_t>(KvprLoop::ScratchBytes(*model_, store_->options(), options_.max_batch));
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
    std::string kv_bits = "16", recompute = "auto";
    int64_t kv_heads = 6;
    bool link = true;
  };
  static std::pair<int64_t, std::string> Of(const Stored& stored, RowForm form) {
    CpuDeviceOptions device{.threads = 1, .compute_dtype = stored.compute, .kv_dtype = stored.kv};
    if (stored.link) device.emulated_link = *EmulatedLink::Create({.gbps = 100});
    const std::shared_ptr<Device> made = *NewCpuDevice(device);
    ModelConfig config;
    config.hidden = 96;
    config.heads = 6;
    config.kv_heads = stored.kv_heads;
    config.head_dim = 16;
    WorkerOptions options;
    options.kv_bits = stored.kv_bits;
    options.recompute = stored.recompute;
    return {XRowBytes(options, config, *made, form), XText(options, config, *made, form)};
  }
};

TEST_F(StoredXTest, IsComparedWithKvAsItIsStored) {
  EXPECT_EQ(Of({}, RowForm::kF32).first, 384);
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kF32).first, 0) << "KV in f16 is as small as X in f32";
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kQ16).first, 204);
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kQ8).first, 108);
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "8"}, RowForm::kQ8).first, 108) << "KV takes 216";
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "8"}, RowForm::kQ16).first, 0) << "X takes 204";
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_bits = "4"}, RowForm::kQ8).first, 0) << "KV takes 120, in groups of 32";
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_heads = 3}, RowForm::kQ8).first, 108) << "KV takes 192";
  EXPECT_EQ(Of({.kv = DType::kF16, .kv_heads = 2}, RowForm::kQ8).first, 0) << "KV takes 128, little more than X";
  EXPECT_EQ(Of({.recompute = "off"}, RowForm::kF32).first, 0);
  EXPECT_EQ(Of({.kv = DType::kF16, .recompute = "128", .kv_heads = 1}, RowForm::kQ8).first, 108) << "as it was asked";
  EXPECT_EQ(Of({.link = false}, RowForm::kF32).first, 0);
}

TEST_F(StoredXTest, AWorkerSaysWhatItKeepsOrWhyItKeepsNone) {
  EXPECT_EQ(Of({.kv = DType::kF16}, RowForm::kQ16).second,
            "X is kept beside KV: X of a token takes 204 bytes a layer in q16, KV 384");
  EXPECT_EQ(
      Of({.kv = DType::kF16}, RowForm::kF32).second,
      "nothing is recomputed, for it would hardly spare the link: X of a token takes 384 bytes a layer in f32, KV 384");
  EXPECT_EQ(Of({.recompute = "off"}, RowForm::kF32).second, "nothing is recomputed (recompute: off)");
  EXPECT_EQ(Of({.link = false}, RowForm::kF32).second, "nothing is recomputed: there is no link to spare");
}

}  // namespace
}  // namespace runahead
