// A decode step, its pieces merged: parity with double precision, and bitwise invariance.
#include <cstring>
#include <tuple>

#include "tests/kernels/cpu/attention_case.h"

namespace runahead {
namespace {

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;
const std::vector<int64_t> kLengths = {1, 2, 15, 129, 255, 256, 257, 511, 512, 513, 1000};

// Higher ones decode as AVX-512 does.
std::vector<CpuIsa> DecodeIsas() {
  std::vector<CpuIsa> isas = IsasOfThisMachine();
  isas.erase(std::remove_if(isas.begin(), isas.end(), [](CpuIsa isa) { return isa > CpuIsa::kAvx512; }), isas.end());
  return isas;
}

class AttentionPiecesTest : public testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  CpuIsa isa() const { return std::get<0>(GetParam()); }
  DType kv() const { return std::get<1>(GetParam()); }
  ThreadPool pool_{2};

  static std::vector<SequenceSpec> Batch() {
    std::vector<SequenceSpec> batch;
    for (const int64_t length : kLengths) batch.push_back({1, length});
    return batch;
  }
  void ExpectAsEachAlone(AttentionCase& together) {
    together.by_pieces = true;
    const std::vector<float> got = together.Step(pool_, isa());
    int64_t row = 0;
    for (size_t s = 0; s < together.specs.size(); ++s) {
      for (int64_t i = 0; i < together.specs[s].queries; ++i, ++row) {
        const std::vector<float> want = together.Alone(s, i).Step(pool_, isa());
        ASSERT_EQ(0, std::memcmp(&got[row * together.stride()], want.data(), together.columns() * sizeof(float)))
            << "sequence " << s << ", query " << i;
      }
    }
  }
};

TEST_P(AttentionPiecesTest, RaggedBatchesOfEveryHeadLayoutAndSize) {
  for (const auto& [heads, kv_heads] : {std::pair(9, 3), std::pair(4, 1), std::pair(8, 8), std::pair(7, 1)}) {
    for (const int64_t dim : {24, 40, 64, 80, 128}) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " of " << dim);
      const AttentionCase problem(heads, kv_heads, dim, kF32, kv(), kF32, Batch());
      problem.ExpectMatches(problem.Step(pool_, isa()), 5e-6, 1e-6);
    }
  }
}

TEST_P(AttentionPiecesTest, WindowsAndSoftCaps) {
  for (const int64_t window : {0, 1, 100, 256, 300}) {
    for (const float soft_cap : {0.0f, 2.0f}) {
      AttentionCase problem(9, 3, 40, kF32, kv(), kF32, Batch());
      problem.shape.window = window;
      problem.shape.soft_cap = soft_cap;
      for (SequenceSpec& spec : problem.specs) {
        if (window > 0) spec.unreadable = std::max<int64_t>(0, spec.length - window);
      }
      problem.ExpectMatches(problem.Step(pool_, isa()), 5e-6, 1e-6);
    }
  }
}

// A long sequence has pieces of several splits, and a window may begin inside any of them.
TEST_P(AttentionPiecesTest, LongSequences) {
  for (const int64_t dim : {40, 64}) {
    for (const int64_t window : {0, 150, 300, 600, 5000}) {
      SCOPED_TRACE(testing::Message() << "window " << window << ", head_dim " << dim);
      AttentionCase problem(3, 1, dim, kF32, kv(), kF32, {{1, 16'700}, {1, 300}, {1, 33'000}});
      problem.shape.window = window;
      problem.shape.soft_cap = window == 600 ? 2.0f : 0.0f;
      problem.ExpectMatches(problem.Step(pool_, isa()), 5e-6, 1e-6);
    }
  }
}

// Several kv heads of an item, each with splits to join; or heads as items, where threads are many.
TEST_P(AttentionPiecesTest, LongSequencesOfSeveralKvHeads) {
  AttentionCase problem(6, 3, 24, kF32, kv(), kF32, {{1, 16'700}, {1, 17'100}});
  problem.shape.window = 16'500;
  ThreadPool few(1), many(64);
  const std::vector<float> whole = problem.Step(few, isa()), by_head = problem.Step(many, isa());
  problem.ExpectMatches(whole, 5e-6, 1e-6);
  EXPECT_EQ(0, std::memcmp(by_head.data(), whole.data(), whole.size() * sizeof(float)));
}

