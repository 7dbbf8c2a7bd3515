#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {
namespace {

struct Shape {
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  DType q_dtype = DType::kF32;
  DType kv_dtype = DType::kF32;
  DType out_dtype = DType::kF32;
  float scale = 0.125f;
};

// One sequence: its KV is cut at `cuts` and has `spare` rows behind its last position. What it holds is a function of
// `seed` alone.
struct Sequence {
  int64_t queries;
  int64_t length;
  std::vector<int64_t> cuts;
  uint32_t seed = 1;
  int64_t spare = 0;
};

float RandomValue(uint32_t seed, int64_t row, int64_t col) {
  std::minstd_rand random(static_cast<uint32_t>(seed * 7919 + row * 104729 + col * 31 + 1));
  random.discard(2);
  return static_cast<float>(random()) * 0x1p-30f - 1.0f;
}

// A launch over some sequences, with its memory. Rows of q and out that belong to nobody lie between the sequences.
class Problem {
 public:
  Problem(const Shape& shape, std::vector<Sequence> sequences, Placement placement = {0, 0})
      : shape_(shape), sequences_(std::move(sequences)) {
    int64_t rows = 0;
    for (const Sequence& sequence : sequences_) {
      query_rows_.push_back(rows + 1);
      rows += 1 + sequence.queries;
    }
    const int64_t cols = shape.heads * shape.head_dim;
    q_ = std::make_unique<GpuMatrix>(shape.q_dtype, rows, cols, placement.gap, placement.offset);
    out_ = std::make_unique<GpuMatrix>(shape.out_dtype, rows, cols, placement.gap, placement.offset);
    for (size_t s = 0; s < sequences_.size(); ++s) MakeSequence(s, placement.offset);
  }

  // K (or V) of a position, as stored.
  float& kv(size_t s, int64_t position, bool value, int64_t kv_head, int64_t d) {
    return kv_[s][(position * 2 + value) * shape_.kv_heads * shape_.head_dim + kv_head * shape_.head_dim + d];
  }
  float q(size_t s, int64_t query, int64_t col) const { return q_->at(query_rows_[s] + query, col); }
  void set_q(size_t s, int64_t query, int64_t col, float x) { q_->set(query_rows_[s] + query, col, x); }
  float out(size_t s, int64_t query, int64_t col) const { return out_->at(query_rows_[s] + query, col); }
  uint32_t out_bits(size_t s, int64_t query, int64_t col) const { return out_->bits(query_rows_[s] + query, col); }
  int64_t cols() const { return q_->cols(); }

  void Run() {
    std::vector<AttentionItem> items;
    std::vector<AttentionSpan> spans;
    std::vector<std::unique_ptr<GpuMatrix>> memory;
    int64_t most_queries = 0;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      const auto first = static_cast<int32_t>(spans.size());
      UploadSpans(s, memory, spans);
      const Sequence& sequence = sequences_[s];
      items.push_back({.query_row = query_rows_[s],
                       .queries = sequence.queries,
                       .length = sequence.length,
                       .first_span = first,
                       .span_count = static_cast<int32_t>(spans.size()) - first});
      most_queries = std::max(most_queries, sequence.queries);
    }
    q_->Upload();
    const GpuArray<AttentionItem> gpu_items(items);
    const GpuArray<AttentionSpan> gpu_spans(spans);
    ASSERT_EQ(LaunchPlainAttention({.q = q_->matrix(),
                                    .out = out_->matrix(),
                                    .heads = shape_.heads,
                                    .kv_heads = shape_.kv_heads,
                                    .head_dim = shape_.head_dim,
                                    .kv_dtype = shape_.kv_dtype,
                                    .scale = shape_.scale,
                                    .items = gpu_items.data(),
                                    .spans = gpu_spans.data(),
                                    .item_count = static_cast<int>(items.size()),
                                    .most_queries = most_queries},
                                   nullptr),
              cudaSuccess);
    out_->Download();
    for (const int64_t row : query_rows_) {
      for (int64_t c = 0; c < cols(); ++c) ASSERT_TRUE(std::isnan(out_->at(row - 1, c))) << "a row of nobody, " << c;
    }
  }

  void ExpectReference() {
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int64_t i = 0; i < sequences_[s].queries; ++i) {
        for (int64_t head = 0; head < shape_.heads; ++head) ExpectHead(s, i, head);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }

