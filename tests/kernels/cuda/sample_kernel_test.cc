#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"
#include "tests/testing/reference_sample.h"

namespace runahead {
namespace {

using Row = std::vector<float>;
using SampleTest = GpuTest;

std::vector<int32_t> Draw(const std::vector<Row>& rows, const std::vector<SampleParams>& params,
                          const Placement& placement = {0, 0}) {
  const auto count = static_cast<int64_t>(rows.size());
  GpuMatrix logits(DType::kF32, count, static_cast<int64_t>(rows[0].size()), placement.gap, placement.offset);
  logits.Upload([&](int64_t r, int64_t c) { return rows[r][c]; });
  GpuMatrix ids(DType::kF32, count, 1, placement.gap, placement.offset);
  const GpuArray<SampleParams> gpu_params(params);
  GpuMatrix values(DType::kF32, count, 1, placement.gap, placement.offset);
  EXPECT_EQ(LaunchSample(logits.matrix(), gpu_params.data(), {}, ids.matrix(), values.matrix(), nullptr), cudaSuccess);
  ids.Download();
  std::vector<int32_t> drawn;
  for (int64_t r = 0; r < count; ++r) drawn.push_back(static_cast<int32_t>(ids.bits(r, 0)));
  return drawn;
}

// Every combination of filters, each with several draws; the id must be the reference's unless a border is near.
void ExpectReference(const std::vector<Row>& distributions, const Placement& placement, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<Row> rows;
  std::vector<SampleParams> params;
  for (const Row& row : distributions) {
    for (int filters = 0; filters < 8; ++filters) {
      for (const double u : {filters % 3 == 0   ? 0.0
                             : filters % 3 == 1 ? 1 - 0x1p-53
                                                : uniform(random),
                             uniform(random)}) {
        rows.push_back(row);
        SampleParams own = {.temperature = static_cast<float>(0.2 + 2 * uniform(random)), .uniform = u};
        if (filters & 1) own.top_k = 1 + static_cast<int32_t>(random() % (2 * row.size()));
        if (filters & 2) own.top_p = static_cast<float>(0.05 + 0.9 * uniform(random));
        if (filters & 4) own.min_p = static_cast<float>(0.3 * uniform(random));
        params.push_back(own);
      }
    }
    rows.push_back(row);
    params.push_back({.temperature = 0, .top_k = 5, .uniform = 0.7});
  }
  const std::vector<int32_t> drawn = Draw(rows, params, placement);
  size_t close = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const ReferenceDraw want = ReferenceSample(rows[r], params[r]);
    close += want.close;
    EXPECT_TRUE(drawn[r] >= 0 && drawn[r] < static_cast<int64_t>(rows[r].size())) << drawn[r];
    if (want.close) continue;
    ASSERT_EQ(drawn[r], want.id) << "row " << r << ": temperature " << params[r].temperature << ", top_k "
                                 << params[r].top_k << ", top_p " << params[r].top_p << ", min_p " << params[r].min_p
                                 << ", uniform " << params[r].uniform;
  }
  EXPECT_LT(close, rows.size() * 3 / 4);  // the draws at the ends are always near one
}

Row RandomRow(int64_t cols, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Row row(cols);
  for (float& logit : row) logit = normal(random);
  return row;
}

TEST_F(SampleTest, MatchesASort) {
  for (const int cols : {1, 2, 33, 257, 1031, 5003}) {
    const Placement& placement = kPlacements[cols % 4];
    SCOPED_TRACE(testing::Message() << cols << " columns, offset " << placement.offset);
    ExpectReference({RandomRow(cols, 1, 3.0f), RandomRow(cols, 2, 0.01f)}, placement, static_cast<uint32_t>(cols));
    if (HasFatalFailure()) return;
  }
  ExpectReference({RandomRow(50021, 3, 4.0f)}, {0, 0}, 1);
}

TEST_F(SampleTest, TiesGoToTheSmallerId) {
  std::vector<Row> rows = {Row(3001, 1.5f), Row(3001, 0.0f), RandomRow(3001, 4, 2.0f)};
  for (size_t c = 0; c < 3001; c += 3) rows[1][c] = -0.0f;
  for (float& logit : rows[2]) logit = std::round(logit);
  ExpectReference(rows, {0, 0}, 2);
  EXPECT_EQ(Draw({rows[0]}, {{.temperature = 0}})[0], 0);
  EXPECT_EQ(Draw({rows[0]}, {{.temperature = 1, .top_k = 10, .uniform = 0.999}})[0], 9);
}

TEST_F(SampleTest, LogitsOfAnySize) {
  constexpr float kMost = std::numeric_limits<float>::max();
  Row wide = RandomRow(999, 5, 1.0f);
  wide[7] = -kMost;
  wide[8] = kMost;
  wide[900] = -kMost;
  ExpectReference({wide}, {0, 0}, 3);
  Row tiny = RandomRow(999, 6, 1e-39f);
  tiny[5] = 0.0f;
  ExpectReference({tiny}, {0, 0}, 4);
  Row outlier = RandomRow(999, 7, 1.0f);  // all others fall into one bin
  outlier[400] = -1e30f;
  ExpectReference({outlier}, {0, 0}, 5);
}

TEST_F(SampleTest, RowsThatAreNotFiniteAreMarked) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {0, 1, 600, 4999}) {
      Row row = RandomRow(5000, 8, 1.0f);
      const int32_t good = Draw({row}, {{.temperature = 1, .top_p = 0.9f, .uniform = 0.4}})[0];
      Row broken = row;
      broken[at] = bad;
      const SampleParams drawn = {.temperature = 1, .top_p = 0.9f, .uniform = 0.4};
      EXPECT_EQ(Draw({broken, row, broken}, {drawn, drawn, SampleParams{}}), (std::vector<int32_t>{-1, good, -1}));
    }
  }
}

