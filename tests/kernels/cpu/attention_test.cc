#include "kernels/cpu/attention.h"

#include <tuple>

#include "kernels/cpu/attention_internal.h"
#include "tests/kernels/cpu/attention_case.h"
#include "tests/kernels/cpu/attention_counted.h"

namespace runahead {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
constexpr DType kF16 = DType::kF16;

class AttentionTest : public testing::TestWithParam<CpuIsa> {
 protected:
  ThreadPool pool_{2};

  // Tolerances by kind: products of bf16 round probabilities (2^-9 of values around 1, averaged), and KV of more bits
  // than they take (the same of values and, by scores up to 3, of weights); those of f32 do not.
  void ExpectMatches(const AttentionCase& problem, int64_t first = 0,
                     int64_t last = std::numeric_limits<int64_t>::max()) {
    const bool bf16 = GetParam() >= CpuIsa::kAvx512Bf16 && problem.shape.kv_dtype != kF32;
    const bool rounded = bf16 && (problem.q_dtype != kBF16 || problem.shape.kv_dtype != kBF16);
    problem.ExpectMatches(problem.Run(pool_, GetParam()),
                          rounded ? 1.5e-2
                          : bf16  ? 4e-3
                                  : 5e-6,
                          problem.out_dtype == kBF16 ? 1.0 / 256 : 1e-6, first, last);
  }
};

TEST_P(AttentionTest, WholePromptsOfOddLengths) {
  for (const int64_t length : {1, 2, 31, 63, 64, 65, 129, 257}) {
    SCOPED_TRACE(length);
    ExpectMatches(AttentionCase(3, 1, 64, kF32, kF32, kF32, {{length, length}}));
    ExpectMatches(AttentionCase(3, 1, 64, kBF16, kBF16, kBF16, {{length, length}}));
  }
}

TEST_P(AttentionTest, EveryHeadLayoutAndHeadSize) {
  for (const auto& [heads, kv_heads] : {std::pair(9, 3), std::pair(4, 1), std::pair(8, 8)}) {
    for (const int64_t dim : {8, 24, 40, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " of " << dim);
      ExpectMatches(AttentionCase(heads, kv_heads, dim, kF32, kF32, kF32, {{37, 150}}));
      ExpectMatches(AttentionCase(heads, kv_heads, dim, kBF16, kBF16, kBF16, {{37, 150}}));
    }
  }
}

TEST_P(AttentionTest, QueriesAtAnOffsetOverPagesOfAnySize) {
  for (const int64_t queries : {2, 5, 64, 95, 130}) {
    for (const int64_t before : {0, 1, 63, 64, 100, 400}) {
      SCOPED_TRACE(testing::Message() << queries << " after " << before);
      for (const int64_t page_tokens : {0, 1, 7, 256}) {
        ExpectMatches(AttentionCase(2, 1, 40, kF32, kF32, kF32, {{queries, before + queries}}, page_tokens));
        ExpectMatches(AttentionCase(2, 1, 64, kBF16, kBF16, kF32, {{queries, before + queries}}, page_tokens));
      }
    }
  }
}

TEST_P(AttentionTest, EveryMixtureOfTypes) {
  for (const DType q : {kF32, kBF16}) {
    for (const DType kv : {kF32, kBF16, kF16}) {
      for (const DType out : {kF32, kBF16}) {
        SCOPED_TRACE(testing::Message() << DTypeName(q) << " " << DTypeName(kv) << " " << DTypeName(out));
        ExpectMatches(AttentionCase(4, 2, 40, q, kv, out, {{70, 99}, {1, 300}}));
      }
    }
  }
}

TEST_P(AttentionTest, LongPromptSplitsOverThreads) {
  const AttentionCase f32(2, 1, 64, kF32, kF32, kF32, {{1000, 1000}});
  const AttentionCase bf16(2, 1, 64, kBF16, kBF16, kBF16, {{1000, 1000}});
  ExpectMatches(f32);
  ExpectMatches(bf16);
  ThreadPool one(1), three(3);
  EXPECT_EQ(0, std::memcmp(f32.Run(one, GetParam()).data(), f32.Run(one, GetParam()).data(), 1000 * f32.stride() * 4));
  f32.ExpectMatches(f32.Run(three, GetParam()), 5e-6, 1e-6);
}

TEST_P(AttentionTest, SequencesOfOneAndManyQueriesInOneBatch) {
  ExpectMatches(AttentionCase(6, 2, 64, kF32, kF32, kF32, {{1, 77}, {40, 90}, {1, 600}, {2, 2}, {1, 1}}));
}

// Two ways to part the same prompt give the same rows within the f32 rule of the product.
TEST_P(AttentionTest, PartsOfAPromptEqualTheWhole) {
  AttentionCase whole(9, 3, 64, kF32, kF32, kF32, {{500, 500}});
  const std::vector<float> want = whole.Run(pool_, GetParam());
  float largest = 0;
  for (int64_t i = 0; i < 500 * whole.stride(); ++i) {
    if (!std::isnan(want[i])) largest = std::max(largest, std::fabs(want[i]));
  }
  for (const int64_t part : {1, 77, 250}) {
    AttentionCase tail = whole;
    tail.specs[0].queries = part;
    tail.q.erase(tail.q.begin(), tail.q.end() - part * tail.stride());
    const std::vector<float> got = tail.Run(pool_, GetParam());
    for (int64_t r = 0; r < part; ++r) {
      for (int64_t c = 0; c < tail.columns(); ++c) {
        ASSERT_NEAR(got[r * tail.stride() + c], want[(500 - part + r) * tail.stride() + c], 2e-6 * largest);
      }
    }
  }
}

// What a window hides from all queries, by whole key blocks, is not even read.
TEST_P(AttentionTest, WindowsOfEveryLength) {
  for (const DType dtype : {kF32, kBF16}) {
    for (const int64_t queries : {1, 2, 37, 130, 200}) {
      for (const int64_t before : {0, 63, 400}) {
        for (const int64_t window : {1, 2, 6, 33, 64, 100, 129, 256, 5000}) {
          SCOPED_TRACE(testing::Message() << queries << " after " << before << ", window " << window);
          const int64_t length = before + queries;
          AttentionCase problem(4, 2, 40, dtype, dtype, dtype, {{queries, length}});
          problem.shape.window = window;
          const int64_t hidden = std::max<int64_t>(0, before + 1 - window);
          std::fill_n(problem.kv[0].begin(), hidden * problem.row_elements(), AttentionCase::kNan);
          problem.specs[0].unreadable = hidden / kMaxKeyBlock * kMaxKeyBlock;
          ExpectMatches(problem);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(AttentionTest, SoftCapsWithAndWithoutAWindow) {
  for (const DType dtype : {kF32, kBF16}) {
    for (const float soft_cap : {0.3f, 2.0f, 30.0f}) {
      for (const int64_t window : {0, 50}) {
        SCOPED_TRACE(testing::Message() << "cap " << soft_cap << ", window " << window);
        AttentionCase problem(4, 2, 40, dtype, dtype, kF32, {{70, 199}, {1, 300}, {3, 3}});
        problem.shape.soft_cap = soft_cap;
        problem.shape.window = window;
        problem.shape.scale *= 5;
        ExpectMatches(problem);
      }
    }
  }
}

// Only who sees it: the one before the window does not count, the one behind it in the same key block does.
TEST_P(AttentionTest, WhoSeesABadValueInItsWindowGetsNan) {
  for (const DType kv : {kF32, kBF16, kF16}) {
    const DType dtype = kv == kF16 ? kF32 : kv;
    AttentionCase problem(4, 2, 40, dtype, kv, dtype, {{300, 300}});
    problem.shape.window = 50;
    problem.V(0, 100, 1)[39] = std::numeric_limits<float>::infinity();
    problem.V(0, 120, 1)[3] = AttentionCase::kNan;
    ExpectMatches(problem, 0, 100);
    ExpectMatches(problem, 170);
    const std::vector<float> out = problem.Run(pool_, GetParam());
    for (int64_t i = 100; i < 170; ++i) {
      EXPECT_TRUE(std::isnan(out[i * problem.stride() + 3 * 40])) << i;
      EXPECT_FALSE(std::isnan(out[i * problem.stride()])) << "the other KV head is as it should be, " << i;
    }
  }
}

// The dense rectangle masks what causality skips: not a bit of the result is another.
TEST_P(AttentionTest, TheDenseRectangleGivesTheSameRows) {
  for (const DType dtype : {kF32, kBF16}) {
    for (const int64_t queries : {1, 2, 37, 130}) {
      for (const int64_t before : {0, 1, 100}) {
        for (const int64_t after : {0, 1, 63, 200}) {
          SCOPED_TRACE(testing::Message() << queries << " after " << before << " and before " << after);
          const int64_t length = before + queries;
          AttentionCase dense(4, 2, 40, dtype, dtype, dtype, {{queries, length, length + after}});
          // Whatever is in the future, garbage included, is masked.
          if (after > 1) std::fill(dense.K(0, length + 1, 0), dense.K(0, length + 2, 0), AttentionCase::kNan);
          ExpectMatches(dense);
          AttentionCase causal = dense;
          causal.specs[0].dense_length = 0;
          const std::vector<float> want = causal.Run(pool_, GetParam()), got = dense.Run(pool_, GetParam());
          EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float)));
        }
      }
    }
  }
}

// Queries times keys, once for the scores and once for the sum over V; whole strips and blocks, so that it is exact.
TEST(AttentionWork, TheDenseRectangleIsComputedAndTheTriangleSkipsHalf) {
  constexpr int64_t kQueries = 192, kKeys = 384, kDim = 64;
  ThreadPool one(1);
  const auto products = [&](int64_t length, int64_t dense_length) {
    const AttentionCase problem(1, 1, kDim, kF32, kF32, kF32, {{kQueries, length, dense_length}});
    TakeCountedProducts();
    problem.Compute([&](const CpuAttentionArgs& args) {
      RunPrefillAttention(one, CountedPrefillKernels(), args, args.table.layout().sequences[0], 0);
    });
    return TakeCountedProducts() * kCountedLanes;
  };
  constexpr int64_t kRectangle = 2 * kQueries * kKeys * kDim;
  EXPECT_EQ(products(kQueries, kKeys), kRectangle);
  EXPECT_EQ(products(kKeys, kKeys), kRectangle);
  // A quarter is visible to the first half of the keys; what strips and blocks round up to is a few percent.
  EXPECT_NEAR(static_cast<double>(products(kQueries, 0)), kRectangle / 4.0, kRectangle * 0.03);
  EXPECT_NEAR(static_cast<double>(products(kKeys, 0)), kRectangle * 3 / 4.0, kRectangle * 0.03);
}

TEST(AttentionWork, AWindowSkipsWholeKeyBlocks) {
  constexpr int64_t kQueries = 192, kLength = 1920, kDim = 64, kBlock = 64;
  ThreadPool one(1);
  AttentionCase problem(1, 1, kDim, kF32, kF32, kF32, {{kQueries, kLength}});
  problem.shape.window = kBlock;
  TakeCountedProducts();
  problem.Compute([&](const CpuAttentionArgs& args) {
    RunPrefillAttention(one, CountedPrefillKernels(), args, args.table.layout().sequences[0], 0);
  });
  // A strip's windows lie in two key blocks, three where a border runs through them.
  const double block = 2.0 * kQueries * kBlock * kDim;
  const double products = static_cast<double>(TakeCountedProducts() * kCountedLanes);
  EXPECT_GT(products, block);
  EXPECT_LT(products, 2.3 * block);
}

TEST_P(AttentionTest, PoisonInTheFutureDoesNotReachEarlierQueries) {
  const int64_t length = 300, poisoned = 222;
  for (const DType dtype : {kF32, kBF16}) {
    for (const float poison : {AttentionCase::kNan, std::numeric_limits<float>::infinity()}) {
      AttentionCase problem(4, 2, 40, dtype, dtype, dtype, {{length, length}});
      for (int64_t head = 0; head < 2; ++head) {
        for (int64_t d = 0; d < 40; ++d) problem.K(0, poisoned, head)[d] = problem.V(0, poisoned, head)[d] = poison;
      }
      ExpectMatches(problem, 0, poisoned);
      const std::vector<float> out = problem.Run(pool_, GetParam());
      for (int64_t i = poisoned; i < length; ++i) EXPECT_TRUE(std::isnan(out[i * problem.stride()])) << i;
    }
  }
}

TEST_P(AttentionTest, ExtremeScoresStayFinite) {
  for (const DType dtype : {kF32, kBF16}) {
    for (const float factor : {1e3f, 1e15f, -1e15f, -1e18f}) {
      AttentionCase problem(4, 2, 64, dtype, dtype, dtype, {{100, 200}, {1, 300}});
      for (std::vector<float>& rows : problem.kv) {
        for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
          const bool key = i % problem.row_elements() < problem.row_elements() / 2;
          if (key) rows[i] = ToFloat(ToBFloat16(std::fabs(rows[i]) * factor));
        }
      }
      for (float& x : problem.q) x = std::fabs(x);
      const std::vector<float> out = problem.Run(pool_, GetParam());
      for (int64_t r = 0; r < 101; ++r) {
        for (int64_t c = 0; c < problem.columns(); ++c) ASSERT_TRUE(std::isfinite(out[r * problem.stride() + c]));
      }
    }
  }
}

// Scores that overflow to -inf everywhere have no softmax; the row is zero, not NaN.
TEST_P(AttentionTest, AllScoresMinusInfinityGiveZero) {
  for (const int64_t queries : {1, 8}) {
    AttentionCase problem(2, 1, 64, kF32, kF32, kF32, {{queries, 20}});
    for (int64_t k = 0; k < 20; ++k) std::fill(problem.K(0, k, 0), problem.K(0, k, 0) + 64, -1e30f);
    for (float& x : problem.q) x = std::isnan(x) ? x : 1e30f;
    const std::vector<float> out = problem.Run(pool_, GetParam());
    for (int64_t r = 0; r < queries; ++r) {
      for (int64_t c = 0; c < problem.columns(); ++c) ASSERT_EQ(0.0f, out[r * problem.stride() + c]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionTest, testing::ValuesIn(IsasOfThisMachine()),
                         [](const auto& info) { return std::string(CpuIsaName(info.param)); });

}  // namespace
}  // namespace runahead