// The splits of a piece are joined by their largest score, wherever that is.
TEST_P(AttentionPiecesTest, ALargeScoreOutweighsTheOtherSplitsOfItsPiece) {
  for (const int64_t at : {16'400, 16'700}) {
    AttentionCase problem(2, 1, 8, kF32, kv(), kF32, {{1, 16'800}});
    for (float& x : problem.q) x = std::isnan(x) ? x : 10.0f;
    for (int64_t k = 0; k < 16'800; ++k) std::fill(problem.K(0, k, 0), problem.K(0, k, 0) + 8, k == at ? 100.0f : 0.0f);
    std::fill(problem.V(0, at, 0), problem.V(0, at, 0) + 8, 3.0f);
    const std::vector<float> out = problem.Step(pool_, isa());
    for (int64_t c = 0; c < problem.columns(); ++c) ASSERT_NEAR(out[c], 3.0f, 1e-6) << at;
  }
}

TEST_P(AttentionPiecesTest, TakesAndGivesBf16) {
  const AttentionCase problem(9, 3, 64, kBF16, kv(), kBF16, Batch());
  problem.ExpectMatches(problem.Step(pool_, isa()), 5e-6, 1.0 / 256);
}

TEST_P(AttentionPiecesTest, BitwiseTheSameAloneInABatchAndOnAnyThreads) {
  for (const int64_t window : {0, 300}) {
    AttentionCase batch(9, 3, 40, kF32, kv(), kF32, Batch());
    batch.shape.window = window;
    const std::vector<float> want = batch.Step(pool_, isa());
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      const std::vector<float> again = batch.Step(pool, isa());
      EXPECT_EQ(0, std::memcmp(again.data(), want.data(), want.size() * sizeof(float))) << threads;
      for (size_t s = 0; s < kLengths.size(); ++s) {
        AttentionCase alone(9, 3, 40, kF32, kv(), kF32, {{1, kLengths[s]}});
        alone.shape.window = window;
        const std::vector<float> row = alone.Step(pool, isa());
        EXPECT_EQ(0, std::memcmp(row.data(), want.data() + s * batch.stride(), row.size() * sizeof(float)))
            << kLengths[s] << " positions, " << threads << " threads";
      }
    }
  }
}

TEST_P(AttentionPiecesTest, BitwiseTheSameInPagesOfAnySize) {
  const std::vector<float> want = AttentionCase(9, 3, 64, kF32, kv(), kF32, Batch(), 0).Step(pool_, isa());
  for (const int64_t page_tokens : {1, 3, 16, 256, 300}) {
    const std::vector<float> got = AttentionCase(9, 3, 64, kF32, kv(), kF32, Batch(), page_tokens).Step(pool_, isa());
    EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float))) << page_tokens;
  }
}

// Several queries of a sequence, each as the only one of it, to the bit, alone and beside others.
TEST_P(AttentionPiecesTest, QueriesOfASequenceAreBitwiseThoseOfOneQueryEach) {
  const std::vector<SequenceSpec> batch = {{1, 1},   {2, 2},   {16, 16},  {3, 40},  {5, 258},
                                           {8, 264}, {1, 700}, {16, 520}, {2, 256}, {20, 300}};
  for (const auto& [heads, kv_heads, dim] : {std::tuple(9, 3, 40), std::tuple(2, 2, 64), std::tuple(7, 1, 24)}) {
    for (const int64_t window : {0, 1, 9, 300}) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << ", window " << window);
      AttentionCase together(heads, kv_heads, dim, kF32, kv(), kF32, batch);
      together.shape.window = window;
      together.shape.soft_cap = window == 9 ? 2.0f : 0.0f;
      ExpectAsEachAlone(together);
    }
  }
}

