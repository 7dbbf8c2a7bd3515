// What every device must compute: ops against scalar references in double, on odd sizes. The same tests run on the
// CPU's device, on the CUDA device over an emulated GPU, and on a real one (tests/testing/test_device.h).
#pragma once

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/kernels/cpu/random_weights.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/test_device.h"

namespace runahead {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// How far a result may be from `wanted`, which `dtype` rounds; `size` is that of what was added up.
inline double Tolerance(DType dtype, double wanted, double size) {
  const double rounding = dtype == DType::kF32 ? 1e-6 : dtype == DType::kBF16 ? 1.0 / 256 : 1.0 / 2048;
  return rounding * std::abs(wanted) + 2e-6 * size + 1e-7;
}

struct OpParityCase {
  DType dtype = DType::kF32;  // that the device computes in
  int threads = 1;
};

class OpParity : public ::testing::TestWithParam<OpParityCase> {
 protected:
  void SetUp() override {
    auto opened = OpenTestDevice(GetParam().dtype, GetParam().threads);
    RUNAHEAD_SKIP_WITHOUT_DEVICE(opened.status());
    memory_.emplace(*std::move(opened));
  }
  Device& device() { return memory_->device(); }
  Stream& stream() { return memory_->stream(); }
  DeviceMemory& memory() { return *memory_; }
  // Of the device's KV and activations.
  DType dtype() { return device().compute_dtype(); }

 private:
  std::optional<DeviceMemory> memory_;
};

// One thread and several are two ways of the CPU's device; a GPU has no such choice.
inline auto AllParityCases() {
  std::vector<OpParityCase> cases;
  if (FormOfTestDevice() == TestDeviceForm::kCpu) cases.push_back({DType::kF32, 1});
  for (const DType dtype : TestDeviceDTypes()) cases.push_back({dtype, dtype == DType::kF32 ? 3 : 2});
  return ::testing::ValuesIn(cases);
}

inline std::string NameOf(const ::testing::TestParamInfo<OpParityCase>& info) {
  return absl::StrCat(std::string(DTypeName(info.param.dtype)), "_", info.param.threads);
}

}  // namespace runahead
