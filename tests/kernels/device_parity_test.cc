// Every op of a device against scalar references in double precision, in every dtype, on odd sizes. The same file runs
// on the CPU's device, on the CUDA device over an emulated GPU, and on a real one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "tests/kernels/cpu/random_weights.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

using Values = std::vector<double>;

// The largest relative error of one rounding.
double Unit(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}

class DeviceParity : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    auto opened = OpenTestDevice(GetParam(), 2);
    if (!opened.ok()) GTEST_SKIP() << opened.status().message();
    device_ = *std::move(opened);
    stream_ = device_->NewStream("parity");
  }

  DType dtype() const { return GetParam(); }
  Tensor Put(const std::vector<float>& values, int64_t rows, DType dtype = DType::kF32, int64_t spare = 0) {
    return PutTensor(*device_, values, rows, dtype, spare);
  }
  Tensor New(DType dtype, int64_t rows, int64_t cols, int64_t spare = 0) {
    return NewTensor(*device_, dtype, rows, cols, spare);
  }
  // `out` against `expected`, within `slack` of each value's size beyond one rounding to out's dtype; `sizes`: what
  // was added up, in magnitude (empty: the values themselves).
  void ExpectNear(const Tensor& out, const Values& expected, double slack = 1e-6, const Values& sizes = {}) {
    const std::vector<float> actual = TakeTensor(*device_, *stream_, out);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
      const double size = std::abs(sizes.empty() ? expected[i] : sizes[i]);
      ASSERT_NEAR(actual[i], expected[i], slack * size + Unit(out.dtype) * std::abs(expected[i]) + 1e-9)
          << "element " << i;
    }
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_P(DeviceParity, EmbedReadsTheRowsOfTheIds) {
  for (WeightType type : kAllWeightTypes) {
    const RandomWeights table(type, 37, 96, 3);
    const auto weights = device_->LoadWeights(table.Source(), kUseDecode);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::vector<int32_t> ids = {36, 0, 5, 5, 17};
    const Tensor out = New(DType::kF32, 5, 96, 3);
    ASSERT_TRUE(device_->Embed(*stream_, **weights, ids, out).ok());
    Values expected, sizes;
    for (int32_t id : ids) {
      for (int64_t c = 0; c < 96; ++c) expected.push_back(table.Value(id, c));
    }
    // A device may keep the table in its compute dtype.
    ExpectNear(out, expected, Unit(dtype()));
  }
}

TEST_P(DeviceParity, RmsNormAndLayerNorm) {
  for (const int64_t cols : {1, 3, 129, 257, 1024}) {
    const int64_t rows = 5;
    const std::vector<float> x = RandomFloats(rows * cols, 1), w = RandomFloats(cols, 2), b = RandomFloats(cols, 3);
    Values rms, layer, sizes;
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0, sum = 0, spread = 0;
      for (int64_t c = 0; c < cols; ++c) {
        squares += static_cast<double>(x[r * cols + c]) * x[r * cols + c];
        sum += x[r * cols + c];
      }
      const double mean = sum / cols;
      for (int64_t c = 0; c < cols; ++c) spread += std::pow(x[r * cols + c] - mean, 2);
      for (int64_t c = 0; c < cols; ++c) {
        rms.push_back(x[r * cols + c] * static_cast<double>(w[c]) / std::sqrt(squares / cols + 1e-5));
        const double scaled = (x[r * cols + c] - mean) / std::sqrt(spread / cols + 1e-5) * w[c];
        layer.push_back(scaled + b[c]);
        sizes.push_back(10 * (1 + std::abs(scaled) + std::abs(b[c])));
      }
    }
    const Tensor in = Put(x, rows, DType::kF32, 5), weight = Put(w, 1), bias = Put(b, 1);
    const Tensor out = New(dtype(), rows, cols, 3);
    ASSERT_TRUE(device_->RmsNorm(*stream_, in, weight, 1e-5f, out).ok());
    ExpectNear(out, rms, 3e-6);
    ASSERT_TRUE(device_->LayerNorm(*stream_, in, weight, bias, 1e-5f, out).ok());
    ExpectNear(out, layer, 1e-6, sizes);
  }
}

