#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Row = std::vector<float>;

struct Top {
  std::vector<int32_t> ids;
  std::vector<float> values;
  float log_sum;
};

std::vector<Top> TopOf(const std::vector<Row>& rows, int k, const Placement& placement = {0, 0}) {
  const auto count = static_cast<int64_t>(rows.size());
  GpuMatrix logits(DType::kF32, count, static_cast<int64_t>(rows[0].size()), placement.gap, placement.offset);
  logits.Upload([&](int64_t r, int64_t c) { return rows[r][c]; });
  GpuMatrix ids(DType::kF32, count, k, placement.gap, placement.offset);
  GpuMatrix values(DType::kF32, count, k, placement.gap, placement.offset);
  GpuMatrix log_sum(DType::kF32, count, 1, placement.gap, placement.offset);
  EXPECT_EQ(LaunchTopK(logits.matrix(), k, ids.matrix(), values.matrix(), log_sum.matrix(), nullptr), cudaSuccess);
  for (GpuMatrix* out : {&ids, &values, &log_sum}) out->Download();
  std::vector<Top> tops(rows.size());
  for (int64_t r = 0; r < count; ++r) {
    for (int i = 0; i < k; ++i) {
      tops[r].ids.push_back(static_cast<int32_t>(ids.bits(r, i)));
      tops[r].values.push_back(values.at(r, i));
    }
    tops[r].log_sum = log_sum.at(r, 0);
  }
  return tops;
}

// For rows of numbers, -inf among them.
void ExpectTop(const Row& row, int k, const Top& top) {
  std::vector<int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
  order.resize(k);
  EXPECT_EQ(top.ids, order);
  for (int i = 0; i < k; ++i) EXPECT_EQ(top.values[i], row[order[i]]) << i;
  double sum = 0;
  for (const float logit : row) sum += std::exp(static_cast<double>(logit) - row[order[0]]);
  const double want = row[order[0]] + std::log(sum);
  EXPECT_NEAR(top.log_sum, want, 1e-5 + 1e-6 * std::fabs(want));
}

Row RandomRow(int64_t cols, uint32_t seed, float scale = 10.0f) {
  std::mt19937 random(seed);
  Row row(cols);
  for (float& logit : row) logit = scale * (static_cast<float>(random()) * 0x1p-31f - 1.0f);
  return row;
}

using TopKTest = GpuTest;

TEST_F(TopKTest, MatchesASort) {
  for (const int cols : {1, 3, 129, 257, 4097, 20001}) {
    for (const int k : {1, 2, 128, 512}) {
      if (k > cols) continue;
      for (const Placement& placement : kPlacements) {
        SCOPED_TRACE(testing::Message() << cols << " columns, k " << k << ", offset " << placement.offset);
        const std::vector<Row> rows = {RandomRow(cols, 1), RandomRow(cols, 2, 1e-3f), RandomRow(cols, 3, 1e4f)};
        const std::vector<Top> tops = TopOf(rows, k, placement);
        for (size_t r = 0; r < rows.size(); ++r) ExpectTop(rows[r], k, tops[r]);
      }
    }
  }
  const Row all = RandomRow(100, 4);
  ExpectTop(all, 100, TopOf({all}, 100)[0]);
}

TEST_F(TopKTest, TiesGoToTheSmallerId) {
  const int64_t cols = 9001;
  std::vector<Row> rows = {Row(cols, 1.5f), Row(cols, 0.0f), RandomRow(cols, 5, 4.0f)};
  for (int64_t c = 0; c < cols; c += 3) rows[1][c] = -0.0f;
  for (float& logit : rows[2]) logit = std::round(logit);
  for (const int k : {1, 5, 128, 512}) {
    const std::vector<Top> tops = TopOf(rows, k);
    for (size_t r = 0; r < rows.size(); ++r) ExpectTop(rows[r], k, tops[r]);
  }
}

// The largest logits lie in the shares of few threads, so that the first bound lets too many through.
TEST_F(TopKTest, LargestLogitsOfFewThreads) {
  const int64_t cols = 40000;
  for (const int most : {100, 110, 127}) {
    std::vector<Row> rows = {RandomRow(cols, 6), RandomRow(cols, 7)};
    for (int64_t c = 0; c < cols; ++c) {
      if (c / 4 % 1024 < most) {
        rows[0][c] += 100;
        rows[1][c] = 100;
      }
    }
    const std::vector<Top> tops = TopOf(rows, 128);
    for (size_t r = 0; r < rows.size(); ++r) ExpectTop(rows[r], 128, tops[r]);
  }
}

TEST_F(TopKTest, LargestVocabulary) {
  const Row row = RandomRow(262145, 8);
  for (const int k : {1, 128}) ExpectTop(row, k, TopOf({row}, k)[0]);
}

TEST_F(TopKTest, MinusInfinityIsALogit) {
  Row masked(300, -kInfinity);
  masked[250] = 1.0f;
  masked[17] = 2.0f;
  for (const int k : {1, 4}) {
    ExpectTop(masked, k, TopOf({masked}, k)[0]);
    const Top none = TopOf({Row(300, -kInfinity)}, k)[0];
    for (int i = 0; i < k; ++i) EXPECT_EQ(none.ids[i], i);
    EXPECT_EQ(none.log_sum, -kInfinity);
    Row infinite = RandomRow(300, 9);
    infinite[200] = kInfinity;
    const Top top = TopOf({infinite}, k)[0];
    EXPECT_EQ(top.ids[0], 200);
    EXPECT_EQ(top.log_sum, kInfinity);
  }
}

TEST_F(TopKTest, NanCountsAsMinusInfinityAndShowsInTheSum) {
  for (const int k : {1, 4, 128}) {
    for (const int64_t bad : {0, 1, 150, 4999}) {
      Row row = RandomRow(5000, 10);
      row[bad] = kNan;
      const Top top = TopOf({row}, k)[0];
      EXPECT_TRUE(std::isnan(top.log_sum)) << bad;
      row[bad] = -kInfinity;
      const Top want = TopOf({row}, k)[0];
      EXPECT_EQ(top.ids, want.ids);
      EXPECT_EQ(top.values, want.values);
    }
    const Top all = TopOf({Row(5000, kNan)}, k)[0];
    EXPECT_TRUE(std::isnan(all.log_sum));
    for (int i = 0; i < k; ++i) {
      EXPECT_EQ(all.ids[i], i);
      EXPECT_EQ(all.values[i], -kInfinity);
    }
  }
}

// What is beside a row, how it is aligned and which k is asked for change no bit of it.
TEST_F(TopKTest, TheSumIsBitwiseTheSameAnywhere) {
  const Row row = RandomRow(4099, 11);
  const float want = TopOf({row}, 1)[0].log_sum;
  for (const int k : {1, 2, 128}) {
    for (const Placement& placement : kPlacements) {
      EXPECT_EQ(TopOf({RandomRow(4099, 12), row, RandomRow(4099, 13)}, k, placement)[1].log_sum, want);
    }
  }
}

}  // namespace
}  // namespace runahead