// The pieces of some are twice as long as those of others.
TEST_P(AttentionPiecesTest, QueriesOfASequenceKeepTheirOwnCuts) {
  for (const int64_t window : {0, 16'300}) {
    SCOPED_TRACE(window);
    AttentionCase together(3, 1, 8, kF32, kv(), kF32, {{4, 16'386}, {1, 300}, {2, 16'384}, {3, 32'770}}, 256);
    together.shape.window = window;
    ExpectAsEachAlone(together);
  }
}

TEST_P(AttentionPiecesTest, QueriesOfASequenceAreBitwiseTheSameOnAnyThreads) {
  AttentionCase together(6, 3, 24, kF32, kv(), kF32, {{16, 1'032}, {3, 70}, {5, 270}});
  together.by_pieces = true;
  const std::vector<float> want = together.Step(pool_, isa());
  together.ExpectMatches(want, 5e-6, 1e-6);
  for (const int threads : {1, 3, 64}) {
    ThreadPool pool(threads);
    const std::vector<float> again = together.Step(pool, isa());
    EXPECT_EQ(0, std::memcmp(again.data(), want.data(), want.size() * sizeof(float))) << threads;
  }
}

// What a window hides from all of them.
TEST_P(AttentionPiecesTest, NobodyReadsWhatIsHiddenFromTheFirstOfSeveralQueries) {
  AttentionCase problem(4, 2, 64, kF32, kv(), kF32, {{16, 900}});
  problem.by_pieces = true;
  problem.shape.window = 300;
  problem.specs[0].unreadable = 900 - 15 - 300;
  problem.ExpectMatches(problem.Step(pool_, isa()), 5e-6, 1e-6);
}

TEST_P(AttentionPiecesTest, ExtremeScoresStayFinite) {
  const float largest = kv() == DType::kF16 ? 65504.0f : 1e30f;
  for (const float factor : {1e3f, 1e15f, -1e15f, -1e18f}) {
    AttentionCase problem(4, 2, 64, kF32, kv(), kF32, {{1, 700}});
    for (int64_t k = 0; k < 700; ++k) {
      for (int64_t i = 0; i < 2 * 64; ++i) {
        float& x = problem.K(0, k, 0)[i];
        x = Kept(std::clamp(std::fabs(x) * factor, -largest, largest), kv());
      }
    }
    for (float& x : problem.q) x = std::fabs(x);
    const std::vector<float> out = problem.Step(pool_, isa());
    for (int64_t c = 0; c < problem.columns(); ++c) ASSERT_TRUE(std::isfinite(out[c])) << factor;
  }
}

// Scores that overflow to -inf everywhere have no softmax; the row is zero, not NaN.
TEST_P(AttentionPiecesTest, AllScoresMinusInfinityGiveZero) {
  AttentionCase problem(2, 1, 64, kF32, kv(), kF32, {{1, 300}});
  for (int64_t k = 0; k < 300; ++k) std::fill(problem.K(0, k, 0), problem.K(0, k, 0) + 64, -1e30f);
  for (float& x : problem.q) x = std::isnan(x) ? x : 1e30f;
  const std::vector<float> out = problem.Step(pool_, isa());
  for (int64_t c = 0; c < problem.columns(); ++c) ASSERT_EQ(0.0f, out[c]);
}

// A piece says what softmax over its own positions gives, and how much that weighs beside others.
TEST_P(AttentionPiecesTest, APieceIsAMeanAndTheLogarithmOfItsWeight) {
  AttentionCase problem(2, 1, 8, kF32, kv(), kF32, {{1, 600}, {1, 3}});
  problem.shape.window = 200;  // hides the first piece and part of the second
  for (int64_t k = 0; k < 600; ++k) std::fill(problem.K(0, k, 0), problem.K(0, k, 0) + 8, 0.0f);
  for (int64_t k = 0; k < 600; ++k) std::fill(problem.V(0, k, 0), problem.V(0, k, 0) + 8, k < 512 ? 2.0f : 3.0f);
  Tensor partials;
  problem.Compute([&](const CpuAttentionArgs& args) {
    partials = problem.Partials(args.table);
    AttendCpuPieces(pool_, isa(), {args.q, args.shape, args.table, args.layer, partials});
  });
  ASSERT_EQ(partials.rows, 4);
  for (int64_t head = 0; head < 2; ++head) {
    EXPECT_EQ(partials.row<float>(0)[16 + head], -std::numeric_limits<float>::infinity());
    EXPECT_NEAR(partials.row<float>(1)[16 + head], std::log2(112.0), 1e-5);
    EXPECT_NEAR(partials.row<float>(2)[16 + head], std::log2(88.0), 1e-5);
    for (int64_t d = 0; d < 8; ++d) {
      EXPECT_NEAR(partials.row<float>(1)[head * 8 + d], 2.0, 1e-5);
      EXPECT_NEAR(partials.row<float>(2)[head * 8 + d], 3.0, 1e-5);
    }
  }
}

TEST_P(AttentionPiecesTest, ManyStepsOnOneSequenceRepeatBitwise) {
  const AttentionCase problem(4, 2, 64, kF32, kv(), kF32, {{1, 3000}});
  ThreadPool pool(3);
  const std::vector<float> want = problem.Step(pool, isa());
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> got = problem.Step(pool, isa());
    ASSERT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionPiecesTest,
                         testing::Combine(testing::ValuesIn(DecodeIsas()), testing::Values(kF32, kBF16, DType::kF16)),
                         [](const auto& info) {
                           return std::string(CpuIsaName(std::get<0>(info.param))) + "_" +
                                  std::string(DTypeName(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace runahead
