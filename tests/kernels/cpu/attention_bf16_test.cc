// The kernels that multiply in bf16: that of AMX and that of AVX512_BF16, which RunCpuAttention takes on AMD only. On
// every machine over plain C++, and where there is AVX512_BF16 over its vectors; the tiles of AMX are emulated in both
// (attention_test runs it on real ones where the machine has them).
#include <ostream>
#include <string>

#include "kernels/cpu/attention_internal.h"
#include "tests/kernels/cpu/attention_case.h"
#include "tests/kernels/cpu/attention_stand_ins.h"

namespace runahead {
namespace {

constexpr DType kBF16 = DType::kBF16;

struct Form {
  const char* name;
  const PrefillKernels& (*kernels)();
  CpuIsa needs;
};
void PrintTo(const Form& form, std::ostream* out) {
  *out << form.name;
}

class AttentionBf16Test : public testing::TestWithParam<Form> {
 protected:
  ThreadPool pool_{2};

  void SetUp() override {
    if (DetectCpuIsa() < GetParam().needs) GTEST_SKIP() << "needs " << CpuIsaName(GetParam().needs);
  }
  std::vector<float> Run(const AttentionCase& problem) {
    return problem.Compute([&](const CpuAttentionArgs& args) {
      RunPrefillAttention(pool_, GetParam().kernels(), args, args.table.layout().sequences.at(0), 0);
    });
  }
  void ExpectMatches(const AttentionCase& problem, int64_t last = std::numeric_limits<int64_t>::max()) {
    problem.ExpectMatches(Run(problem), 4e-3, problem.out_dtype == kBF16 ? 1.0 / 256 : 1e-6, 0, last);
  }
};

TEST_P(AttentionBf16Test, OddLengthsAndOffsets) {
  for (const int64_t queries : {1, 2, 16, 33, 130}) {
    for (const int64_t before : {0, 1, 31, 127, 128, 300}) {
      SCOPED_TRACE(testing::Message() << queries << " after " << before);
      ExpectMatches(AttentionCase(2, 1, 64, kBF16, kBF16, kBF16, {{queries, before + queries}}));
    }
  }
}

TEST_P(AttentionBf16Test, EveryHeadLayoutAndHeadSize) {
  for (const auto& [heads, kv_heads] : {std::pair(9, 3), std::pair(4, 1), std::pair(8, 8)}) {
    for (const int64_t dim : {8, 24, 40, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " of " << dim);
      ExpectMatches(AttentionCase(heads, kv_heads, dim, kBF16, kBF16, DType::kF32, {{37, 150}}));
    }
  }
}

// What a device that computes in f32 and keeps KV in f16 gives them: both are rounded to bf16, which costs 2^-9 of
// values and, by scores up to 3, of weights.
TEST_P(AttentionBf16Test, QueriesOfF32AndKvOfF16OfEveryHeadSize) {
  for (const int64_t dim : {8, 24, 40, 64, 80, 96, 128, 256}) {
    for (const int64_t length : {37, 150}) {
      SCOPED_TRACE(testing::Message() << dim << ", " << length);
      const AttentionCase problem(6, 2, dim, DType::kF32, DType::kF16, DType::kF32, {{37, length}});
      const std::vector<float> out = Run(problem);
      problem.ExpectMatches(out, 1.5e-2, 1e-6);
      // Q and KV that were rounded to the nearest bf16 before give the same bits.
      AttentionCase rounded = problem;
      rounded.q_dtype = rounded.shape.kv_dtype = kBF16;
      const std::vector<float> want = Run(rounded);  // the case encodes them in bf16
      EXPECT_EQ(0, std::memcmp(out.data(), want.data(), want.size() * sizeof(float)));
    }
  }
}

// A query that sees one key attends to its V alone.
TEST_P(AttentionBf16Test, EveryValueOfF16IsRoundedToTheNearestBf16) {
  constexpr int64_t kDim = 256;
  AttentionCase problem(1, 1, kDim, DType::kF32, DType::kF16, DType::kF32, {{1, 1}});
  for (int64_t first = 0; first < 1 << 16; first += kDim) {
    for (int64_t d = 0; d < kDim; ++d) problem.V(0, 0, 0)[d] = ToFloat(Float16{static_cast<uint16_t>(first + d)});
    const std::vector<float> out = Run(problem);
    for (int64_t d = 0; d < kDim; ++d) {
      const float value = problem.V(0, 0, 0)[d];
      if (std::isfinite(value)) {
        ASSERT_EQ(out[d], Kept(value, kBF16)) << first + d;
      } else {
        ASSERT_TRUE(std::isnan(out[d])) << first + d;
      }
    }
  }
}

TEST_P(AttentionBf16Test, WhoSeesAnInfiniteValueOfF16GetsNan) {
  AttentionCase problem(2, 1, 40, DType::kF32, DType::kF16, DType::kF32, {{300, 300}});
  problem.V(0, 221, 0)[39] = std::numeric_limits<float>::infinity();
  const std::vector<float> out = Run(problem);
  for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(std::isnan(out[i * problem.stride()]), i >= 221) << i;
}

TEST_P(AttentionBf16Test, LongPrompt) {
  ExpectMatches(AttentionCase(2, 1, 64, kBF16, kBF16, kBF16, {{1000, 1000}}));
}

TEST_P(AttentionBf16Test, Windows) {
  for (const int64_t queries : {2, 33, 130}) {
    for (const int64_t before : {0, 300}) {
      for (const int64_t window : {1, 20, 150}) {
        SCOPED_TRACE(testing::Message() << queries << " after " << before << ", window " << window);
        AttentionCase problem(2, 1, 64, kBF16, kBF16, kBF16, {{queries, before + queries}});
        problem.shape.window = window;
        const int64_t hidden = std::max<int64_t>(0, before + 1 - window);
        std::fill_n(problem.kv[0].begin(), hidden * problem.row_elements(), AttentionCase::kNan);
        problem.specs[0].unreadable = hidden / kMaxKeyBlock * kMaxKeyBlock;
        ExpectMatches(problem);
      }
    }
  }
}

TEST_P(AttentionBf16Test, TheDenseRectangleGivesTheSameRows) {
  for (const int64_t after : {0, 1, 130}) {
    SCOPED_TRACE(after);
    AttentionCase dense(4, 2, 40, kBF16, kBF16, kBF16, {{37, 150, 150 + after}});
    ExpectMatches(dense);
    AttentionCase causal = dense;
    causal.specs[0].dense_length = 0;
    const std::vector<float> want = Run(causal), got = Run(dense);
    EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float)));
  }
}