double Activated(Activation activation, double x) {
  if (activation == Activation::kRelu) return std::max(x, 0.0);
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

struct LinearCase {
  int64_t m, n, k;
  bool accumulate, bias;
  std::optional<Activation> activation;
};

TEST_P(DeviceParity, LinearWithAllThatFollowsIt) {
  const LinearCase cases[] = {
      {1, 129, 96, false, false, {}},   {37, 65, 64, true, false, {}},  {5, 1, 32, false, false, {}},
      {33, 130, 160, false, true, {}},  {3, 48, 96, true, true, {}},    {7, 40, 32, false, true, Activation::kRelu},
      {9, 33, 96, false, true, Activation::kGelu}, {2, 64, 64, false, false, Activation::kGelu},
  };
  for (const LinearCase& c : cases) {
    const RandomWeights source(WeightType::kQ8_0, c.n, c.k, 1);
    const auto weights = device_->LoadWeights(source.Source(), kUsePrefill | kUseDecode);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::vector<float> bias = RandomFloats(c.n, 4);
    for (const bool invariant : {false, true}) {
      const DType in = invariant ? device_->invariant_dtype() : device_->compute_dtype();
      const std::vector<float> x = Rounded(RandomFloats(c.m * c.k, 2), in);
      std::vector<DType> outs = {DType::kF32};
      if (!c.accumulate && dtype() != DType::kF32) outs.push_back(dtype());
      for (const DType out_dtype : outs) {
        const Tensor out = Put(std::vector<float>(c.m * c.n, 0.5f), c.m, out_dtype, 8);
        LinearOptions options{.accumulate = c.accumulate, .batch_invariant = invariant};
        if (c.bias) options.bias = Put(bias, 1);
        options.activation = c.activation;
        const absl::Status status = device_->Linear(*stream_, Put(x, c.m, in, 8), *weights, options, out);
        ASSERT_TRUE(status.ok()) << status;
        Values expected, sizes;
        for (int64_t i = 0; i < c.m; ++i) {
          for (int64_t j = 0; j < c.n; ++j) {
            double sum = (c.accumulate ? 0.5 : 0.0) + (c.bias ? bias[j] : 0.0), size = std::abs(sum);
            for (int64_t l = 0; l < c.k; ++l) {
              sum += x[i * c.k + l] * source.Value(j, l);
              size += std::abs(x[i * c.k + l] * source.Value(j, l));
            }
            expected.push_back(c.activation.has_value() ? Activated(*c.activation, sum) : sum);
            sizes.push_back(size);
          }
        }
        // Weights in the compute dtype, and a sum that a second pass may read back rounded.
        ExpectNear(out, expected, 1e-5 + Unit(dtype()) + 2 * Unit(out_dtype), sizes);
      }
    }
  }
}

TEST_P(DeviceParity, LinearUnderBatchInvarianceDoesNotDependOnTheRowsBeside) {
  const int64_t n = 129, k = 192;
  const RandomWeights source(WeightType::kQ4_1, n, k, 7);
  const auto weights = device_->LoadWeights(source.Source(), kUseDecode);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const int64_t most = 70;
  const std::vector<float> x = RandomFloats(most * k, 2);
  std::vector<float> alone;
  for (const int64_t m : {1, 2, 3, 8, 31, 70}) {
    const Tensor in = Put({x.begin(), x.begin() + m * k}, m, device_->invariant_dtype());
    const Tensor out = New(DType::kF32, m, n);
    ASSERT_TRUE(device_->Linear(*stream_, in, *weights, {.batch_invariant = true}, out).ok());
    const std::vector<float> values = TakeTensor(*device_, *stream_, out);
    if (m == 1) alone = values;
    EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + n), alone) << m << " rows";
  }
}

TEST_P(DeviceParity, SwiGluAndActivate) {
  for (const int64_t cols : {1, 31, 200}) {
    const int64_t rows = 3;
    const std::vector<float> x = Rounded(RandomFloats(rows * 2 * cols, 5, 4.0f), dtype());
    const Tensor in = Put(x, rows, dtype(), 2);
    Values swiglu, relu, gelu;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const double gate = x[r * 2 * cols + c], up = x[r * 2 * cols + cols + c];
        swiglu.push_back(gate / (1 + std::exp(-gate)) * up);
      }
    }
    for (float value : x) {
      relu.push_back(Activated(Activation::kRelu, value));
      gelu.push_back(Activated(Activation::kGelu, value));
    }
    const Tensor out = New(dtype(), rows, cols, 5), whole = New(dtype(), rows, 2 * cols, 1);
    ASSERT_TRUE(device_->SwiGlu(*stream_, in, out).ok());
    ExpectNear(out, swiglu, 1e-5);
    ASSERT_TRUE(device_->Activate(*stream_, in, Activation::kRelu, whole).ok());
    ExpectNear(whole, relu);
    ASSERT_TRUE(device_->Activate(*stream_, in, Activation::kGelu, in).ok());  // in place
    ExpectNear(in, gelu, 1e-5, Values(gelu.size(), 1.0));
  }
}

