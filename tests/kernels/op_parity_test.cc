#include "tests/kernels/op_parity.h"

#include <bit>

#include "tests/testing/reference_kv_quant.h"
#include "tests/testing/reference_sample.h"

namespace runahead {
namespace {

double Activated(std::optional<Activation> activation, double x) {
  if (!activation.has_value()) return x;
  if (*activation == Activation::kRelu) return x < 0 ? 0 : x;
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

TEST_P(OpParity, LayerNorm) {
  for (const int64_t dim : {1, 7, 129, 768, 2050}) {
    for (const DType dtype : kAllDTypes) {
      const int64_t rows = 5;
      std::vector<float> x = RandomFloats(rows * dim, 1);
      for (int64_t d = 0; d < dim; ++d) x[dim + d] += 100.0f;  // a mean far from zero takes nothing from the variance
      const std::vector<float> w = RandomFloats(dim, 2), b = RandomFloats(dim, 3);
      const Tensor out = memory().Empty(rows, dim, dtype, 3);
      ASSERT_TRUE(device()
                      .LayerNorm(stream(), memory().NewTensor(x, rows, DType::kF32, 2), memory().NewTensor(w, 1),
                                 memory().NewTensor(b, 1), 1e-5f, out)
                      .ok());
      const std::vector<float> got = memory().Read(out);
      for (int64_t t = 0; t < rows; ++t) {
        double mean = 0, variance = 0;
        for (int64_t d = 0; d < dim; ++d) mean += x[t * dim + d] / static_cast<double>(dim);
        for (int64_t d = 0; d < dim; ++d) variance += std::pow(x[t * dim + d] - mean, 2) / static_cast<double>(dim);
        for (int64_t d = 0; d < dim; ++d) {
          const double wanted = (x[t * dim + d] - mean) / std::sqrt(variance + 1e-5) * w[d] + b[d];
          // Where the mean is far away, its own rounding counts.
          ASSERT_NEAR(got[t * dim + d], wanted, Tolerance(dtype, wanted, 1 + std::abs(mean))) << dim << " " << t;
        }
      }
    }
  }
}

TEST_P(OpParity, LinearFinishesWithBiasAndActivation) {
  const int64_t m = 19, n = 129, k = 96;
  const RandomWeights source(WeightType::kQ8_0, n, k, 1);
  auto weights = *device().LoadWeights(source.Source(), kUsePrefill | kUseDecode);
  const std::vector<float> bias = RandomFloats(n, 3);
  for (const bool invariant : {false, true}) {
    const DType in = invariant ? device().invariant_dtype() : device().compute_dtype();
    for (const bool accumulate : {false, true}) {
      for (const std::optional<Activation> activation :
           {std::optional<Activation>(), std::optional(Activation::kRelu), std::optional(Activation::kGelu)}) {
        for (const DType dtype : {DType::kF32, device().compute_dtype()}) {
          for (const bool biased : {false, true}) {
            if (accumulate && (activation.has_value() || dtype != DType::kF32)) continue;
            std::vector<float> x = RandomFloats(m * k, 2);
            for (float& value : x) value = RoundTo(in, value);
            const Tensor out = memory().Empty(m, n, dtype, 4);
            LinearOptions options{.accumulate = accumulate, .batch_invariant = invariant, .activation = activation};
            if (biased) options.bias = memory().NewTensor(bias, 1);
            ASSERT_TRUE(device().Linear(stream(), memory().NewTensor(x, m, in), weights, options, out).ok());
            const std::vector<float> got = memory().Read(out);
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                double sum = biased ? bias[j] : 0, size = 1;
                for (int64_t c = 0; c < k; ++c) {
                  const double product = x[i * k + c] * static_cast<double>(RoundTo(in, source.Value(j, c)));
                  sum += product;
                  size += std::abs(product);
                }
                const double wanted = (accumulate ? 55.0 : 0.0) + Activated(activation, sum);
                ASSERT_NEAR(got[i * n + j], wanted, Tolerance(dtype, wanted, size))
                    << "invariant " << invariant << ", accumulate " << accumulate << ", bias " << biased;
              }
            }
          }
        }
      }
    }
  }
}

TEST_P(OpParity, Activate) {
  const int64_t rows = 3, cols = 131;
  std::vector<float> x = RandomFloats(rows * cols, 1);
  for (float& value : x) value *= 6;
  x[0] = 30.0f;
  x[1] = -30.0f;
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    for (const DType from : kAllDTypes) {
      for (const DType to : kAllDTypes) {
        const Tensor in = memory().NewTensor(x, rows, from, 1), out = memory().Empty(rows, cols, to, 2);
        ASSERT_TRUE(device().Activate(stream(), in, activation, out).ok());
        const std::vector<float> got = memory().Read(out);
        for (int64_t i = 0; i < rows * cols; ++i) {
          const double wanted = Activated(activation, RoundTo(from, x[i]));
          ASSERT_NEAR(got[i], wanted, Tolerance(to, wanted, 1)) << x[i];
        }
        if (from != to) continue;
        ASSERT_TRUE(device().Activate(stream(), in, activation, in).ok());
        EXPECT_EQ(memory().Read(in), got);
      }
    }
    const Tensor nan = memory().NewTensor({kNan, 1.0f}, 1);
    ASSERT_TRUE(device().Activate(stream(), nan, activation, nan).ok());
    EXPECT_TRUE(std::isnan(memory().Read(nan)[0])) << "a NaN must not look like a number";
  }
}