TEST_P(AttentionBf16Test, PoisonInTheFutureDoesNotReachEarlierQueries) {
  AttentionCase problem(4, 2, 40, kBF16, kBF16, kBF16, {{300, 300}});
  for (int64_t head = 0; head < 2; ++head) {
    for (int64_t d = 0; d < 40; ++d) problem.K(0, 222, head)[d] = problem.V(0, 222, head)[d] = AttentionCase::kNan;
  }
  ExpectMatches(problem, 222);
  const std::vector<float> out = Run(problem);
  for (int64_t i = 222; i < 300; ++i) EXPECT_TRUE(std::isnan(out[i * problem.stride()])) << i;
}

TEST_P(AttentionBf16Test, WhoSeesAnInfiniteValueGetsNan) {
  for (const int64_t bad : {220, 221}) {  // either half of a pair
    AttentionCase problem(2, 1, 40, kBF16, kBF16, kBF16, {{300, 300}});
    problem.V(0, bad, 0)[39] = std::numeric_limits<float>::infinity();
    ExpectMatches(problem, bad);
    const std::vector<float> out = Run(problem);
    for (int64_t i = bad; i < 300; ++i) EXPECT_TRUE(std::isnan(out[i * problem.stride()])) << i << " sees " << bad;
  }
}

TEST_P(AttentionBf16Test, GrowingScoresRescaleWhatWasSummed) {
  AttentionCase problem(2, 1, 64, kBF16, kBF16, DType::kF32, {{64, 640}});
  for (int64_t k = 0; k < 640; ++k) {
    for (int64_t d = 0; d < 64; ++d) {
      float& x = problem.K(0, k, 0)[d];
      x = ToFloat(ToBFloat16(x * (1.0f + 0.01f * static_cast<float>(k))));
    }
  }
  ExpectMatches(problem);
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionBf16Test,
                         testing::Values(Form{"PlainAmx", PlainAmxPrefillKernels, CpuIsa::kBaseline},
                                         Form{"PlainBf16", PlainBf16PrefillKernels, CpuIsa::kBaseline},
                                         Form{"EmulatedAmx", EmulatedAmxPrefillKernels, CpuIsa::kAvx512Bf16},
                                         Form{"Avx512Bf16", Avx512Bf16PrefillKernels, CpuIsa::kAvx512Bf16}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace runahead
