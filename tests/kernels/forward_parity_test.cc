// The ops of a forward pass on every device; attention is in attention_parity_test.cc.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "tests/kernels/op_parity.h"

namespace runahead {
namespace {

using Values = std::vector<double>;

class ForwardParity : public OpParity {
 protected:
  // `sizes`: of what was added up for each value.
  void ExpectNear(const Tensor& out, const Values& wanted, const Values& sizes) {
    const std::vector<float> got = memory().Read(out);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], wanted[i], Tolerance(out.dtype, wanted[i], std::abs(sizes[i]))) << "element " << i;
    }
  }
};

TEST_P(ForwardParity, EmbedReadsTheRowsOfTheIdsOrAddsThem) {
  for (WeightType type : kAllWeightTypes) {
    const int64_t cols = ColsFor(type, 96);
    const RandomWeights table(type, 37, cols, 3);
    const auto weights = device().LoadWeights(table.Source(), kUseDecode);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::vector<int32_t> ids = {36, 0, 5, 5, 17};
    const Tensor out = memory().Empty(5, cols, DType::kF32, 3);
    ASSERT_TRUE(device().Embed(stream(), **weights, ids, false, out).ok());
    const std::vector<float> got = memory().Read(out);
    const std::vector<int32_t> more = {1, 1, 36, 20, 0};
    ASSERT_TRUE(device().Embed(stream(), **weights, more, true, out).ok());
    const std::vector<float> sum = memory().Read(out);
    for (size_t i = 0; i < ids.size() * cols; ++i) {
      const double wanted = table.Value(ids[i / cols], i % cols), added = table.Value(more[i / cols], i % cols);
      // A device keeps the table as it was stored, or in its compute dtype.
      ASSERT_NEAR(got[i], wanted, Tolerance(dtype(), wanted, 0)) << "element " << i;
      ASSERT_NEAR(sum[i], wanted + added, Tolerance(dtype(), wanted, 0) + Tolerance(dtype(), added, 0))
          << "element " << i;
    }
  }
}

TEST_P(ForwardParity, WeightsOfManyRunsAndTypesAreOneMatrix) {
  // As Q and K come: row by row; and more bytes than are staged at once.
  const RandomWeights a(WeightType::kQ4_0, 300, 32, 1), b(WeightType::kF16, 70, 32, 2);
  WeightSource source{nullptr, 32, {}};
  std::vector<int64_t> order(300);
  std::iota(order.begin(), order.end(), 0);
  std::reverse(order.begin(), order.end());
  for (int64_t row : order) source.runs.push_back({a.type, a.bytes.data() + row * WeightRowBytes(a.type, 32), 1});
  source.runs.push_back(b.Rows());
  const auto weights = device().LoadWeights(source, kUseDecode);
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<int32_t> ids(370);
  std::iota(ids.begin(), ids.end(), 0);
  const Tensor out = memory().Empty(370, 32);
  ASSERT_TRUE(device().Embed(stream(), **weights, ids, false, out).ok());
  const std::vector<float> got = memory().Read(out);
  for (int64_t i = 0; i < 370 * 32; ++i) {
    const double wanted = i / 32 < 300 ? a.Value(299 - i / 32, i % 32) : b.Value(i / 32 - 300, i % 32);
    ASSERT_NEAR(got[i], wanted, Tolerance(dtype(), wanted, 0)) << "row " << i / 32;
  }
}

TEST_P(ForwardParity, RmsNorm) {
  for (const int64_t cols : {1, 3, 129, 257, 1024}) {
    const int64_t rows = 5;
    const std::vector<float> x = RandomFloats(rows * cols, 1), w = RandomFloats(cols, 2);
    Values wanted;
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t c = 0; c < cols; ++c) squares += static_cast<double>(x[r * cols + c]) * x[r * cols + c];
      for (int64_t c = 0; c < cols; ++c) wanted.push_back(x[r * cols + c] / std::sqrt(squares / cols + 1e-5) * w[c]);
    }
    const Tensor out = memory().Empty(rows, cols, dtype(), 3);
    const Tensor in = memory().NewTensor(x, rows, DType::kF32, 5);
    ASSERT_TRUE(device().RmsNorm(stream(), in, memory().NewTensor(w, 1), 1e-5f, out).ok());
    ExpectNear(out, wanted, wanted);
  }
}

TEST_P(ForwardParity, LinearOnOddShapesOfEveryStoredType) {
  for (WeightType type : kAllWeightTypes) {
    for (const int64_t m : {1, 5, 37}) {
      const int64_t n = 65, k = ColsFor(type, 96);
      const RandomWeights source(type, n, k, 1);
      const auto weights = device().LoadWeights(source.Source(), kUsePrefill | kUseDecode);
      ASSERT_TRUE(weights.ok()) << weights.status();
      for (const bool invariant : {false, true}) {
        const DType in = invariant ? device().invariant_dtype() : device().compute_dtype();
        std::vector<float> x = RandomFloats(m * k, 2);
        for (float& value : x) value = RoundTo(in, value);
        const Tensor out = memory().NewTensor(std::vector<float>(m * n, 0.5f), m, DType::kF32, 8);
        const LinearOptions options{.accumulate = true, .batch_invariant = invariant};
        ASSERT_TRUE(device().Linear(stream(), memory().NewTensor(x, m, in, 8), *weights, options, out).ok());
        Values wanted, sizes;
        for (int64_t i = 0; i < m * n; ++i) {
          wanted.push_back(0.5);
          sizes.push_back(0.5);
          for (int64_t l = 0; l < k; ++l) {
            const double product = x[i / n * k + l] * static_cast<double>(RoundTo(in, source.Value(i % n, l)));
            wanted.back() += product;
            sizes.back() += std::abs(product);
          }
        }
        ExpectNear(out, wanted, sizes);
      }
    }
  }
}