TEST_P(OpParity, GatherMovesRowsAsTheyAre) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t cols : {1, 8, 129}) {
      const int64_t rows = 9;
      std::vector<float> x = RandomFloats(rows * cols, 1);
      for (float& value : x) value = RoundTo(dtype, value);
      const std::vector<int32_t> chosen = {8, 0, 3, 3};
      const Tensor all = memory().NewTensor(x, rows, dtype, 3), few = memory().Empty(4, cols, dtype, 5);
      ASSERT_TRUE(device().GatherRows(stream(), all, chosen, few).ok());
      const std::vector<float> gathered = memory().Read(few);
      for (int64_t i = 0; i < 4; ++i) {
        for (int64_t c = 0; c < cols; ++c) ASSERT_EQ(gathered[i * cols + c], x[chosen[i] * cols + c]);
      }
    }
  }
  const Tensor x = memory().Empty(2, 3), none = memory().Empty(0, 3);
  EXPECT_TRUE(device().GatherRows(stream(), x, {}, MakeTensor(none.ref, DType::kF32, 0, 3)).ok());
  EXPECT_EQ(device().GatherRows(stream(), x, {0, 2}, x).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(OpParity, KvQuantisationIsBitwiseTheReferences) {
  for (const int bits : {4, 8}) {
    for (const int group : {32, 64, 128}) {
      for (const DType dtype : kAllDTypes) {
        const KvQuant quant{bits, group};
        const int64_t rows = 7, cols = 3 * group;
        std::vector<float> x = RandomFloats(rows * cols, static_cast<uint32_t>(bits + group));
        for (int64_t i = 0; i < group; ++i) x[i] = 0;                      // nothing
        for (int64_t i = group; i < 2 * group; ++i) x[i] = -0.3f;          // all the same
        for (int64_t i = 2 * group; i < 3 * group; ++i) x[i] *= 30000.0f;  // as wide as f16 goes
        for (int64_t i = cols; i < cols + group; ++i) x[i] = 5 + 1e-3f * x[i];
        for (int64_t i = 2 * cols; i < 2 * cols + group; ++i) x[i] *= 1e-6f;  // a scale below f16's normal numbers
        for (float& value : x) value = RoundTo(dtype, value);
        const BufferRef quantised = memory().NewBytes(std::vector<std::byte>(rows * KvQuantRowBytes(cols, quant)));
        const Tensor back = memory().Empty(rows, cols, dtype, 8);
        ASSERT_TRUE(device().QuantizeKv(stream(), memory().NewTensor(x, rows, dtype, 4), quant, quantised).ok());
        ASSERT_TRUE(device().DequantizeKv(stream(), quantised, quant, back).ok());
        std::vector<std::byte> bytes;
        std::vector<float> values;
        for (int64_t i = 0; i < rows * cols; i += group) {
          const ReferenceGroup reference = QuantizeReference(x.data() + i, quant);
          bytes.insert(bytes.end(), reference.bytes.begin(), reference.bytes.end());
          for (const float value : reference.values) values.push_back(RoundTo(dtype, value));
        }
        EXPECT_TRUE(memory().ReadBytes(quantised) == bytes) << bits << " bits, groups of " << group;
        EXPECT_EQ(memory().Read(back), values) << bits << " bits, groups of " << group;
        // Half a step off, and what f16 rounds.
        for (int64_t i = 3 * group; i < rows * cols; ++i) {
          ASSERT_NEAR(values[i], x[i], 2.0 / ((1 << bits) - 1) * 0.51 + 0.006) << i;
        }
      }
    }
  }
}

TEST_P(OpParity, KvThatIsNotFiniteReadsBackAsNan) {
  const KvQuant quant{4, 32};
  std::vector<float> x = RandomFloats(5 * 32, 1);
  x[3] = kNan;
  x[32 + 31] = kInfinity;
  x[64] = -kInfinity;
  x[96] = 1e30f;
  x[97] = -1e30f;
  const BufferRef quantised = memory().NewBytes(std::vector<std::byte>(KvQuantRowBytes(5 * 32, quant)));
  const Tensor back = memory().Empty(1, 5 * 32);
  ASSERT_TRUE(device().QuantizeKv(stream(), memory().NewTensor(x, 1), quant, quantised).ok());
  ASSERT_TRUE(device().DequantizeKv(stream(), quantised, quant, back).ok());
  const std::vector<float> got = memory().Read(back);
  for (int i = 0; i < 96; ++i) EXPECT_TRUE(std::isnan(got[i])) << i;
  for (int i = 96; i < 160; ++i) EXPECT_TRUE(std::isfinite(got[i])) << i;
  EXPECT_NEAR(got[96], 65504, 64);  // saturates
  EXPECT_EQ(got[97], -65504);
}

// Gives every third row of `logits` [params.size(), vocab] penalties: in `params`, in the counts [params.size(), vocab]
// that it returns, as they are before the last token, and in the logits, as the op has to see them.
std::vector<float> AddPenalties(int64_t vocab, std::vector<SampleParams>& params, std::vector<float>& logits,
                                std::mt19937& random) {
  const auto rows = static_cast<int64_t>(params.size());
  std::vector<float> counts(rows * vocab);  // whole numbers, in the bits of floats
  for (int64_t t = 1; t < rows; t += 3) {
    SampleParams& own = params[t];
    own.repetition_penalty = t % 2 == 0 ? 1.3f : 0.7f;
    own.presence_penalty = 0.5f;
    own.frequency_penalty = t % 4 == 0 ? 0.25f : -0.125f;
    own.counts_row = static_cast<int32_t>(rows - 1 - t);
    own.last_id = static_cast<int32_t>(random() % vocab);
    own.last_count = 2 + static_cast<int32_t>(random() % 3);
    for (int32_t id = 0; id < vocab; ++id) {
      const int32_t before = random() % 2 == 0 ? 0 : static_cast<int32_t>(random() % 4);
      counts[own.counts_row * vocab + id] = std::bit_cast<float>(before);
      const int32_t count = id == own.last_id ? own.last_count : before;
      float& logit = logits[t * vocab + id];
      if (count > 0) logit = logit > 0 ? logit / own.repetition_penalty : logit * own.repetition_penalty;
      if (count > 1) logit -= own.presence_penalty + own.frequency_penalty * static_cast<float>(count - 1);
    }
  }
  return counts;
}

// Draws of device and reference from rows of random logits.
void CheckDraws(DeviceMemory& memory, int64_t rows, int64_t vocab, bool coarse) {
  const uint32_t seed = static_cast<uint32_t>(vocab);
  std::mt19937 random(seed);
  std::vector<float> logits = RandomFloats(rows * vocab, seed);
  for (float& logit : logits) logit = coarse ? std::round(logit * 4) : logit * 8;  // coarse: nothing but ties
  std::vector<SampleParams> params(rows);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    params[t].temperature = t % 8 == 0 ? 0.0f : static_cast<float>(0.2 + 2 * uniform(random));
    if (t & 1) params[t].top_k = 1 + static_cast<int32_t>(random() % (2 * vocab));
    if (t & 2) params[t].top_p = static_cast<float>(0.05 + 0.9 * uniform(random));
    if (t & 4) params[t].min_p = static_cast<float>(0.3 * uniform(random));
    params[t].uniform = t % 16 == 3 ? 0.0 : t % 16 == 7 ? 1 - 0x1p-53 : uniform(random);
  }
  std::vector<float> penalised = logits;
  const Tensor counts = memory.NewTensor(AddPenalties(vocab, params, penalised, random), rows, DType::kF32, 2);
  const Tensor ids = memory.Empty(rows, 1), values = memory.Empty(rows, 1),
               in = memory.NewTensor(logits, rows, DType::kF32, 3);
  for (int tries = 0; tries < 2; ++tries) {  // the second changes nothing
    ASSERT_TRUE(memory.device().Sample(memory.stream(), in, params, counts, ids, values).ok());
  }
  const std::vector<std::byte> bytes = memory.ReadBytes(ids.ref);
  const std::vector<float> drawn = memory.Read(values);
  int close = 0;
  for (int64_t t = 0; t < rows; ++t) {
    int32_t got;
    std::memcpy(&got, bytes.data() + t * sizeof(got), sizeof(got));
    const auto begin = penalised.begin() + t * vocab;
    const ReferenceDraw wanted = ReferenceSample(std::vector<float>(begin, begin + vocab), params[t]);
    close += wanted.close;
    if (!wanted.close) {
      EXPECT_EQ(got, wanted.id) << "row " << t << " of vocabulary " << vocab;
    }
    ASSERT_TRUE(got >= 0 && got < vocab) << got;
    EXPECT_EQ(drawn[t], logits[t * vocab + got]) << "the logit before penalties";
  }
  EXPECT_LT(close, rows / 2);
}

