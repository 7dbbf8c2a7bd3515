// The ops of a forward pass on every device.
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

TEST_P(ForwardParity, EmbedReadsTheRowsOfTheIds) {
  for (WeightType type : kAllWeightTypes) {
    const RandomWeights table(type, 37, 96, 3);
    const auto weights = device().LoadWeights(table.Source(), kUseDecode);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::vector<int32_t> ids = {36, 0, 5, 5, 17};
    const Tensor out = memory().Empty(5, 96, DType::kF32, 3);
    ASSERT_TRUE(device().Embed(stream(), **weights, ids, out).ok());
    const std::vector<float> got = memory().Read(out);
    for (size_t i = 0; i < ids.size() * 96; ++i) {
      const double wanted = table.Value(ids[i / 96], i % 96);
      // A device keeps the table as it was stored, or in its compute dtype.
      ASSERT_NEAR(got[i], wanted, Tolerance(dtype(), wanted, 0)) << "element " << i;
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
  ASSERT_TRUE(device().Embed(stream(), **weights, ids, out).ok());
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
      const int64_t n = 65, k = 96;
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

TEST_P(ForwardParity, SwiGlu) {
  for (const int64_t cols : {1, 31, 200}) {
    const int64_t rows = 3;
    std::vector<float> x = RandomFloats(rows * 2 * cols, 5, 4.0f);
    for (float& value : x) value = RoundTo(dtype(), value);
    Values wanted;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const double gate = x[i / cols * 2 * cols + i % cols], up = x[i / cols * 2 * cols + cols + i % cols];
      wanted.push_back(gate / (1 + std::exp(-gate)) * up);
    }
    const Tensor out = memory().Empty(rows, cols, dtype(), 5);
    ASSERT_TRUE(device().SwiGlu(stream(), memory().NewTensor(x, rows, dtype(), 2), out).ok());
    ExpectNear(out, wanted, wanted);
  }
}

TEST_P(ForwardParity, RopeStoreSplitsRotatesAndFillsSpans) {
  const int64_t heads = 6, kv_heads = 2, tokens = 9, positions_known = 40;
  for (const int64_t dim : {16, 48, 64}) {
    const AttentionShape shape{heads, kv_heads, dim, dtype()};
    const int64_t cols = (heads + 2 * kv_heads) * dim, kv_cols = 2 * kv_heads * dim;
    const std::vector<float> qkv = RandomFloats(tokens * cols, 8), rotation = RandomFloats(positions_known * dim, 9);
    const std::vector<int32_t> positions = {0, 39, 3, 4, 5, 6, 7, 11, 2};
    const Tensor kv = memory().Empty(tokens + 4, kv_cols, dtype());
    const size_t row = shape.kv_row_bytes();
    // The rows of a sequence need not lie together, nor in order.
    const std::vector<KvSpan> spans = {{kv.ref.Slice(7 * row, 2 * row), 2}, {kv.ref.Slice(0, 7 * row), 7}};
    const Tensor q = memory().Empty(tokens, heads * dim, dtype(), 4);
    ASSERT_TRUE(device()
                    .RopeStore(stream(), memory().NewTensor(qkv, tokens), shape,
                               memory().NewTensor(rotation, positions_known), positions, q, spans)
                    .ok());
    const auto rotated = [&](int64_t t, int64_t head, int64_t d) {
      const float* const x = &qkv[t * cols + head * dim];
      const float* const turn = &rotation[positions[t] * dim];
      const int64_t half = dim / 2;
      const double c = turn[d % half], s = turn[half + d % half];
      return d < half ? x[d] * c - x[d + half] * s : x[d] * c + x[d - half] * s;
    };
    Values wanted_q, wanted_kv((tokens + 4) * kv_cols, 55.0);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < heads * dim; ++i) wanted_q.push_back(rotated(t, i / dim, i % dim));
      const int64_t place = t < 2 ? 7 + t : t - 2;
      for (int64_t i = 0; i < kv_heads * dim; ++i) {
        wanted_kv[place * kv_cols + i] = rotated(t, heads + i / dim, i % dim);
        wanted_kv[place * kv_cols + kv_heads * dim + i] = qkv[t * cols + (heads + kv_heads) * dim + i];
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

struct Ragged {
  int64_t queries, length;
  std::vector<int64_t> cuts;  // tokens of the spans, repeated
  int64_t dense_length = 0;
};

// Softmax attention of one query over KV rows 0..visible-1 (f32 here, rounded to the KV dtype before).
std::vector<double> Attended(const float* q, const std::vector<float>& kv, int64_t visible, int64_t kv_head,
                             const AttentionShape& shape) {
  const int64_t dim = shape.head_dim, row = 2 * shape.kv_heads * dim;
  Values weights(visible), out(dim);
  double top = -1e30, sum = 0;
  for (int64_t t = 0; t < visible; ++t) {
    for (int64_t d = 0; d < dim; ++d) weights[t] += static_cast<double>(q[d]) * kv[t * row + kv_head * dim + d];
    top = std::max(top, weights[t] *= shape.scale);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - top);
  for (int64_t t = 0; t < visible; ++t) {
    for (int64_t d = 0; d < dim; ++d) out[d] += weights[t] / sum * kv[t * row + (shape.kv_heads + kv_head) * dim + d];
  }
  return out;
}

TEST_P(ForwardParity, AttentionOverRaggedSequences) {
  struct {
    int64_t heads, kv_heads, dim;
  } const shapes[] = {{4, 4, 64}, {6, 2, 64}, {8, 1, 128}, {3, 3, 48}, {2, 1, 80}};
  const std::vector<std::vector<Ragged>> batches = {
      {{5, 5, {}}, {1, 1, {}}, {1, 33, {16}}, {7, 40, {13, 3}}},        // a mix
      {{1, 300, {256}}, {1, 17, {256}}, {1, 257, {256}}, {1, 2, {1}}},  // decode
      {{70, 133, {}}, {33, 33, {}}},                                    // prefill behind a prefix
      {{9, 20, {}, 31}, {4, 4, {}, 4}},                                 // the dense rectangle
  };
  for (const auto& [heads, kv_heads, dim] : shapes) {
    AttentionShape shape{heads, kv_heads, dim, dtype()};
    shape.scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const int64_t row = 2 * kv_heads * dim;
    for (const std::vector<Ragged>& batch : batches) {
      int64_t rows = 0;
      for (const Ragged& one : batch) rows += one.queries;
      std::vector<float> q = RandomFloats(rows * heads * dim, 20, 2.0f);
      for (float& value : q) value = RoundTo(dtype(), value);
      std::vector<AttentionSequence> sequences;
      Values wanted;
      int64_t first = 0;
      for (const Ragged& one : batch) {
        const int64_t tokens = std::max(one.length, one.dense_length);
        std::vector<float> kv = RandomFloats(tokens * row, static_cast<uint32_t>(30 + one.length), 2.0f);
        for (float& value : kv) value = RoundTo(dtype(), value);
        AttentionSequence sequence{first, one.queries, one.length, {}};
        sequence.dense_length = one.dense_length;
        for (int64_t at = 0, cut = 0; at < tokens; ++cut) {
          const int64_t take = one.cuts.empty() ? tokens : std::min(one.cuts[cut % one.cuts.size()], tokens - at);
          // NaN behind the last row of a span: it must not be read, or not count.
          std::vector<float> part(kv.begin() + at * row, kv.begin() + (at + take) * row);
          part.insert(part.end(), 3 * row, kNan);
          const Tensor span = memory().NewTensor(part, take + 3, dtype());
          sequence.kv.push_back({span.Rows(0, take).ref, take});
          at += take;
        }
        for (int64_t i = 0; i < one.queries; ++i) {
          for (int64_t h = 0; h < heads; ++h) {
            const Values head = Attended(&q[((first + i) * heads + h) * dim], kv, one.length - one.queries + i + 1,
                                         h / (heads / kv_heads), shape);
            wanted.insert(wanted.end(), head.begin(), head.end());
          }
        }
        first += one.queries;
        sequences.push_back(std::move(sequence));
      }
      const Tensor out = memory().Empty(rows, heads * dim, dtype(), 8);
      const Tensor in = memory().NewTensor(q, rows, dtype(), 8);
      ASSERT_TRUE(device().Attention(stream(), in, shape, sequences, out).ok());
      // Shares of the softmax may be rounded to the dtype before they meet V.
      const double size = dtype() == DType::kF32 ? 4.0 : dtype() == DType::kBF16 ? 4000.0 : 1000.0;
      ExpectNear(out, wanted, Values(wanted.size(), size));
    }
  }
}

TEST_P(ForwardParity, ASequenceThatDecodesAttendsTheSameInAnyBatchAndHoweverItsRowsLie) {
  const AttentionShape shape{6, 2, 64, dtype(), 0.125f};
  const int64_t row = 2 * 2 * 64, length = 700;
  const std::vector<float> kv = RandomFloats(length * row, 1), q = RandomFloats(6 * 64, 2);
  const Tensor whole = memory().NewTensor(kv, length, dtype());
  const auto run = [&](int64_t before, int64_t cut) {
    std::vector<AttentionSequence> sequences;
    std::vector<float> queries(before * 6 * 64, 0.5f);
    queries.insert(queries.end(), q.begin(), q.end());
    for (int64_t i = 0; i < before; ++i) sequences.push_back({i, 1, 100 + 90 * i, {{whole.ref, length}}});
    AttentionSequence last{before, 1, length, {}};
    for (int64_t at = 0; at < length; at += cut) {
      const int64_t take = std::min(cut, length - at);
      last.kv.push_back(
          {memory().NewTensor({kv.begin() + at * row, kv.begin() + (at + take) * row}, take, dtype()).ref, take});
    }
    sequences.push_back(last);
    const Tensor out = memory().Empty(before + 1, 6 * 64, dtype());
    EXPECT_TRUE(
        device().Attention(stream(), memory().NewTensor(queries, before + 1, dtype()), shape, sequences, out).ok());
    const std::vector<float> values = memory().Read(out);
    return std::vector<float>(values.end() - 6 * 64, values.end());
  };
  const std::vector<float> alone = run(0, 256);
  EXPECT_EQ(run(1, 256), alone);
  EXPECT_EQ(run(6, 256), alone);
  EXPECT_EQ(run(2, 64), alone);
}

INSTANTIATE_TEST_SUITE_P(All, ForwardParity, AllParityCases(), NameOf);

}  // namespace
}  // namespace runahead
