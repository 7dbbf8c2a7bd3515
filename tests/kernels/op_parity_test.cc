#include "tests/kernels/op_parity.h"

#include <bit>
#include <tuple>

#include "tests/testing/reference_activation.h"
#include "tests/testing/reference_kv_quant.h"
#include "tests/testing/reference_sample.h"

namespace runahead {
namespace {

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

TEST_P(OpParity, Scale) {
  for (const int64_t dim : {1, 7, 129, 2050}) {
    const int64_t rows = 5;
    const std::vector<float> x = RandomFloats(rows * dim, 1), before = RandomFloats(rows * dim, 2);
    for (const bool accumulate : {false, true}) {
      const Tensor out = memory().NewTensor(before, rows, DType::kF32, 3);
      ASSERT_TRUE(device().Scale(stream(), memory().NewTensor(x, rows, DType::kF32, 2), 2.5f, accumulate, out).ok());
      const std::vector<float> got = memory().Read(out);
      for (int64_t i = 0; i < rows * dim; ++i) {
        ASSERT_NEAR(got[i], 2.5 * x[i] + (accumulate ? before[i] : 0), 1e-5) << dim << " " << i;
      }
    }
    const Tensor in_place = memory().NewTensor(x, rows);
    ASSERT_TRUE(device().Scale(stream(), in_place, -3.0f, false, in_place).ok());
    const std::vector<float> got = memory().Read(in_place);
    for (int64_t i = 0; i < rows * dim; ++i) ASSERT_NEAR(got[i], -3.0 * x[i], 1e-5) << dim << " " << i;
  }
}

TEST_P(OpParity, SoftCap) {
  for (const int64_t dim : {1, 7, 129, 2050}) {
    const int64_t rows = 3;
    std::vector<float> x = RandomFloats(rows * dim, 1);
    for (float& value : x) value *= 40;
    const Tensor in_place = memory().NewTensor(x, rows, DType::kF32, 3);
    ASSERT_TRUE(device().SoftCap(stream(), in_place, 30.0f).ok());
    const std::vector<float> got = memory().Read(in_place);
    for (int64_t i = 0; i < rows * dim; ++i) ASSERT_NEAR(got[i], 30 * std::tanh(x[i] / 30.0), 1e-4) << dim << " " << i;
  }
  EXPECT_EQ(device().SoftCap(stream(), memory().Empty(1, 8), 0.0f).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(OpParity, LinearFinishesWithBiasAndActivation) {
  const int64_t m = 19, n = 129, k = 96;
  const RandomWeights source(WeightType::kQ8_0, n, k, 1);
  auto weights = *device().LoadWeights(source.Source(), kUsePrefill | kUseDecode);
  const std::vector<float> bias = RandomFloats(n, 3);
  for (const bool invariant : {false, true}) {
    const DType in = invariant ? device().invariant_dtype() : device().compute_dtype();
    for (const bool accumulate : {false, true}) {
      std::vector<std::optional<Activation>> activations = {std::nullopt};
      activations.insert(activations.end(), std::begin(kAllActivations), std::end(kAllActivations));
      for (const std::optional<Activation> activation : activations) {
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
                const double wanted =
                    (accumulate ? 55.0 : 0.0) + (activation.has_value() ? ReferenceActivation(*activation, sum) : sum);
                // cuBLASLt's own GELU takes the sum in the result's type, and its tanh has 11 bits.
                const bool gelu = activation == Activation::kGeluTanh;
                const double fused = gelu ? Tolerance(dtype, sum, 0) + 0x1p-12 * std::abs(sum) : 0;
                ASSERT_NEAR(got[i * n + j], wanted, Tolerance(dtype, wanted, size) + fused)
                    << "invariant " << invariant << ", accumulate " << accumulate << ", bias " << biased;
              }
            }
          }
        }
      }
    }
  }
}

// Weights of two types, one above the other, with a cut where packed layouts have a border and one where they have
// none.
struct CutWeights {
  static constexpr int64_t kRows = 199, kCols = 96, kFirstRows = 133;
  RandomWeights first{WeightType::kQ8_0, kFirstRows, kCols, 1}, second{WeightType::kF32, kRows - kFirstRows, kCols, 2};
  WeightSource Source() const { return {nullptr, kCols, {first.Rows(), second.Rows()}, {64, 70, 128}}; }
  double Value(int64_t row, int64_t col) const {
    return row < kFirstRows ? first.Value(row, col) : second.Value(row - kFirstRows, col);
  }
};

