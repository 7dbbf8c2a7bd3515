// The kernels of rows against double, on every ISA of this machine, and bitwise between ISAs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/simd/kernels.h"
#include "tests/kernels/cpu/random_weights.h"
#include "tests/testing/reference_activation.h"

namespace runahead {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 33, 64, 129, 576, 1000};

// A row of either type, with a guard behind it.
struct OutRow {
  OutRow(int64_t n, DType dtype) : n(n), dtype(dtype), floats(n + 1, 42.0f), halves(n + 1, 42) {}
  void* data() { return dtype == DType::kF32 ? static_cast<void*>(floats.data()) : halves.data(); }
  float operator[](int64_t i) const { return dtype == DType::kF32 ? floats[i] : ToFloat(BFloat16{halves[i]}); }
  bool GuardIsWhole() const { return floats[n] == 42.0f && halves[n] == 42; }
  bool operator==(const OutRow& other) const { return floats == other.floats && halves == other.halves; }
  // What rounding to the dtype may add.
  double Slack(double value) const { return dtype == DType::kF32 ? 0 : std::abs(value) / 256; }
  int64_t n;
  DType dtype;
  std::vector<float> floats;
  std::vector<uint16_t> halves;
};

// Runs `run(kernels)` on each ISA, compares the rows bitwise and returns one.
template <typename Run>
OutRow OnEveryIsa(int64_t n, DType dtype, const Run& run) {
  OutRow out(n, dtype);
  run(KernelsFor(false), out);
  EXPECT_TRUE(out.GuardIsWhole());
  if (DetectCpuIsa() >= CpuIsa::kAvx512) {
    OutRow other(n, dtype);
    run(KernelsFor(true), other);
    EXPECT_TRUE(out == other) << "AVX2 and AVX-512 differ at n = " << n;
  }
  return out;
}

class SimdTest : public ::testing::TestWithParam<DType> {};  // of the output

TEST_P(SimdTest, RmsNorm) {
  for (int64_t n : kSizes) {
    const std::vector<float> x = RandomFloats(n, 1, 3.0f), weight = RandomFloats(n, 2);
    const OutRow out = OnEveryIsa(n, GetParam(), [&](const CpuKernels& kernels, OutRow& row) {
      kernels.rms_norm_row(x.data(), weight.data(), 1e-5f, n, row.data(), row.dtype);
    });
    double squares = 0;
    for (float value : x) squares += double{value} * value;
    for (int64_t i = 0; i < n; ++i) {
      const double expected = x[i] * double{weight[i]} / std::sqrt(squares / n + 1e-5);
      ASSERT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + out.Slack(expected)) << n;
    }
  }
}

TEST(SimdInPlace, RotateHead) {
  for (int64_t half : kSizes) {
    for (const bool interleaved : {false, true}) {
      const std::vector<float> x = RandomFloats(2 * half, 3), cos_sin = RandomFloats(2 * half, 4);
      const OutRow out = OnEveryIsa(2 * half, DType::kF32, [&](const CpuKernels& kernels, OutRow& row) {
        std::copy(x.begin(), x.end(), row.floats.begin());
        kernels.rotate_head(row.floats.data(), cos_sin.data(), half, interleaved);
      });
      for (int64_t i = 0; i < half; ++i) {
        const int64_t first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : half + i;
        const double a = x[first], b = x[second], c = cos_sin[i], s = cos_sin[half + i];
        ASSERT_NEAR(out[first], a * c - b * s, 2e-7) << half;
        ASSERT_NEAR(out[second], b * c + a * s, 2e-7) << half;
      }
    }
  }
}

// Where a result is small beside its argument, it is right to the argument's last place only.
double ActivationSlack(double x, double wanted) {
  return 1e-30 + 5e-7 * std::abs(wanted) + 1e-7 * std::min(std::abs(x), 20.0);
}

TEST(SimdInPlace, Activate) {
  for (int64_t n : kSizes) {
    std::vector<float> x = RandomFloats(n, 6, 12.0f);
    x[0] = -120.0f;
    if (n > 2) x[1] = 120.0f;
    for (const Activation activation : kAllActivations) {
      const OutRow out = OnEveryIsa(n, DType::kF32, [&](const CpuKernels& kernels, OutRow& row) {
        std::copy(x.begin(), x.end(), row.floats.begin());
        kernels.activate_row(activation, row.floats.data(), n);
      });
      for (int64_t i = 0; i < n; ++i) {
        const double expected = ReferenceActivation(activation, x[i]);
        ASSERT_NEAR(out[i], expected, ActivationSlack(x[i], expected))
            << static_cast<int>(activation) << " of " << x[i];
      }
    }
  }
}

TEST(SimdInPlace, AnActivationOfInfinityOrNan) {
  for (const Activation activation : kAllActivations) {
    std::vector<float> x = {kInfinity, std::numeric_limits<float>::quiet_NaN()};
    OnEveryIsa(1, DType::kF32, [&](const CpuKernels& kernels, OutRow&) {
      kernels.activate_row(activation, x.data(), 2);
      EXPECT_EQ(x[0], kInfinity) << static_cast<int>(activation);
      EXPECT_TRUE(std::isnan(x[1])) << static_cast<int>(activation);
    });
  }
}

