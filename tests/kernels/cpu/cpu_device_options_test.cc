#include "kernels/cpu/cpu_device_options.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_isa.h"

namespace runahead {
namespace {

TEST(CpuDeviceOptions, RefusesTheImpossible) {
  EXPECT_TRUE(CheckCpuDeviceOptions({}).ok());
  EXPECT_EQ(CheckCpuDeviceOptions({.threads = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckCpuDeviceOptions({.threads = 1, .nice = 20}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckCpuDeviceOptions({.threads = 1, .nice = -1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckCpuDeviceOptions({.compute_dtype = DType::kBF16}).ok(), SupportsBf16(DetectCpuIsa()));
  EXPECT_EQ(CheckCpuDeviceOptions({.compute_dtype = DType::kBF16, .int8 = true}).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CpuDeviceOptions, AutoTakesInt8ForQuantisedWeightsWhereThereIsNoAmx) {
  CpuDeviceOptions options;
  ASSERT_TRUE(SetNumerics("auto", /*weights_are_quantised=*/true, options).ok());
  const bool amx = DetectCpuIsa() == CpuIsa::kAmx;
  EXPECT_EQ(options.compute_dtype, amx ? DType::kBF16 : DType::kF32);
  EXPECT_EQ(options.int8, !amx);
  ASSERT_TRUE(SetNumerics("auto", /*weights_are_quantised=*/false, options).ok());
  EXPECT_EQ(options.compute_dtype, FastestDType());
  EXPECT_FALSE(options.int8);
  ASSERT_TRUE(SetNumerics("int8", false, options).ok());
  EXPECT_TRUE(options.int8);
  EXPECT_EQ(options.compute_dtype, DType::kF32);
  EXPECT_EQ(SetNumerics("f16", true, options).code(), absl::StatusCode::kInvalidArgument);
}

TEST(CpuDeviceOptions, KvIsInWhatIsSaidOrGoesWithTheNumerics) {
  const auto kv = [](std::string_view numerics, std::string_view name) {
    CpuDeviceOptions options;
    EXPECT_TRUE(SetNumerics(numerics, true, options).ok());
    EXPECT_TRUE(SetKvDType(name, options).ok());
    return options.kv_dtype;
  };
  EXPECT_EQ(kv("f32", "auto"), DType::kF32);
  EXPECT_EQ(kv("bf16", "auto"), DType::kBF16);
  EXPECT_EQ(kv("int8", "auto"), DType::kF16);
  EXPECT_EQ(kv("int8", "f32"), DType::kF32);
  EXPECT_EQ(kv("f32", "f16"), DType::kF16);
  EXPECT_EQ(kv("f32", "bf16"), DType::kBF16);
  CpuDeviceOptions options;
  EXPECT_EQ(SetKvDType("int8", options).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace runahead