TEST_P(ForwardParity, BatchInvariantLinearDoesNotDependOnTheRowsBeside) {
  const int64_t n = 129, k = 192, most = 70;
  const RandomWeights source(WeightType::kQ4_1, n, k, 7);
  const auto weights = device().LoadWeights(source.Source(), kUseDecode);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const std::vector<float> x = RandomFloats(most * k, 2);
  std::vector<float> alone;
  for (const int64_t m : {1, 2, 3, 8, 31, 70}) {
    const Tensor in = memory().NewTensor({x.begin(), x.begin() + m * k}, m, device().invariant_dtype());
    const Tensor out = memory().Empty(m, n);
    ASSERT_TRUE(device().Linear(stream(), in, *weights, {.batch_invariant = true}, out).ok());
    const std::vector<float> values = memory().Read(out);
    if (m == 1) alone = values;
    EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + n), alone) << m << " rows";
  }
}

TEST_P(ForwardParity, QAndKAreRotatedTogetherAndStoredApart) {
  const int64_t heads = 6, kv_heads = 2, tokens = 9, positions_known = 40;
  for (const int64_t dim : {16, 48, 64}) {
    const AttentionShape shape{heads, kv_heads, dim, dtype()};
    const int64_t cols = (heads + 2 * kv_heads) * dim, kv_cols = 2 * kv_heads * dim;
    const std::vector<float> qkv = RandomFloats(tokens * cols, 8), rotation = RandomFloats(positions_known * dim, 9);
    // Three sequences, whose rows need not lie together, nor in order.
    const KvLayout layout{.page_tokens = 4,
                          .pages = {3, 0, 4, 2},
                          .sequences = {{.queries = 4, .length = 6, .first_page = 0, .end = 6},
                                        {.queries = 1, .length = 1, .first_page = 2, .end = 1},
                                        {.queries = 4, .length = 4, .first_page = 3, .end = 4}}};
    const std::vector<int64_t> positions = {2, 3, 4, 5, 0, 0, 1, 2, 3}, places = {14, 15, 0, 1, 16, 8, 9, 10, 11};
    const Tensor kv = memory().Empty(20, kv_cols, dtype());
    const auto table = device().MakeKvTable(stream(), layout);
    ASSERT_TRUE(table.ok()) << table.status();
    const Tensor q = memory().Empty(tokens, heads * dim, dtype(), 4);
    const Tensor in = memory().NewTensor(qkv, tokens);
    const Rotation turns{.table = memory().NewTensor(rotation, positions_known)};
    // In two chunks.
    for (const auto& [first, count] : {std::pair(0, 3), std::pair(3, 6)}) {
      const Tensor rows = in.Rows(first, count);
      const Tensor q_and_k = rows.Cols(0, (heads + kv_heads) * dim);
      ASSERT_TRUE(device().Rope(stream(), q_and_k, dim, turns, **table, first).ok());
      ASSERT_TRUE(device().StoreQkv(stream(), rows, shape, q.Rows(first, count), **table, first, kv.ref).ok());
    }
    const auto rotated = [&](int64_t t, int64_t head, int64_t d) {
      const float* const x = &qkv[t * cols + head * dim];
      const float* const turn = &rotation[positions[t] * dim];
      const int64_t half = dim / 2;
      const double c = turn[d % half], s = turn[half + d % half];
      return d < half ? x[d] * c - x[d + half] * s : x[d] * c + x[d - half] * s;
    };
    Values wanted_q, wanted_kv(20 * kv_cols, 55.0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < heads * dim; ++i) wanted_q.push_back(rotated(t, i / dim, i % dim));
      for (int64_t i = 0; i < kv_heads * dim; ++i) {
        wanted_kv[places[t] * kv_cols + i] = rotated(t, heads + i / dim, i % dim);
        wanted_kv[places[t] * kv_cols + kv_heads * dim + i] = qkv[t * cols + (heads + kv_heads) * dim + i];
      }
    }
    ExpectNear(q, wanted_q, Values(wanted_q.size(), 2.0));
    ExpectNear(kv, wanted_kv, Values(wanted_kv.size(), 2.0));
  }
}

TEST_P(ForwardParity, TopKOrdersAndSums) {
  const int64_t rows = 3, vocab = 1031;
  std::vector<float> logits = RandomFloats(rows * vocab, 11, 6.0f);
  logits[5] = logits[900] = logits[17] = 7.5f;  // ties go to the smaller id
  const Tensor in = memory().NewTensor(logits, rows, DType::kF32, 3);
  for (const int64_t k : {1, 2, 5, 128}) {
    const Tensor ids = memory().Empty(rows, k), values = memory().Empty(rows, k), sum = memory().Empty(rows, 1);
    ASSERT_TRUE(device().TopK(stream(), in, k, ids, values, sum).ok());
    const std::vector<float> got_ids = memory().Read(ids), got_values = memory().Read(values);
    Values sums;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = &logits[r * vocab];
      std::vector<int32_t> order(vocab);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [x](int32_t a, int32_t b) { return x[a] > x[b]; });
      sums.push_back(0);
      for (int64_t v = 0; v < vocab; ++v) sums.back() += std::exp(static_cast<double>(x[v]));
      sums.back() = std::log(sums.back());
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(std::bit_cast<int32_t>(got_ids[r * k + i]), order[i]) << "row " << r << " place " << i;
        ASSERT_EQ(got_values[r * k + i], x[order[i]]);
      }
    }
    ExpectNear(sum, sums, sums);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForwardParity, AllParityCases(), NameOf);

}  // namespace
}  // namespace runahead