TEST_P(OpParity, LinearOfSomeRowsIsBitwiseThatOfAllUnderBatchInvariance) {
  const CutWeights source;
  const auto weights = *device().LoadWeights(source.Source(), kUseDecode);
  const DType in = device().invariant_dtype();
  const int64_t n = CutWeights::kRows;
  const Tensor bias = memory().NewTensor(RandomFloats(n, 3), 1);
  for (const int64_t m : {1, 7}) {
    const Tensor x = memory().NewTensor(RandomFloats(m * CutWeights::kCols, 4), m, in);
    for (const auto& [accumulate, activation, dtype] : {std::tuple(false, std::optional<Activation>(), DType::kF32),
                                                        std::tuple(true, std::optional<Activation>(), DType::kF32),
                                                        std::tuple(false, std::optional(Activation::kSilu), dtype())}) {
      LinearOptions options{.accumulate = accumulate, .batch_invariant = true, .bias = bias, .activation = activation};
      const Tensor whole = memory().Empty(m, n, dtype);
      ASSERT_TRUE(device().Linear(stream(), x, weights, options, whole).ok());
      const std::vector<float> wanted = memory().Read(whole);
      for (const auto& [begin, end] : {std::pair(0, 199), std::pair(0, 1), std::pair(1, 3), std::pair(3, 135),
                                       std::pair(131, 134), std::pair(133, 199), std::pair(198, 199)}) {
        const int64_t cols = end - begin;
        const Tensor some = memory().Empty(m, cols, dtype, 5);
        options.first_row = begin;
        options.bias = bias.Cols(begin, cols);
        ASSERT_TRUE(device().Linear(stream(), x, weights, options, some).ok());
        const std::vector<float> got = memory().Read(some);
        for (int64_t i = 0; i < m * cols; ++i) {
          ASSERT_EQ(got[i], wanted[i / cols * n + begin + i % cols]) << begin << " to " << end << ", element " << i;
        }
      }
    }
  }
}

TEST_P(OpParity, LinearOfTheRowsBetweenCuts) {
  const CutWeights source;
  const auto weights = *device().LoadWeights(source.Source(), kUsePrefill);
  const int64_t m = 37, k = CutWeights::kCols;
  std::vector<float> x = RandomFloats(m * k, 4);
  for (float& value : x) value = RoundTo(dtype(), value);
  const std::vector<float> bias = RandomFloats(CutWeights::kRows, 3);
  const Tensor in = memory().NewTensor(x, m, dtype());
  for (const auto& [begin, end] : {std::pair(0, 199), std::pair(0, 64), std::pair(64, 70), std::pair(0, 70),
                                   std::pair(70, 199), std::pair(128, 199), std::pair(64, 128), std::pair(64, 199)}) {
    for (const bool accumulate : {false, true}) {
      const int64_t cols = end - begin;
      const Tensor out = memory().Empty(m, cols, DType::kF32, 3);
      LinearOptions options{.accumulate = accumulate, .first_row = begin};
      options.bias = memory().NewTensor(bias, 1).Cols(begin, cols);
      if (!accumulate) options.activation = Activation::kRelu;
      ASSERT_TRUE(device().Linear(stream(), in, weights, options, out).ok());
      const std::vector<float> got = memory().Read(out);
      for (int64_t i = 0; i < m * cols; ++i) {
        double sum = bias[begin + i % cols], size = 1;
        for (int64_t c = 0; c < k; ++c) {
          const double product =
              x[i / cols * k + c] * static_cast<double>(RoundTo(dtype(), source.Value(begin + i % cols, c)));
          sum += product;
          size += std::abs(product);
        }
        const double wanted = accumulate ? 55.0 + sum : std::max(sum, 0.0);
        ASSERT_NEAR(got[i], wanted, Tolerance(DType::kF32, wanted, size)) << begin << " to " << end;
      }
    }
  }
}