TEST_P(DeviceParity, RopeStoreRotatesAndScattersRows) {
  const int64_t heads = 6, kv_heads = 2, tokens = 9;
  for (const int64_t dim : {16, 48, 64}) {
    AttentionShape shape{heads, kv_heads, dim, dtype()};
    const int64_t cols = (heads + 2 * kv_heads) * dim, kv_cols = 2 * kv_heads * dim;
    const std::vector<float> qkv = RandomFloats(tokens * cols, 8), rotation = RandomFloats(40 * dim, 9);
    const std::vector<int32_t> positions = {0, 39, 3, 4, 5, 6, 7, 11, 2};
    const BufferRef kv = PutBytes(*device_, std::vector<std::byte>((tokens + 4) * shape.kv_row_bytes()));
    const size_t row = shape.kv_row_bytes();
    // Rows of the store need not lie together.
    const std::vector<KvSpan> spans = {{kv.Slice(7 * row, 2 * row), 2}, {kv.Slice(0, 7 * row), 7}};
    const Tensor q = New(dtype(), tokens, heads * dim, 4);
    ASSERT_TRUE(device_->RopeStore(*stream_, Put(qkv, tokens), shape, Put(rotation, 40), positions, q, spans).ok());
    Values expected_q, expected_kv((tokens + 4) * kv_cols, 0.0);
    const auto rotated = [&](int64_t t, int64_t head, int64_t d) {
      const float* const x = &qkv[t * cols + head * dim];
      const float* const turn = &rotation[positions[t] * dim];
      const int64_t half = dim / 2, i = d % half;
      const double c = turn[i], s = turn[half + i];
      return d < half ? x[d] * c - x[d + half] * s : x[d] * c + x[i] * s;
    };
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) expected_q.push_back(rotated(t, h, d));
      }
      const int64_t place = t < 2 ? 7 + t : t - 2;
      for (int64_t h = 0; h < kv_heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          expected_kv[place * kv_cols + h * dim + d] = rotated(t, heads + h, d);
          expected_kv[place * kv_cols + (kv_heads + h) * dim + d] = qkv[t * cols + (heads + kv_heads + h) * dim + d];
        }
      }
    }
    ExpectNear(q, expected_q, 1e-6, Values(expected_q.size(), 2.0));
    ExpectNear(MakeTensor(kv, dtype(), tokens + 4, kv_cols), expected_kv, 1e-6, Values(expected_kv.size(), 2.0));
  }
}

TEST_P(DeviceParity, TopKOrdersAndSums) {
  const int64_t rows = 3, vocab = 1031;
  std::vector<float> logits = RandomFloats(rows * vocab, 11, 6.0f);
  logits[5] = logits[900] = logits[17] = 7.5f;  // ties go to the smaller id
  const Tensor in = Put(logits, rows, DType::kF32, 3);
  for (const int64_t k : {1, 2, 5, 128}) {
    const Tensor ids = New(DType::kF32, rows, k), values = New(DType::kF32, rows, k), sum = New(DType::kF32, rows, 1);
    ASSERT_TRUE(device_->TopK(*stream_, in, k, ids, values, sum).ok());
    const std::vector<float> got_ids = TakeTensor(*device_, *stream_, ids);
    const std::vector<float> got_values = TakeTensor(*device_, *stream_, values);
    Values sums;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = &logits[r * vocab];
      std::vector<int32_t> order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [x](int32_t a, int32_t b) { return x[a] > x[b]; });
      double total = 0;
      for (int64_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(x[v]));
      sums.push_back(std::log(total));
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(std::bit_cast<int32_t>(got_ids[r * k + i]), order[i]) << "row " << r << " place " << i;
        ASSERT_EQ(got_values[r * k + i], x[order[i]]);
      }
    }
    ExpectNear(sum, sums, 1e-5);
  }
}

TEST_P(DeviceParity, GatherAndScatterMoveRows) {
  const int64_t rows = 11, cols = 37;
  const std::vector<float> x = Rounded(RandomFloats(rows * cols, 12), dtype());
  const Tensor in = Put(x, rows, dtype(), 3);
  const std::vector<int32_t> wanted = {10, 0, 3, 3};
  const Tensor gathered = New(dtype(), 4, cols, 1);
  ASSERT_TRUE(device_->GatherRows(*stream_, in, wanted, gathered).ok());
  Values expected;
  for (int32_t row : wanted) expected.insert(expected.end(), &x[row * cols], &x[row * cols] + cols);
  ExpectNear(gathered, expected, 0);

  const std::vector<int32_t> places = {6, 1, 9, 0};
  const Tensor scattered = Put(std::vector<float>(rows * cols, 0.25f), rows, dtype());
  ASSERT_TRUE(device_->ScatterRows(*stream_, gathered, places, scattered).ok());
  Values there(rows * cols, 0.25);
  for (int64_t i = 0; i < 4; ++i) std::copy_n(&expected[i * cols], cols, &there[places[i] * cols]);
  ExpectNear(scattered, there, 0);
  EXPECT_FALSE(device_->GatherRows(*stream_, in, {0, 1, 2, 11}, gathered).ok());
  EXPECT_FALSE(device_->ScatterRows(*stream_, gathered, {0, 1, 2, 1}, scattered).ok());
}

