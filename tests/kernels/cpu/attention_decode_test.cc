// One query per sequence: parity with double precision, and bitwise invariance.
#include <cstring>

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

class AttentionDecodeTest : public testing::TestWithParam<std::tuple<CpuIsa, DType>> {
 protected:
  CpuIsa isa() const { return std::get<0>(GetParam()); }
  DType kv() const { return std::get<1>(GetParam()); }
  ThreadPool pool_{2};

  static std::vector<SequenceSpec> Batch(const std::vector<int64_t>& cuts) {
    std::vector<SequenceSpec> batch;
    for (const int64_t length : kLengths) batch.push_back({1, length, cuts});
    return batch;
  }
};

TEST_P(AttentionDecodeTest, RaggedBatchesOfEveryHeadLayoutAndSize) {
  for (const auto& [heads, kv_heads] : {std::pair(9, 3), std::pair(4, 1), std::pair(8, 8), std::pair(7, 1)}) {
    for (const int64_t dim : {24, 40, 64, 80, 128}) {
      SCOPED_TRACE(testing::Message() << heads << "/" << kv_heads << " of " << dim);
      const AttentionCase problem(heads, kv_heads, dim, kF32, kv(), kF32, Batch({256}));
      problem.ExpectMatches(problem.Run(pool_, isa()), 5e-6, 1e-6);
    }
  }
}

TEST_P(AttentionDecodeTest, TakesAndGivesBf16) {
  const AttentionCase problem(9, 3, 64, kBF16, kv(), kBF16, Batch({256}));
  problem.ExpectMatches(problem.Run(pool_, isa()), 5e-6, 1.0 / 256);
}

TEST_P(AttentionDecodeTest, BitwiseTheSameAloneInABatchAndOnAnyThreads) {
  const AttentionCase batch(9, 3, 40, kF32, kv(), kF32, Batch({256}));
  const std::vector<float> want = batch.Run(pool_, isa());
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    const std::vector<float> again = batch.Run(pool, isa());
    EXPECT_EQ(0, std::memcmp(again.data(), want.data(), want.size() * sizeof(float))) << threads;
    for (size_t s = 0; s < kLengths.size(); ++s) {
      const AttentionCase alone(9, 3, 40, kF32, kv(), kF32, {{1, kLengths[s], {256}}});
      const std::vector<float> row = alone.Run(pool, isa());
      EXPECT_EQ(0, std::memcmp(row.data(), want.data() + s * batch.stride(), row.size() * sizeof(float)))
          << kLengths[s] << " positions, " << threads << " threads";
    }
  }
}

TEST_P(AttentionDecodeTest, BitwiseTheSameHoweverKvIsCut) {
  const std::vector<float> want = AttentionCase(9, 3, 64, kF32, kv(), kF32, Batch({})).Run(pool_, isa());
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{256}, {1}, {3, 300, 17}, {255, 1, 2}}) {
    const std::vector<float> got = AttentionCase(9, 3, 64, kF32, kv(), kF32, Batch(cuts)).Run(pool_, isa());
    EXPECT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float))) << cuts[0];
  }
}

TEST_P(AttentionDecodeTest, ManyStepsOnOneSequenceRepeatBitwise) {
  const AttentionCase problem(4, 2, 64, kF32, kv(), kF32, {{1, 3000, {256}}});
  ThreadPool pool(3);
  const std::vector<float> want = problem.Run(pool, isa());
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> got = problem.Run(pool, isa());
    ASSERT_EQ(0, std::memcmp(got.data(), want.data(), want.size() * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionDecodeTest,
                         testing::Combine(testing::ValuesIn(DecodeIsas()), testing::Values(kF32, kBF16)),
                         [](const auto& info) {
                           return std::string(CpuIsaName(std::get<0>(info.param))) + "_" +
                                  std::string(DTypeName(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace runahead