TEST_P(SimdTest, ConvertRow) {
  for (int64_t n : kSizes) {
    std::vector<float> x = RandomFloats(n, 5);
    x[0] = std::numeric_limits<float>::quiet_NaN();
    x[n / 2] = n > 1 ? -kInfinity : x[0];
    const OutRow out = OnEveryIsa(n, GetParam(), [&](const CpuKernels& kernels, OutRow& row) {
      kernels.convert_row(x.data(), n, row.data(), row.dtype);
      if (row.dtype == DType::kF32) row.floats[0] = 0;  // NaN is not equal to itself
    });
    if (out.dtype == DType::kBF16) {
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out.halves[i], ToBFloat16(x[i]).bits) << i;
    } else {
      for (int64_t i = 1; i < n; ++i) ASSERT_EQ(out[i], x[i]);
    }
  }
}

TEST(SimdConvert, RowsToF16) {
  for (int64_t n : kSizes) {
    std::vector<float> x = RandomFloats(n, 5, 70000.0f);  // some are too large
    for (int64_t i = 0; i < n; i += 3) x[i] *= 1e-9f;     // and some are subnormal
    x[n / 2] = std::numeric_limits<float>::quiet_NaN();
    for (const bool avx512 : {false, true}) {
      if (avx512 && DetectCpuIsa() < CpuIsa::kAvx512) continue;
      std::vector<Float16> out(n + 1, Float16{0x1234});
      KernelsFor(avx512).convert_row(x.data(), n, out.data(), DType::kF16);
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(out[i].bits, ToFloat16(x[i]).bits) << i;
      EXPECT_EQ(out[n].bits, 0x1234);
    }
  }
}

TEST_P(SimdTest, GatedActivate) {
  for (int64_t n : kSizes) {
    std::vector<float> gate_up = RandomFloats(2 * n, 6, 12.0f);
    gate_up[0] = -120.0f;  // the exponential overflows
    if (n > 2) gate_up[1] = 120.0f;
    std::vector<uint16_t> as_bf16;
    for (float value : gate_up) as_bf16.push_back(ToBFloat16(value).bits);
    for (const Activation activation : kAllActivations) {
      for (DType in : {DType::kF32, DType::kBF16}) {
        const void* data = in == DType::kF32 ? static_cast<const void*>(gate_up.data()) : as_bf16.data();
        const auto value = [&](int64_t i) -> double {
          return in == DType::kF32 ? gate_up[i] : ToFloat(BFloat16{as_bf16[i]});
        };
        const OutRow out = OnEveryIsa(n, GetParam(), [&](const CpuKernels& kernels, OutRow& row) {
          kernels.gated_activate_row(activation, data, in, n, row.data(), row.dtype);
        });
        for (int64_t i = 0; i < n; ++i) {
          const double activated = ReferenceActivation(activation, value(i)), up = value(n + i);
          const double slack = ActivationSlack(value(i), activated) * std::abs(up);
          ASSERT_NEAR(out[i], activated * up, 1e-30 + slack + out.Slack(activated * up)) << n << " " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OutputTypes, SimdTest, ::testing::Values(DType::kF32, DType::kBF16));

struct Top {
  std::vector<int32_t> ids;
  std::vector<float> values;
  float log_sum;
};

Top TopOf(const CpuKernels& kernels, const std::vector<float>& logits, int64_t k) {
  Top top{std::vector<int32_t>(k), std::vector<float>(k), 0};
  kernels.top_k_row(logits.data(), logits.size(), k, top.ids.data(), top.values.data(), &top.log_sum);
  return top;
}

class TopKTest : public ::testing::TestWithParam<bool> {
 protected:
  const CpuKernels& kernels() const { return KernelsFor(GetParam()); }
  void SetUp() override {
    if (GetParam() && DetectCpuIsa() < CpuIsa::kAvx512) GTEST_SKIP() << "no AVX-512 here";
  }
};

TEST_P(TopKTest, AgreesWithASort) {
  for (int64_t n : {1, 2, 17, 129, 5000, 49152}) {
    for (int64_t k : {1, 2, 10, 128}) {
      if (k > n) continue;
      std::vector<float> logits = RandomFloats(n, 7, 20.0f);
      for (float& value : logits) value = std::round(value * 8) / 8;  // many ties
      std::vector<int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
      const Top top = TopOf(kernels(), logits, k);
      double sum = 0;
      for (float value : logits) sum += std::exp(double{value} - 20);
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(top.ids[i], order[i]) << n << " " << k << " " << i;
        ASSERT_EQ(top.values[i], logits[order[i]]);
      }
      EXPECT_NEAR(top.log_sum, std::log(sum) + 20, 5e-6);
    }
  }
}

TEST_P(TopKTest, StrangeNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Top top = TopOf(kernels(), {nan, 1.0f, nan, 3.0f, -kInfinity}, 3);
  EXPECT_EQ(top.ids[0], 3);
  EXPECT_EQ(top.ids[1], 1);
  EXPECT_TRUE(std::isnan(top.log_sum));
  for (size_t bad = 0; bad < 37; ++bad) {
    std::vector<float> logits(37, 1.0f);
    logits[bad] = nan;
    EXPECT_TRUE(std::isnan(TopOf(kernels(), logits, 1).log_sum)) << bad;
  }
  top = TopOf(kernels(), {-kInfinity, -kInfinity}, 2);
  EXPECT_EQ(top.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(top.log_sum, -kInfinity);
  top = TopOf(kernels(), {1.0f, kInfinity}, 1);
  EXPECT_EQ(top.ids[0], 1);
  EXPECT_EQ(top.log_sum, kInfinity);
  top = TopOf(kernels(), {1e30f, 1e30f, -1e30f}, 1);
  EXPECT_EQ(top.log_sum, 1e30f);
}

INSTANTIATE_TEST_SUITE_P(Isas, TopKTest, ::testing::Values(false, true));

}  // namespace
}  // namespace runahead