// Both forms, also between cuts: from a slot that is filled by a copy, and not from where they are at home.
TEST_P(OpParity, LinearInBlocksGivesARowTheSameWhateverOtherBlocksThereAre) {
  const CutWeights source;
  const auto weights = *device().LoadWeights(source.Source(), kUsePrefill);
  const int64_t k = CutWeights::kCols, begin = 64, cols = 135;
  const std::vector<int32_t> blocks = {256, 64, 1, 192};
  const int64_t m = 256 + 64 + 1 + 192;
  std::vector<float> values = RandomFloats(m * k, 4);
  for (float& value : values) value = RoundTo(dtype(), value);
  const Tensor x = memory().NewTensor(values, m, dtype());
  const Tensor bias = memory().NewTensor(RandomFloats(CutWeights::kRows, 3), 1);
  for (const DType to : {DType::kF32, dtype()}) {
    LinearOptions options{.first_row = begin, .blocks = blocks, .bias = bias.Cols(begin, cols)};
    const Tensor whole = memory().Empty(m, cols, to, 3);
    ASSERT_TRUE(device().Linear(stream(), x, weights, options, whole).ok());
    const std::vector<float> wanted = memory().Read(whole);
    int64_t first = 0;
    for (const int32_t count : blocks) {
      const Tensor alone = memory().Empty(count, cols, to);
      options.blocks = {count};
      ASSERT_TRUE(device().Linear(stream(), x.Rows(first, count), weights, options, alone).ok());
      const std::vector<float> got = memory().Read(alone);
      for (int64_t i = 0; i < count * cols; ++i) ASSERT_EQ(got[i], wanted[first * cols + i]) << first << ", " << i;
      first += count;
    }
  }
  const Tensor out = memory().Empty(m, cols);
  EXPECT_EQ(device().Linear(stream(), x, weights, {.first_row = begin, .blocks = {256, 64}}, out).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(OpParity, LinearOfStreamedWeightsIsBitwiseThatOfResidentOnes) {
  const CutWeights source;
  const int64_t m = 37, k = CutWeights::kCols;
  const std::vector<float> values = RandomFloats(m * k, 4), bias = RandomFloats(CutWeights::kRows, 3);
  const std::pair<unsigned, bool> forms[] = {
      {kUsePrefill, false}, {kUseDecode, true}, {kUsePrefill | kUseDecode, false}, {kUsePrefill | kUseDecode, true}};
  for (const auto& [uses, invariant] : forms) {
    const auto resident = *device().LoadWeights(source.Source(), uses);
    const size_t left = device().memory_left();
    const auto streamed = *device().LoadWeights(source.Source(), uses | kUseStreamed);
    EXPECT_EQ(device().memory_left(), left);
    EXPECT_EQ(resident->home().buffer, nullptr);
    const ConstBufferRef home = streamed->home();
    const BufferRef slot =
        BufferRef::Whole(*device().Allocate(home.size + 256, MemoryKind::kDevice)).Slice(256, home.size);
    const auto there = *device().WeightsAt(*streamed, slot);
    ASSERT_TRUE(device().Copy(stream(), home, slot).ok());
    const Tensor x = memory().NewTensor(values, m, invariant ? device().invariant_dtype() : dtype());
    for (const auto& [begin, end] : {std::pair(0, 199), std::pair(64, 70), std::pair(70, 199), std::pair(128, 199)}) {
      LinearOptions options{.batch_invariant = invariant, .first_row = begin};
      options.bias = memory().NewTensor(bias, 1).Cols(begin, end - begin);
      const Tensor wanted = memory().Empty(m, end - begin), got = memory().Empty(m, end - begin);
      ASSERT_TRUE(device().Linear(stream(), x, resident, options, wanted).ok());
      ASSERT_TRUE(device().Linear(stream(), x, there, options, got).ok());
      EXPECT_EQ(memory().Read(got), memory().Read(wanted)) << invariant << ": " << begin << " to " << end;
      EXPECT_EQ(device().Linear(stream(), x, streamed, options, got).code(), absl::StatusCode::kFailedPrecondition);
    }
    EXPECT_EQ(device().Embed(stream(), *streamed, {1}, false, memory().Empty(1, k)).code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(device().WeightsAt(*resident, slot).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(device().WeightsAt(*streamed, slot.Slice(0, slot.size - 1)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(OpParity, Activate) {
  const int64_t rows = 3, cols = 131;
  std::vector<float> x = RandomFloats(rows * cols, 1);
  for (float& value : x) value *= 6;
  x[0] = 30.0f;
  x[1] = -30.0f;
  for (const Activation activation : kAllActivations) {
    for (const DType from : kAllDTypes) {
      for (const DType to : kAllDTypes) {
        const Tensor in = memory().NewTensor(x, rows, from, 1), out = memory().Empty(rows, cols, to, 2);
        ASSERT_TRUE(device().Activate(stream(), in, activation, out).ok());
        const std::vector<float> got = memory().Read(out);
        for (int64_t i = 0; i < rows * cols; ++i) {
          const double wanted = ReferenceActivation(activation, RoundTo(from, x[i]));
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

TEST_P(OpParity, GatedActivate) {
  for (const int64_t cols : {1, 31, 200}) {
    for (const Activation activation : kAllActivations) {
      const int64_t rows = 3;
      std::vector<float> x = RandomFloats(rows * 2 * cols, 5, 4.0f);
      x[0] = -120.0f;  // an exponential overflows
      for (float& value : x) value = RoundTo(dtype(), value);
      const Tensor out = memory().Empty(rows, cols, dtype(), 5);
      ASSERT_TRUE(device().GatedActivate(stream(), memory().NewTensor(x, rows, dtype(), 2), activation, out).ok());
      const std::vector<float> got = memory().Read(out);
      for (int64_t i = 0; i < rows * cols; ++i) {
        const double gate = x[i / cols * 2 * cols + i % cols], up = x[i / cols * 2 * cols + cols + i % cols];
        const double wanted = ReferenceActivation(activation, gate) * up;
        ASSERT_NEAR(got[i], wanted, Tolerance(dtype(), wanted, std::abs(up))) << gate;
      }
    }
  }
}

// Heads of `dim` between columns that are none: how x may be some columns of a wider tensor.
struct WiderRows {
  int64_t rows, before, heads, dim, after;
  int64_t cols() const { return before + heads * dim + after; }
  Tensor Heads(const Tensor& whole) const { return whole.Cols(before, heads * dim); }
  // Index of element d of a head, or -1 for a column that is no head's.
  int64_t HeadOf(int64_t col) const { return col < before || col >= cols() - after ? -1 : (col - before) / dim; }
};

TEST_P(OpParity, HeadNorm) {
  for (const int64_t dim : {1, 6, 64, 129, 1500}) {
    const WiderRows shape{.rows = 5, .before = 3, .heads = 3, .dim = dim, .after = 2};
    const std::vector<float> x = RandomFloats(shape.rows * shape.cols(), 1, 3.0f), w = RandomFloats(dim, 2);
    const Tensor whole = memory().NewTensor(x, shape.rows, DType::kF32, 1);
    ASSERT_TRUE(device().HeadNorm(stream(), shape.Heads(whole), dim, memory().NewTensor(w, 1), 1e-5f).ok());
    const std::vector<float> got = memory().Read(whole);
    for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
      const int64_t col = i % shape.cols(), head = shape.HeadOf(col);
      if (head < 0) {
        ASSERT_EQ(got[i], x[i]) << "column " << col << " is no head's";
        continue;
      }
      const int64_t d = (col - shape.before) % dim;
      double squares = 0;
      for (int64_t j = i - d; j < i - d + dim; ++j) squares += static_cast<double>(x[j]) * x[j];
      const double wanted = x[i] / std::sqrt(squares / static_cast<double>(dim) + 1e-5) * w[d];
      ASSERT_NEAR(got[i], wanted, Tolerance(DType::kF32, wanted, std::abs(wanted))) << dim;
    }
  }
}

TEST_P(OpParity, RopeRotatesTheFirstElementsOfEachHead) {
  struct {
    int64_t dim, rotated;
  } const sizes[] = {{2, 2}, {7, 4}, {16, 16}, {48, 34}, {64, 16}, {80, 80}, {128, 128}};
  const std::vector<int32_t> positions = {0, 39, 3, 3, 17};
  KvLayout layout{.page_tokens = 64, .pages = {0}, .sequences = {{.length = 9, .end = 9}}};  // row 0, left out
  for (const int32_t position : positions) layout.sequences.push_back({.length = position + 1, .end = position + 1});
  const auto table = device().MakeKvTable(stream(), layout);
  ASSERT_TRUE(table.ok()) << table.status();
  for (const auto& [dim, rotated] : sizes) {
    for (const auto& [interleaved, dtype] : {std::pair(false, DType::kF32), std::pair(true, DType::kF32),
                                             std::pair(false, DType::kBF16), std::pair(true, DType::kF16)}) {
      const WiderRows shape{.rows = 5, .before = 4, .heads = 3, .dim = dim, .after = 3};
      const std::vector<float> turns = RandomFloats(40 * rotated, 9);
      std::vector<float> x = RandomFloats(shape.rows * shape.cols(), 8);
      for (float& value : x) value = RoundTo(dtype, value);
      const Tensor whole = memory().NewTensor(x, shape.rows, dtype, 1);
      const Rotation rotation{.table = memory().NewTensor(turns, 40, DType::kF32, 4), .interleaved = interleaved};
      ASSERT_TRUE(device().Rope(stream(), shape.Heads(whole), dim, rotation, **table, 1).ok());
      const std::vector<float> got = memory().Read(whole);
      const int64_t half = rotated / 2;
      for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
        const int64_t col = i % shape.cols(), d = (col - shape.before) % dim;
        if (shape.HeadOf(col) < 0 || d >= rotated) {
          ASSERT_EQ(got[i], x[i]) << "column " << col << " is not rotated";
          continue;
        }
        const int64_t pair = interleaved ? d / 2 : d % half;
        const bool first = interleaved ? d % 2 == 0 : d < half;
        const int64_t apart = interleaved ? 1 : half;
        const float* const turn = &turns[positions[i / shape.cols()] * rotated];
        const double c = turn[pair], s = turn[half + pair];
        const double wanted = first ? x[i] * c - x[i + apart] * s : x[i] * c + x[i - apart] * s;
        ASSERT_NEAR(got[i], wanted, Tolerance(dtype, wanted, 1)) << dim << ", " << rotated << ", " << interleaved;
      }
    }
  }
}

TEST_P(OpParity, StoreQkvMovesRowsAsTheyAreRounded) {
  for (const int64_t dim : {6, 16, 64}) {
    for (const bool with_q : {false, true}) {
      const int64_t heads = 6, kv_heads = 2, tokens = 9;
      const AttentionShape shape{heads, kv_heads, dim, dtype()};
      const int64_t q_cols = with_q ? heads * dim : 0, kv_cols = 2 * kv_heads * dim, cols = q_cols + kv_cols;
      const std::vector<float> qkv = RandomFloats(tokens * cols, 8);
      const Tensor kv = memory().Empty(13, kv_cols, dtype());
      // The rows of a sequence need not lie together, nor in order.
      const std::vector<int32_t> places = {7, 8, 0, 1, 2, 3, 4, 5, 6};
      const auto table = device().MakeKvTable(
          stream(),
          {.page_tokens = 1, .pages = places, .sequences = {{.queries = tokens, .length = tokens, .end = 9}}});
      ASSERT_TRUE(table.ok()) << table.status();
      for (const DType q_dtype : {DType::kF32, dtype()}) {
        const Tensor q = with_q ? memory().Empty(tokens, q_cols, q_dtype, 4) : Tensor{};
        const Tensor in = memory().NewTensor(qkv, tokens, DType::kF32, 3);
        ASSERT_TRUE(device().StoreQkv(stream(), in, shape, q, **table, 0, kv.ref).ok());
        const std::vector<float> got_q = with_q ? memory().Read(q) : std::vector<float>{}, got_kv = memory().Read(kv);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t c = 0; c < cols; ++c) {
            const float got = c < q_cols ? got_q[t * q_cols + c] : got_kv[places[t] * kv_cols + c - q_cols];
            ASSERT_EQ(got, RoundTo(c < q_cols ? q_dtype : dtype(), qkv[t * cols + c])) << t << " " << c;
          }
        }
        for (size_t i = 9 * kv_cols; i < got_kv.size(); ++i) ASSERT_EQ(got_kv[i], 55.0f) << "a row of nobody";
      }
    }
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

TEST_P(OpParity, ExchangedRowsGoWhereTheyAreToOnBothSidesOfTheLink) {
  for (const DType dtype : kAllDTypes) {
    for (const int64_t cols : {1, 8, 129}) {
      const int64_t rows = 9;
      std::vector<float> values = RandomFloats(rows * cols, 1);
      for (float& value : values) value = RoundTo(dtype, value);
      const Tensor there = memory().NewTensor(values, rows, dtype, 3);
      const BufferRef host_memory =
          BufferRef::Whole(*device().Allocate(rows * cols * DTypeSize(dtype), MemoryKind::kHost));
      std::memset(host_memory.data(), 0, host_memory.size);
      const Tensor host = MakeTensor(host_memory, dtype, rows, cols), back = memory().Empty(rows, cols, dtype, 5);
      ASSERT_TRUE(device().ExchangeRows(stream(), there, {{8, 2}, {0, 0}, {3, 3}}, host).ok());
      ASSERT_TRUE(device().ExchangeRows(stream(), host, {{0, 0}, {1, 1}, {2, 8}}, back).ok());
      const std::vector<float> got = memory().Read(back);
      for (int64_t row = 0; row < rows; ++row) {
        const bool both = row == 0 || row == 8;
        for (int64_t c = 0; c < cols; ++c) {
          ASSERT_EQ(got[row * cols + c], both ? values[row * cols + c] : row == 1 ? 0.0f : 55.0f) << row << " " << c;
        }
      }
    }
  }
  const Tensor x = memory().Empty(2, 3);
  EXPECT_TRUE(device().ExchangeRows(stream(), x, {}, memory().Empty(2, 3)).ok());
  EXPECT_EQ(device().ExchangeRows(stream(), x, {{2, 0}}, memory().Empty(2, 3)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(device().ExchangeRows(stream(), x, {{0, 1}}, memory().Empty(1, 3)).code(),
            absl::StatusCode::kInvalidArgument);
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

TEST_P(OpParity, XQuantisationIsBitwiseTheReferences) {
  for (const int bits : {8, 16}) {
    for (const DType dtype : kAllDTypes) {
      const KvQuant quant{bits, 32, /*symmetric=*/true};
      const int64_t rows = 7, cols = 3 * 32;
      std::vector<float> x = RandomFloats(rows * cols, static_cast<uint32_t>(bits));
      for (int64_t i = 0; i < 32; ++i) x[i] = 0;
      for (int64_t i = 32; i < 64; ++i) x[i] = -0.3f;
      for (int64_t i = 64; i < 96; ++i) x[i] *= 1e-4f;
      for (float& value : x) value = RoundTo(dtype, value);
      x[cols + 5] = kNan;
      x[cols + 40] = -kInfinity;
      const BufferRef quantised = memory().NewBytes(std::vector<std::byte>(rows * KvQuantRowBytes(cols, quant)));
      const Tensor back = memory().Empty(rows, cols, DType::kF32, 8);
      ASSERT_TRUE(device().QuantizeKv(stream(), memory().NewTensor(x, rows, dtype, 4), quant, quantised).ok());
      ASSERT_TRUE(device().DequantizeKv(stream(), quantised, quant, back).ok());
      std::vector<std::byte> bytes;
      std::vector<float> values;
      for (int64_t i = 0; i < rows * cols; i += 32) {
        const ReferenceGroup reference = QuantizeReference(x.data() + i, quant);
        bytes.insert(bytes.end(), reference.bytes.begin(), reference.bytes.end());
        values.insert(values.end(), reference.values.begin(), reference.values.end());
      }
      const std::vector<std::byte> got_bytes = memory().ReadBytes(quantised);
      const std::vector<float> got = memory().Read(back);
      ASSERT_EQ(got.size(), values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        const bool in_nan = i / 32 == cols / 32 || i / 32 == cols / 32 + 1;
        ASSERT_EQ(std::isnan(got[i]), in_nan) << i;
        if (in_nan) continue;
        EXPECT_EQ(got[i], values[i]) << i;
        ASSERT_NEAR(got[i], x[i], 2.0 / ((1 << bits) - 2) * 0.51) << "half a step off at most";
        // What is a NaN has one of many forms, the rest has one.
        const size_t group_bytes = KvQuantGroupBytes(quant), at = i / 32 * group_bytes;
        ASSERT_EQ(std::memcmp(got_bytes.data() + at, bytes.data() + at, group_bytes), 0) << i;
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
    own.kept = own.known = 1;
    own.tokens[0] = {static_cast<int32_t>(random() % vocab), 2 + static_cast<int32_t>(random() % 3)};
    for (int32_t id = 0; id < vocab; ++id) {
      const int32_t before = random() % 2 == 0 ? 0 : static_cast<int32_t>(random() % 4);
      counts[own.counts_row * vocab + id] = std::bit_cast<float>(before);
      const int32_t count = id == own.tokens[0].id ? own.tokens[0].count : before;
      float& logit = logits[t * vocab + id];
      if (count > 0) logit = logit > 0 ? logit / own.repetition_penalty : logit * own.repetition_penalty;
      if (count > 1) logit -= own.presence_penalty + own.frequency_penalty * static_cast<float>(count - 1);
    }
  }
  return counts;
}

// Adds a bias to every fourth row of `logits`, as the op has to see it, before penalties. The table of it, in which
// rows stand the other way round.
std::vector<float> AddBiases(int64_t vocab, std::vector<SampleParams>& params, std::vector<float>& logits,
                             std::mt19937& random) {
  const auto rows = static_cast<int64_t>(params.size());
  std::vector<float> bias(rows * vocab);
  for (int64_t t = 2; t < rows; t += 4) {
    params[t].bias_row = static_cast<int32_t>(rows - 1 - t);
    for (int64_t id = 0; id < vocab; ++id) {
      float& own = bias[params[t].bias_row * vocab + id];
      if (random() % 3 == 0) own = static_cast<float>(random() % 9) - 4;
      logits[t * vocab + id] += own;
    }
  }
  return bias;
}

// Gives every fifth row a mask, in one table. The logits of what it forbids become what no draw takes beside others.
std::vector<uint32_t> AddMasks(int64_t vocab, std::vector<SampleParams>& params, std::vector<float>& logits,
                               std::mt19937& random) {
  const auto rows = static_cast<int64_t>(params.size());
  std::vector<uint32_t> masks(rows * MaskWords(vocab));
  for (int64_t t = 0; t < rows; t += 5) {
    params[t].allowed_row = static_cast<int32_t>(rows - 1 - t);
    uint32_t* const mask = masks.data() + params[t].allowed_row * MaskWords(vocab);
    const auto always = static_cast<int64_t>(random() % vocab);
    for (int64_t id = 0; id < vocab; ++id) {
      if (id == always || random() % 4 == 0) mask[id / 32] |= 1u << (id % 32);
      if ((mask[id / 32] >> (id % 32) & 1) == 0) logits[t * vocab + id] = -1e30f;
    }
  }
  return masks;
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
  const Tensor bias = memory.NewTensor(AddBiases(vocab, params, penalised, random), rows, DType::kF32, 1);
  const Tensor counts = memory.NewTensor(AddPenalties(vocab, params, penalised, random), rows, DType::kF32, 2);
  const std::vector<uint32_t> words = AddMasks(vocab, params, penalised, random);
  std::vector<float> bits(words.size());
  std::memcpy(bits.data(), words.data(), words.size() * sizeof(uint32_t));
  const Tensor masks = memory.NewTensor(bits, rows, DType::kF32, 1);
  const Tensor ids = memory.Empty(rows, 1), values = memory.Empty(rows, 1),
               in = memory.NewTensor(logits, rows, DType::kF32, 3);
  for (int tries = 0; tries < 2; ++tries) {  // the second changes nothing
    ASSERT_TRUE(memory.device().Sample(memory.stream(), in, params, {counts, bias, masks}, ids, values).ok());
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
    EXPECT_GT(penalised[t * vocab + got], -1e29f) << "row " << t << ": its mask forbids " << got;
    EXPECT_EQ(drawn[t], logits[t * vocab + got]) << "the logit before bias and penalties";
  }
  EXPECT_LT(close, rows / 2);
}

TEST_P(OpParity, SampleDrawsWhatTheReferenceDraws) {
  for (const int64_t vocab : {1, 37, 1003}) {
    for (const bool coarse : {false, true}) CheckDraws(memory(), 24, vocab, coarse);
  }
  CheckDraws(memory(), 8, 20011, false);
}

TEST_P(OpParity, SampleMarksARowWhoseMaskIsEmpty) {
  const int64_t rows = 5, vocab = 45;
  std::vector<SampleParams> params(rows, {.temperature = 1, .uniform = 0.5, .allowed_row = 0});
  params[1].allowed_row = 1;
  params[2].allowed_row = -1;
  params[3].temperature = 0;
  params[4] = {.allowed_row = 1};
  // Of the one row no id; of the other the last one. What is set behind the vocabulary is no id.
  std::vector<float> bits(2 * MaskWords(vocab), std::bit_cast<float>(0u));
  bits[1] = std::bit_cast<float>(1u << 13);
  bits[3] = std::bit_cast<float>(1u << 12);
  const Tensor masks = memory().NewTensor(bits, 2), ids = memory().Empty(rows, 1), values = memory().Empty(rows, 1);
  const Tensor in = memory().NewTensor(RandomFloats(rows * vocab, 3), rows);
  ASSERT_TRUE(device().Sample(stream(), in, params, {.allowed = masks}, ids, values).ok());
  std::vector<int32_t> drawn(rows);
  std::memcpy(drawn.data(), memory().ReadBytes(ids.ref).data(), rows * sizeof(int32_t));
  EXPECT_EQ(drawn[0], kNothingAllowed);
  EXPECT_EQ(drawn[1], 44);
  EXPECT_GE(drawn[2], 0);
  EXPECT_EQ(drawn[3], kNothingAllowed);
  EXPECT_EQ(drawn[4], 44);
}

// Rows of one sequence have one row of counts. What each knows beside it is for its own draw, but for what is kept.
TEST_P(OpParity, RowsOfASequenceAreDrawnWithOneRowOfCountsAndWhatEachKnows) {
  constexpr int64_t kVocab = 1'500, kRows = 4;
  std::vector<float> logits(kRows * kVocab, 0.0f), before(2 * kVocab, std::bit_cast<float>(0));
  for (int64_t t = 0; t < kRows; ++t) {
    for (const int32_t id : {7, 900, 1'400}) logits[t * kVocab + id] = id == 7 ? 10 : id == 900 ? 9 : 8;
  }
  std::vector<SampleParams> params(kRows, {.presence_penalty = 4, .counts_row = 1});
  const auto know = [](SampleParams& own, int32_t id, int32_t count) { own.tokens[own.known++] = {id, count}; };
  know(params[0], 3, 2);  // kept: a token that none of the others is about
  params[0].kept = 1;
  for (size_t t = 1; t < 4; ++t) know(params[t], 3, 2);
  know(params[1], 7, 2);
  know(params[2], 7, 2), know(params[2], 900, 2);
  know(params[3], 7, 2), know(params[3], 900, 2), know(params[3], 7, 0);  // the last of an id counts
  const Tensor counts = memory().NewTensor(before, 2), ids = memory().Empty(kRows, 1),
               values = memory().Empty(kRows, 1);
  for (int tries = 0; tries < 2; ++tries) {
    ASSERT_TRUE(device().Sample(stream(), memory().NewTensor(logits, kRows), params, {counts}, ids, values).ok());
  }
  std::vector<int32_t> drawn(kRows);
  std::memcpy(drawn.data(), memory().ReadBytes(ids.ref).data(), kRows * sizeof(int32_t));
  EXPECT_THAT(drawn, ::testing::ElementsAre(7, 900, 1'400, 7));
  std::vector<float> after = before;
  after[kVocab + 3] = std::bit_cast<float>(2);
  EXPECT_EQ(memory().Read(counts), after) << "nothing but what is kept";
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
