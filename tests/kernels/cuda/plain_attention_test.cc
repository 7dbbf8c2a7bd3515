#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"
#include "tests/kernels/cuda/gpu_paged_kv.h"

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
  int64_t window = 0;
  float soft_cap = 0;
};

// What a sequence holds is a function of `seed` alone.
struct Sequence {
  int64_t queries;
  int64_t length;
  uint32_t seed = 1;
};

float RandomValue(uint32_t seed, int64_t row, int64_t col) {
  std::minstd_rand random(static_cast<uint32_t>(seed * 7919 + row * 104729 + col * 31 + 1));
  random.discard(2);
  return static_cast<float>(random()) * 0x1p-30f - 1.0f;
}

// A launch over some sequences, with its memory.
class Problem {
 public:
  Problem(const Shape& shape, std::vector<Sequence> sequences, Placement placement = {0, 0}, int64_t page_tokens = 16)
      : shape_(shape), sequences_(std::move(sequences)), page_tokens_(page_tokens) {
    int64_t rows = 0;
    for (const Sequence& sequence : sequences_) {
      query_rows_.push_back(rows);
      rows += sequence.queries;
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
  int64_t queries(size_t s) const { return sequences_[s].queries; }

  // Prompts by LaunchPlainAttention.
  void Run() {
    const GpuPagedKv kv = Kv();
    ASSERT_EQ(LaunchPlainAttention(Args(kv), kv.items(), static_cast<int>(sequences_.size()), kv.plan().most_queries,
                                   out_->matrix(), nullptr),
              cudaSuccess);
    out_->Download();
  }
  // By pieces.
  void RunPieces() {
    const GpuPagedKv kv = Kv(/*by_pieces=*/true);
    GpuMatrix partials(DType::kF32, kv.piece_count(), shape_.heads * (shape_.head_dim + 1), 3);
    ASSERT_EQ(LaunchPlainPieces(Args(kv), kv.work(), partials.matrix(), nullptr), cudaSuccess);
    ASSERT_EQ(LaunchMergePieces(partials.matrix(), kv.ranges(), shape_.heads, out_->matrix(), nullptr), cudaSuccess);
    out_->Download();
    partials.Download();
    const PieceRange last = kv.plan().ranges.back();
    for (int64_t piece = last.first + last.count; piece < partials.rows(); ++piece) {
      for (int64_t c = 0; c < partials.cols(); ++c) ASSERT_TRUE(std::isnan(partials.at(piece, c))) << "nobody's, " << c;
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
    const int64_t row_elements = 2 * shape_.kv_heads * shape_.head_dim;
    kv_.emplace_back(sequence.length * row_elements);
    for (int64_t r = 0; r < sequence.length; ++r) {
      for (int64_t c = 0; c < row_elements; ++c) {
        kv_[s][r * row_elements + c] = Rounded(shape_.kv_dtype, RandomValue(sequence.seed + 1000, r, c));
      }
    }
    offset_ = offset;
  }

  // As it is now.
  GpuPagedKv Kv(bool by_pieces = false) const {
    std::vector<KvSequence> sequences;
    for (const Sequence& one : sequences_) {
      sequences.push_back({.queries = one.queries, .length = one.length, .end = one.length});
    }
    const int64_t cols = 2 * shape_.kv_heads * shape_.head_dim;
    return GpuPagedKv(
        shape_.kv_dtype, cols, ShuffledPages(page_tokens_, std::move(sequences), by_pieces),
        [&](size_t s, int64_t position, int64_t col) { return kv_[s][position * cols + col]; }, offset_);
  }
  AttentionArgs Args(const GpuPagedKv& kv) {
    q_->Upload();
    return kv.Of({.q = q_->matrix(),
                  .heads = shape_.heads,
                  .kv_heads = shape_.kv_heads,
                  .head_dim = shape_.head_dim,
                  .kv_dtype = shape_.kv_dtype,
                  .scale = shape_.scale,
                  .window = shape_.window,
                  .soft_cap = shape_.soft_cap});
  }

  void ExpectHead(size_t s, int64_t query, int64_t head) {
    const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const int64_t seen = sequences_[s].length - sequences_[s].queries + query + 1;
    const int64_t begin = shape_.window > 0 ? std::max<int64_t>(0, seen - shape_.window) : 0;
    std::vector<double> weights(seen);
    for (int64_t p = begin; p < seen; ++p) {
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        weights[p] += static_cast<double>(q(s, query, head * shape_.head_dim + d)) * kv(s, p, false, kv_head, d);
      }
      weights[p] *= shape_.scale;
      if (shape_.soft_cap > 0) weights[p] = shape_.soft_cap * std::tanh(weights[p] / shape_.soft_cap);
    }
    const double max = *std::max_element(weights.begin() + begin, weights.end());
    double sum = 0;
    for (int64_t p = begin; p < seen; ++p) sum += weights[p] = std::exp(weights[p] - max);
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      double want = 0;
      for (int64_t p = begin; p < seen; ++p) want += weights[p] / sum * kv(s, p, true, kv_head, d);
      ASSERT_NEAR(out(s, query, head * shape_.head_dim + d), want, std::fabs(want) * Epsilon(shape_.out_dtype) + 5e-6)
          << "sequence " << s << ", query " << query << ", head " << head << ", element " << d;
    }
  }

  Shape shape_;
  std::vector<Sequence> sequences_;
  int64_t page_tokens_;
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
      Problem problem(shape, {{5, 37}, {1, 70}, {3, 3}}, placement);
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
        Problem problem({6, 2, 48, q_dtype, kv_dtype, out_dtype, 0.2f}, {{4, 20}, {1, 33}});
        problem.Run();
        problem.ExpectReference();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(PlainAttentionTest, WindowsAndSoftCaps) {
  for (const int head_dim : {48, 128, 256}) {
    for (const int64_t window : {0, 1, 3, 16, 50, 1000}) {
      for (const float soft_cap : {0.0f, 1.5f}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", window " << window << ", cap " << soft_cap);
        Shape shape;
        shape.head_dim = head_dim;
        shape.window = window;
        shape.soft_cap = soft_cap;
        Problem problem(shape, {{5, 137}, {1, 170, 2}, {3, 3, 3}});
        const int64_t hidden = window == 0 ? 0 : std::max<int64_t>(0, 170 - window);
        for (int64_t p = 0; p < hidden; ++p) {
          problem.kv(1, p, false, 1, 0) = problem.kv(1, p, true, 1, 0) = std::numeric_limits<float>::quiet_NaN();
        }
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
    Problem problem(shape, {{2, 19}, {1, 1}});
    problem.Run();
    problem.ExpectReference();
  }
}

TEST_F(PlainAttentionTest, RaggedItemsInPagesOfAnySize) {
  Shape shape;
  shape.head_dim = 32;
  for (const int64_t page_tokens : {1, 3, 16, 256, 300}) {
    SCOPED_TRACE(page_tokens);
    Problem problem(shape, {{1, 1}, {17, 17}, {1, 300, 3}, {3, 130, 4}, {40, 131, 5}}, {0, 0}, page_tokens);
    problem.Run();
    problem.ExpectReference();
    if (HasFatalFailure()) return;
  }
}

TEST_F(PlainAttentionTest, PiecesMatchTheReference) {
  for (const int head_dim : {2, 48, 130, 256}) {
    for (const DType dtype : kAllDTypes) {
      for (const int64_t page_tokens : {1, 16, 256}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", pages of " << page_tokens);
        Shape shape = {6, 2, head_dim, dtype, dtype, dtype, 1 / std::sqrt(static_cast<float>(head_dim))};
        Problem problem(shape, {{1, 1}, {1, 255, 2}, {1, 256, 3}, {1, 257, 4}, {1, 600, 5}}, {3, 1}, page_tokens);
        problem.RunPieces();
        problem.ExpectReference();
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(PlainAttentionTest, PiecesUnderWindowsAndSoftCaps) {
  for (const int64_t window : {0, 1, 3, 255, 256, 257, 511, 1000}) {
    for (const float soft_cap : {0.0f, 1.5f}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", cap " << soft_cap);
      Shape shape;
      shape.head_dim = 16;
      shape.window = window;
      shape.soft_cap = soft_cap;
      Problem problem(shape, {{1, 770, 2}, {1, 300, 3}, {1, 3, 4}});
      const int64_t hidden = window == 0 ? 0 : std::max<int64_t>(0, 770 - window);
      for (int64_t p = 0; p < hidden; ++p) {
        problem.kv(0, p, false, 1, 0) = problem.kv(0, p, true, 1, 0) = std::numeric_limits<float>::quiet_NaN();
      }
      problem.RunPieces();
      problem.ExpectReference();
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(PlainAttentionTest, PiecesOfQueriesOfASequenceAreBitwiseThoseOfOneEach) {
  for (const int64_t window : {0, 1, 260}) {
    Shape shape = {6, 2, 48, DType::kF32, DType::kF16, DType::kF32, 0.1f};
    shape.window = window;
    Problem together(shape, {{1, 40, 2}, {7, 518, 9}, {3, 3, 4}});
    together.RunPieces();
    together.ExpectReference();
    if (HasFatalFailure()) return;
    for (int64_t i = 0; i < 7; ++i) {
      Problem alone(shape, {{1, 512 + i, 9}}, {0, 0}, 256);
      alone.RunPieces();
      for (int64_t c = 0; c < alone.cols(); ++c) ASSERT_EQ(together.out_bits(1, i, c), alone.out_bits(0, 0, c)) << i;
    }
  }
}

// The same queries of the same sequence: alone, or in a batch, elsewhere in memory, fewer at a time.
TEST_F(PlainAttentionTest, BitwiseTheSameHoweverItIsBatchedAndWhereverItLies) {
  for (const int head_dim : {48, 80, 200}) {
    for (const DType dtype : kAllDTypes) {
      const Shape shape = {2, 1, head_dim, dtype, dtype, dtype, 0.1f};
      Problem alone(shape, {{12, 150, 9}}, {0, 0}, 256), pieces_alone(shape, {{1, 650, 9}}, {0, 0}, 256);
      alone.Run();
      pieces_alone.RunPieces();
      for (const Placement& placement : kPlacements) {
        Problem batched(shape, {{3, 40, 2}, {5, 150, 9}, {1, 90, 3}}, placement, 7);
        Problem pieces_batched(shape, {{1, 300, 2}, {1, 650, 9}, {1, 90, 3}}, placement, 16);
        batched.Run();
        pieces_batched.RunPieces();
        for (int64_t c = 0; c < alone.cols(); ++c) {
          for (int64_t i = 0; i < 5; ++i) {
            ASSERT_EQ(batched.out_bits(1, i, c), alone.out_bits(0, 7 + i, c)) << head_dim << " " << i << " " << c;
          }
          ASSERT_EQ(pieces_batched.out_bits(1, 0, c), pieces_alone.out_bits(0, 0, c)) << head_dim << " " << c;
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
  std::vector<Sequence> sequences(65540, {0, 0});
  sequences[3] = {1, 40, 3};
  sequences[65538] = {2, 9, 4};
  Problem problem(shape, sequences);
  for (int launch = 0; launch < 2; ++launch) {  // the emulation runs other warps first in every other one
    problem.Run();
    problem.ExpectReference();
  }
}

TEST_F(PlainAttentionTest, PoisonInTheFutureDoesNotReachEarlierQueries) {
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Problem problem(Shape(), {{60, 60}});
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t d = 0; d < 64; ++d) problem.kv(0, 42, false, head, d) = problem.kv(0, 42, true, head, d) = poison;
    }
    problem.Run();
    Problem clean(Shape(), {{60, 60}});
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

// Sequence 0 has one query and 60 positions, and sequence 1 nine and 30.
class ExtremeScores : public GpuTest {
 protected:
  static void Fill(Problem& problem, float factor) {
    const float q = factor == -1e30f ? 1e30f : 1.0f;
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < problem.queries(s); ++i) {
        for (int64_t c = 0; c < problem.cols(); ++c) problem.set_q(s, i, c, q);
      }
      for (int64_t p = 0; p < (s == 0 ? 60 : 30); ++p) {
        for (int64_t d = 0; d < 2 * 16; ++d) {
          float& key = problem.kv(s, p, false, d / 16, d % 16);
          key = factor * (1 + std::fabs(key) + static_cast<float>(p));
        }
      }
    }
  }
  static void ExpectFinite(const Problem& problem, float factor) {
    for (size_t s = 0; s < 2; ++s) {
      for (int64_t i = 0; i < problem.queries(s); ++i) {
        for (int64_t c = 0; c < problem.cols(); ++c) {
          ASSERT_TRUE(std::isfinite(problem.out(s, i, c))) << factor << " " << c;
          // Scores of -inf everywhere have no softmax; the row is zero, as on the CPU.
          if (factor == -1e30f) {
            ASSERT_EQ(problem.out(s, i, c), 0.0f);
          }
        }
      }
    }
  }
};

TEST_F(ExtremeScores, HaveFiniteResults) {
  Shape shape;
  shape.head_dim = 16;
  for (const float factor : {1e3f, -1e3f, 1e15f, -1e18f, -1e30f}) {
    Problem prompts(shape, {{1, 60}, {9, 30}}), decode(shape, {{1, 60}, {1, 30}});
    Fill(prompts, factor);
    Fill(decode, factor);
    prompts.Run();
    decode.RunPieces();
    ExpectFinite(prompts, factor);
    ExpectFinite(decode, factor);
  }
}

}  // namespace
}  // namespace runahead