 private:
  void MakeSequence(size_t s, int64_t offset) {
    const Sequence& sequence = sequences_[s];
    for (int64_t i = 0; i < sequence.queries; ++i) {
      const int64_t position = sequence.length - sequence.queries + i;
      for (int64_t c = 0; c < cols(); ++c) set_q(s, i, c, 4 * RandomValue(sequence.seed, position, c));
    }
    const int64_t rows = sequence.length + sequence.spare;
    const int64_t row_elements = 2 * shape_.kv_heads * shape_.head_dim;
    kv_.emplace_back(rows * row_elements);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < row_elements; ++c) {
        const float x = RandomValue(sequence.seed + 1000, r, c);
        kv_[s][r * row_elements + c] =
            r < sequence.length ? Rounded(shape_.kv_dtype, x) : std::numeric_limits<float>::quiet_NaN();
      }
    }
    offset_ = offset;
  }

  // Each span in memory of its own.
  void UploadSpans(size_t s, std::vector<std::unique_ptr<GpuMatrix>>& memory, std::vector<AttentionSpan>& spans) {
    const int64_t row_elements = 2 * shape_.kv_heads * shape_.head_dim;
    std::vector<int64_t> ends = sequences_[s].cuts;
    ends.push_back(sequences_[s].length + sequences_[s].spare);
    int64_t first = 0;
    for (const int64_t end : ends) {
      memory.push_back(std::make_unique<GpuMatrix>(shape_.kv_dtype, end - first, row_elements, 0, offset_));
      memory.back()->Upload([&](int64_t r, int64_t c) { return kv_[s][(first + r) * row_elements + c]; });
      spans.push_back({.rows = memory.back()->Row(0), .first = first, .tokens = end - first});
      first = end;
    }
  }

  void ExpectHead(size_t s, int64_t query, int64_t head) {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const int64_t seen = sequences_[s].length - sequences_[s].queries + query + 1;
    std::vector<double> weights(seen);
    for (int64_t p = 0; p < seen; ++p) {
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        weights[p] += static_cast<double>(q(s, query, head * shape_.head_dim + d)) * kv(s, p, false, kv_head, d);
      }
      weights[p] *= shape_.scale;
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      double want = 0;
      for (int64_t p = 0; p < seen; ++p) want += weights[p] / sum * kv(s, p, true, kv_head, d);
      ASSERT_NEAR(out(s, query, head * shape_.head_dim + d), want, std::fabs(want) * Epsilon(shape_.out_dtype) + 5e-6)
          << "sequence " << s << ", query " << query << ", head " << head << ", element " << d;
    }
  }

  Shape shape_;
  std::vector<Sequence> sequences_;
  std::vector<int64_t> query_rows_;
  std::unique_ptr<GpuMatrix> q_;
  std::unique_ptr<GpuMatrix> out_;
  std::vector<std::vector<float>> kv_;
  int64_t offset_ = 0;
};

using PlainAttentionTest = GpuTest;