// Every row of two with its own of the tables: a bias, a mask, an empty mask, and all together.
TEST_F(SampleTest, RowsNameTheirBiasAndTheirMask) {
  constexpr int64_t kCols = 1031;
  Row row = RandomRow(kCols, 9, 1.0f);
  row[1030] = 20.0f;
  std::vector<float> biases(2 * kCols);
  biases[kCols + 7] = 100.0f;
  std::vector<uint32_t> masks(3 * MaskWords(kCols));
  masks[MaskWords(kCols) + 3 / 32] |= 1u << 3;
  masks[2 * MaskWords(kCols) + 512 / 32] |= 1u << (512 % 32);
  masks[2 * MaskWords(kCols) + 1030 / 32] |= 1u << (1030 % 32);
  const std::vector<SampleParams> params = {{.temperature = 0},
                                            {.temperature = 0, .bias_row = 1},
                                            {.temperature = 1, .uniform = 0.9, .allowed_row = 1},
                                            {.temperature = 0, .bias_row = 1, .allowed_row = 2},
                                            {.temperature = 1, .uniform = 0.5, .allowed_row = 0},
                                            {.temperature = 0, .bias_row = 0, .allowed_row = 0}};
  const auto count = static_cast<int64_t>(params.size());
  GpuMatrix logits(DType::kF32, count, kCols), ids(DType::kF32, count, 1), values(DType::kF32, count, 1);
  logits.Upload([&](int64_t, int64_t c) { return row[c]; });
  const GpuArray<SampleParams> gpu_params(params);
  const GpuArray<float> gpu_biases(biases);
  const GpuArray<uint32_t> gpu_masks(masks);
  const CudaSampleTables tables = {
      .counts = {},
      .bias = {.data = gpu_biases.data(), .dtype = DType::kF32, .rows = 2, .cols = kCols, .stride = kCols},
      .allowed = {.data = gpu_masks.data(),
                  .dtype = DType::kF32,
                  .rows = 3,
                  .cols = MaskWords(kCols),
                  .stride = MaskWords(kCols)}};
  ASSERT_EQ(LaunchSample(logits.matrix(), gpu_params.data(), tables, ids.matrix(), values.matrix(), nullptr),
            cudaSuccess);
  ids.Download();
  std::vector<int32_t> drawn;
  for (int64_t r = 0; r < count; ++r) drawn.push_back(static_cast<int32_t>(ids.bits(r, 0)));
  EXPECT_EQ(drawn, (std::vector<int32_t>{1030, 7, 3, 1030, kNothingAllowed, kNothingAllowed}));
}

TEST_F(SampleTest, RefusesAVocabularyThatItsSumsCannotHold) {
  const CudaMatrix huge = {.data = nullptr, .dtype = DType::kF32, .rows = 1, .cols = kMostSampleVocab + 1};
  EXPECT_EQ(LaunchSample(huge, nullptr, {}, huge, huge, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace runahead
