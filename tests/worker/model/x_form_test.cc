#include "worker/model/x_form.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

class XFormTest : public ::testing::Test {
 protected:
  // Of matrices in `type`, but for V's, in `finer`.
  static std::string Path(WeightType type, std::optional<WeightType> finer = {}, int64_t hidden = 64) {
    SyntheticModel model;
    model.hidden = hidden;
    model.head_dim = 16;
    model.finer_type = finer;
    model.SetWeightType(type);
    return WriteSynthetic(model, "x_form");
  }
  static std::string Form(const std::string& path, const CpuDeviceOptions& options) {
    const std::shared_ptr<Device> device = *NewCpuDevice(options);
    const auto model = *LoadModel(*OpenModelFile(path), device, kUseDecode, [](int, int) {});
    const RowForm form = XFormOf(*model, *device);
    EXPECT_LE(RowFormBytes(SmallestXForm(model->config(), *device), model->config().hidden),
              RowFormBytes(form, model->config().hidden));
    return std::string(RowFormName(form));
  }
  static CpuDeviceOptions Options(DType compute, DType kv, bool int8 = false) {
    return {.threads = 1, .compute_dtype = compute, .int8 = int8, .kv_dtype = kv};
  }
};

TEST_F(XFormTest, IsWhatProductsReadUnlessKvIsRoundedMore) {
  const std::string path = Path(WeightType::kQ8_0);
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kF32)), "f32");
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kF16)), "q16");
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kBF16)), "q16");
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kF16, true)), "q8");
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kF32, true)), "q8");
}

TEST_F(XFormTest, WhereOneOfQKAndVIsNotMultipliedIn8BitsItIsNotIn8Bits) {
  const std::string path = Path(WeightType::kQ8_0, WeightType::kF32);
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kF16, true)), "q16");
  EXPECT_EQ(Form(path, Options(DType::kF32, DType::kF32, true)), "f32");
}

TEST_F(XFormTest, RowsThatAreNoWholeBlocksAreNotQuantised) {
  EXPECT_EQ(Form(Path(WeightType::kF32, {}, 80), Options(DType::kF32, DType::kF16)), "f32");
}

TEST(RowFormTest, NamesAndSizes) {
  for (const RowForm form : kRowForms) EXPECT_EQ(ParseRowForm(RowFormName(form)), form);
  EXPECT_EQ(ParseRowForm("f64"), std::nullopt);
  EXPECT_EQ(RowFormName(static_cast<RowForm>(200)), "unknown");
  EXPECT_EQ(RowFormBytes(RowForm::kF32, 64), 256);
  EXPECT_EQ(RowFormBytes(RowForm::kBF16, 64), 128);
  EXPECT_EQ(RowFormBytes(RowForm::kQ8, 64), 72);
  EXPECT_EQ(RowFormBytes(RowForm::kQ16, 64), 136);
  EXPECT_EQ(RowFormBytes(RowForm::kQ4, 64), 40);
}

}  // namespace
}  // namespace runahead