TEST_F(PlainAttentionTest, MatchesTheReferenceForEveryHeadDim) {
  for (const int head_dim : {2, 16, 48, 64, 80, 128, 130, 256}) {
    for (const Placement& placement : kPlacements) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", offset " << placement.offset);
      Shape shape;
      shape.head_dim = head_dim;
      shape.scale = 1 / std::sqrt(static_cast<float>(head_dim));
      Problem problem(shape, {{5, 37, {11, 12}}, {1, 70, {}}, {3, 3, {}}}, placement);
      problem.Run();
      problem.ExpectReference();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(PlainAttentionTest, MatchesTheReferenceForEveryDType) {
  for (const DType q_dtype : kAllDTypes) {
    for (const DType kv_dtype : kAllDTypes) {
      for (const DType out_dtype : kAllDTypes) {
        SCOPED_TRACE(testing::Message() << DTypeName(q_dtype) << DTypeName(kv_dtype) << DTypeName(out_dtype));
        Problem problem({6, 2, 48, q_dtype, kv_dtype, out_dtype, 0.2f}, {{4, 20, {7}}, {1, 33, {32}}});
        problem.Run();
        problem.ExpectReference();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(PlainAttentionTest, SharedKvHeads) {
  for (const auto& [heads, kv_heads] : {std::pair(1, 1), std::pair(7, 7), std::pair(9, 3), std::pair(8, 1)}) {
    Shape shape;
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = 16;
    Problem problem(shape, {{2, 19, {}}, {1, 1, {}}});
    problem.Run();
    problem.ExpectReference();
  }
}

TEST_F(PlainAttentionTest, RaggedItemsInManySpans) {
  Shape shape;
  shape.head_dim = 32;
  std::vector<int64_t> every_third;
  for (int64_t cut = 3; cut < 130; cut += 3) every_third.push_back(cut);
  Problem problem(shape, {{1, 1, {}},
                          {17, 17, {0, 1, 1, 16}},
                          {1, 300, {256}, 3, 40},
                          {3, 130, every_third, 4},
                          {40, 131, {5, 130}, 5, 1}});
  problem.Run();
  problem.ExpectReference();
}

// The same queries of the same sequence: alone and whole, or in a batch, cut, elsewhere in memory, fewer at a time.
TEST_F(PlainAttentionTest, BitwiseTheSameHoweverItIsBatchedAndCut) {
  for (const int head_dim : {48, 80, 200}) {
    for (const DType dtype : kAllDTypes) {
      const Shape shape = {2, 1, head_dim, dtype, dtype, dtype, 0.1f};
      Problem alone(shape, {{12, 150, {}, 9}});
      alone.Run();
      for (const Placement& placement : kPlacements) {
        Problem batched(shape, {{3, 40, {39}, 2}, {5, 150, {1, 64, 77, 149}, 9, 7}, {1, 90, {}, 3}}, placement);
        batched.Run();
        for (int64_t i = 0; i < 5; ++i) {
          for (int64_t c = 0; c < alone.cols(); ++c) {
            ASSERT_EQ(batched.out_bits(1, i, c), alone.out_bits(0, 7 + i, c)) << head_dim << " " << i << " " << c;
          }
        }
      }
    }
  }
}

// More items than a grid has room for along z: a block takes items 3 and 65538, the latter so short that three of its
// warps have nothing to do before they meet the one that still works on the former.
TEST_F(PlainAttentionTest, AnyNumberOfItems) {
  Shape shape;
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 8;
  std::vector<Sequence> sequences(65540, {0, 0, {}});
  sequences[3] = {1, 40, {}, 3};
  sequences[65538] = {2, 9, {}, 4};
  Problem problem(shape, sequences);
  problem.Run();
  problem.ExpectReference();
}

TEST_F(PlainAttentionTest, PoisonInTheFutureDoesNotReachEarlierQueries) {
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem problem(Shape(), {{60, 60, {}}});
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t d = 0; d < 64; ++d) problem.kv(0, 42, false, head, d) = problem.kv(0, 42, true, head, d) = poison;
    }
    problem.Run();
    Problem clean(Shape(), {{60, 60, {}}});
    clean.Run();
    for (int64_t i = 0; i < 60; ++i) {
      for (int64_t c = 0; c < problem.cols(); ++c) {
        if (i < 42) {
          ASSERT_EQ(problem.out_bits(0, i, c), clean.out_bits(0, i, c)) << i;
        } else {
          ASSERT_TRUE(std::isnan(problem.out(0, i, c))) << i;
        }
      }
    }
  }
}

TEST_F(PlainAttentionTest, ExtremeScores) {
  for (const float factor : {1e3f, -1e3f, 1e15f, -1e18f, -1e30f}) {
    Shape shape;
    shape.head_dim = 16;
    Problem problem(shape, {{1, 60, {}}, {9, 30, {}}});
    const float q = factor == -1e30f ? 1e30f : 1.0f;
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < (s == 0 ? 1 : 9); ++i) {
        for (int64_t c = 0; c < problem.cols(); ++c) problem.set_q(s, i, c, q);
      }
      for (int64_t p = 0; p < (s == 0 ? 60 : 30); ++p) {
        for (int64_t d = 0; d < 2 * 16; ++d) {
          float& key = problem.kv(s, p, false, d / 16, d % 16);
          key = factor * (1 + std::fabs(key) + static_cast<float>(p));
        }
      }
    }
    problem.Run();
    for (int64_t c = 0; c < problem.cols(); ++c) {
      for (int64_t i = 0; i < 10; ++i) {
        const float out = i == 0 ? problem.out(0, 0, c) : problem.out(1, i - 1, c);
        ASSERT_TRUE(std::isfinite(out)) << factor << " " << c;
        // Scores of -inf everywhere have no softmax; the row is zero, as on the CPU.
        if (factor == -1e30f) {
          ASSERT_EQ(out, 0.0f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace runahead