TEST_P(DeviceParity, QuantisedKvComesBackWithinHalfAStep) {
  for (const KvQuant quant : {KvQuant{4, 32}, KvQuant{4, 128}, KvQuant{8, 64}}) {
    const int64_t rows = 5, cols = 2 * quant.group;
    std::vector<float> x = Rounded(RandomFloats(rows * cols, 13, 3.0f), dtype());
    std::fill_n(x.begin(), quant.group, 1.5f);  // a constant group is exact
    const BufferRef stored = PutBytes(*device_, std::vector<std::byte>(rows * KvQuantRowBytes(cols, quant)));
    const Tensor back = New(dtype(), rows, cols, 2);
    ASSERT_TRUE(device_->QuantizeKv(*stream_, Put(x, rows, dtype(), 4), quant, stored).ok());
    ASSERT_TRUE(device_->DequantizeKv(*stream_, stored, quant, back).ok());
    const std::vector<float> values = TakeTensor(*device_, *stream_, back);
    for (int64_t group = 0; group < rows * 2; ++group) {
      const auto first = x.begin() + group * quant.group;
      const auto [least, most] = std::minmax_element(first, first + quant.group);
      const double step = (*most - *least) / ((1 << quant.bits) - 1);
      for (int64_t i = 0; i < quant.group; ++i) {
        // Scale and minimum are f16 themselves.
        const double slack = 0.5 * step + 0x1p-10 * 6 + 2 * Unit(dtype()) * 3;
        ASSERT_NEAR(values[group * quant.group + i], first[i], group == 0 ? 0 : slack) << "group " << group;
      }
    }
  }
}

TEST_P(DeviceParity, SampleIsGreedyAtTemperatureZeroAndDrawsByTheUniform) {
  const int64_t vocab = 517;
  const std::vector<float> logits = RandomFloats(5 * vocab, 14, 3.0f);
  const std::vector<SampleParams> params = {
      {}, {.temperature = 1.0f, .uniform = 0.37}, {.temperature = 0.7f, .top_k = 9, .uniform = 0.99},
      {.temperature = 1.3f, .top_p = 0.4f, .uniform = 0.0}, {.temperature = 1.0f, .min_p = 0.5f, .uniform = 0.6}};
  const Tensor ids = New(DType::kF32, 5, 1);
  ASSERT_TRUE(device_->Sample(*stream_, Put(logits, 5), params, ids).ok());
  const std::vector<float> got = TakeTensor(*device_, *stream_, ids);
  for (int64_t r = 0; r < 5; ++r) {
    const float* const x = &logits[r * vocab];
    const SampleParams& p = params[r];
    std::vector<int32_t> order(vocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [x](int32_t a, int32_t b) { return x[a] > x[b]; });
    int32_t expected = order[0];
    if (p.temperature > 0) {
      if (p.top_k > 0) order.resize(p.top_k);
      double total = 0, sum = 0;
      const auto weight = [&](int32_t id) { return std::exp((x[id] - x[order[0]]) / p.temperature); };
      for (int32_t id : order) total += weight(id);
      size_t keep = 0;
      while (keep < order.size() && (keep == 0 || sum < p.top_p * total)) sum += weight(order[keep++]);
      order.resize(keep);
      order.erase(std::remove_if(order.begin(), order.end(), [&](int32_t id) { return weight(id) < p.min_p; }), order.end());
      std::sort(order.begin(), order.end());
      total = std::accumulate(order.begin(), order.end(), 0.0, [&](double s, int32_t id) { return s + weight(id); });
      sum = 0;
      for (int32_t id : order) {
        expected = id;
        if ((sum += weight(id)) > p.uniform * total) break;
      }
    }
    EXPECT_EQ(std::bit_cast<int32_t>(got[r]), expected) << "row " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, DeviceParity, testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& param) { return std::string(DTypeName(param.param)); });

}  // namespace
}  // namespace runahead