TEST_P(OpParity, SampleDrawsWhatTheReferenceDraws) {
  for (const int64_t vocab : {1, 37, 1003}) {
    for (const bool coarse : {false, true}) CheckDraws(memory(), 24, vocab, coarse);
  }
  CheckDraws(memory(), 8, 20011, false);
}

TEST_P(OpParity, SampleDoesNotDependOnItsNeighboursAndMarksWhatIsNotFinite) {
  const int64_t rows = 9, vocab = 3001;
  std::vector<float> logits = RandomFloats(rows * vocab, 1);
  logits[2 * vocab + 17] = kNan;
  logits[4 * vocab + 3000] = kInfinity;
  logits[6 * vocab] = -kInfinity;
  std::vector<SampleParams> params(rows, {.temperature = 1, .top_p = 0.9f, .uniform = 0.3});
  params[6].temperature = 0;
  const Tensor in = memory().NewTensor(logits, rows), together = memory().Empty(rows, 1);
  const Tensor alone = memory().Empty(rows, 1), values = memory().Empty(rows, 1);
  ASSERT_TRUE(device().Sample(stream(), in, params, {}, together, values).ok());
  for (int64_t t = 0; t < rows; ++t) {
    ASSERT_TRUE(device().Sample(stream(), in.Rows(t, 1), {params[t]}, {}, alone.Rows(t, 1), values.Rows(t, 1)).ok());
  }
  const std::vector<std::byte> bytes = memory().ReadBytes(together.ref);
  EXPECT_TRUE(memory().ReadBytes(alone.ref) == bytes);
  for (int64_t t = 0; t < rows; ++t) {
    int32_t id;
    std::memcpy(&id, bytes.data() + t * sizeof(id), sizeof(id));
    EXPECT_EQ(id == -1, t == 2 || t == 4 || t == 6) << t << ": " << id;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpParity, AllParityCases(), NameOf);

}  // namespace
}  // namespace runahead
