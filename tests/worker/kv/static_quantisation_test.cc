#include "worker/kv/static_quantisation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "worker/kv/static_window.h"

namespace runahead {
namespace {

constexpr int64_t kKvDim = 12;

std::vector<float> Normal(size_t count, float mean, float deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// A value as it comes back.
float Returned(const TensorQuantisation& by, float value) {
  uint8_t code = 0;
  QuantiseTensor(by, absl::MakeConstSpan(&value, 1), absl::MakeSpan(&code, 1));
  float back = 0;
  DequantiseTensor(by, absl::MakeConstSpan(&code, 1), absl::MakeSpan(&back, 1));
  return back;
}

TEST(FitTensor, WhatWasFittedComesBackWithinHalfAStep) {
  const std::vector<std::vector<float>> tensors = {Normal(5000, 0, 1, 1),
                                                   Normal(5000, 7, 2, 2),
                                                   Normal(5000, -300, 0.5f, 3),
                                                   Normal(77, 0, 1e-30f, 4),
                                                   Normal(77, 0, 1e30f, 5),
                                                   {3.25f},
                                                   {-1, 255},
                                                   {-0.5f, 254.5f},
                                                   {-1.5f, 253.5f},
                                                   {-4e-45f, 1e-44f}};
  for (const std::vector<float>& values : tensors) {
    const TensorQuantisation by = *FitTensor(values);
    std::vector<uint8_t> codes(values.size());
    EXPECT_EQ(QuantiseTensor(by, values, absl::MakeSpan(codes)), 0) << by.scale << " " << by.zero;
    std::vector<float> back(values.size());
    DequantiseTensor(by, codes, absl::MakeSpan(back));
    for (size_t i = 0; i < values.size(); ++i) {
      // Beside half a step: rounding of the scale over 255 of it, and of the product.
      ASSERT_LE(std::abs(static_cast<double>(back[i]) - values[i]), 0.5002 * by.scale) << values[i];
    }
  }
}

TEST(FitTensor, ZeroComesBackAsZero) {
  for (const float mean : {-40.0f, 0.0f, 3.0f}) {
    const TensorQuantisation by = *FitTensor(Normal(100, mean, 1, 9));
    EXPECT_EQ(Returned(by, 0), 0) << mean;
    EXPECT_GE(by.zero, 0);
    EXPECT_LE(by.zero, 255);
  }
  EXPECT_EQ(Returned(*FitTensor(std::vector<float>(5, 0.0f)), 0), 0);
}

TEST(FitTensor, RefusesWhatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(FitTensor({1.0f, bad}).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(QuantiseTensor, CountsWhatSaturates) {
  const TensorQuantisation by = *FitTensor({-100.0f, 155.0f});
  EXPECT_EQ(by.scale, 1);
  EXPECT_EQ(by.zero, 100);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-100.4f, -100.6f,   155.4f,   155.6f,        1e30f,
                                     -1e30f,  -infinity, infinity, std::nanf(""), 3.4f};
  std::vector<uint8_t> codes(values.size());
  EXPECT_EQ(QuantiseTensor(by, values, absl::MakeSpan(codes)), 7);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 0, 255, 255, 255, 0, 0, 255, 100, 103}));
}

TEST(StaticQuantisation, IsFixedByThePromptOnce) {
  StaticQuantisation quantisation(2, kKvDim);
  const std::vector<float> prompt = Normal(4 * 2 * kKvDim, 0, 1, 1);
  EXPECT_EQ(quantisation.Fix(0, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(quantisation.Fix(0, absl::MakeConstSpan(prompt).first(kKvDim)).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(quantisation.Fix(0, prompt).ok());
  EXPECT_EQ(quantisation.Fix(0, prompt).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(quantisation.Fix(1, prompt).ok());
}

TEST(StaticQuantisation, KeysAndValuesHaveTheirOwnRangeInEachLayer) {
  StaticQuantisation quantisation(2, kKvDim);
  std::vector<float> rows(2 * 2 * kKvDim);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = i / kKvDim % 2 == 0 ? -51.0f : 510.0f;  // K|V K|V
  ASSERT_TRUE(quantisation.Fix(0, rows).ok());
  for (float& value : rows) value *= 2;
  ASSERT_TRUE(quantisation.Fix(1, rows).ok());
  EXPECT_FLOAT_EQ(quantisation.keys(0).scale, 0.2f);
  EXPECT_EQ(quantisation.keys(0).zero, 255);
  EXPECT_EQ(quantisation.values(0).scale, 2);
  EXPECT_EQ(quantisation.values(0).zero, 0);
  EXPECT_FLOAT_EQ(quantisation.keys(1).scale, 0.4f);
  EXPECT_EQ(quantisation.values(1).scale, 4);
}

// Rows of codes in a static window, against each row quantised by itself at once: over four copies of the window no
// code of a row changes, and what lies beyond the prompt's range is counted once.
TEST(StaticQuantisation, NothingIsQuantisedAgain) {
  constexpr int64_t kContext = 8, kPrompt = 5, kSteps = 4 * (kContext - 1) + 3, kRow = 2 * kKvDim;
  const StaticWindowSize size = *MakeStaticWindowSize(kContext);
  std::vector<float> rows = Normal((kPrompt + kSteps) * kRow, 0, 1, 11);
  const auto row_of = [&rows](int64_t at) { return absl::MakeConstSpan(rows).subspan(at * kRow, kRow); };
  StaticQuantisation quantisation(1, kKvDim), reference(1, kKvDim);
  ASSERT_TRUE(quantisation.Fix(0, absl::MakeConstSpan(rows).first(kPrompt * kRow)).ok());
  ASSERT_TRUE(reference.Fix(0, absl::MakeConstSpan(rows).first(kPrompt * kRow)).ok());
  std::vector<uint8_t> buffer(static_cast<size_t>(size.reserve * kRow), 0);
  const auto slot = [&buffer](int64_t row, int64_t count = 1) {
    return absl::MakeSpan(buffer).subspan(row * kRow, count * kRow);
  };
  StaticWindow window(size, kPrompt);
  quantisation.Quantise(0, absl::MakeConstSpan(rows).first(kPrompt * kRow), slot(window.RowOf(0), kPrompt));
  EXPECT_EQ(quantisation.saturated(), 0);
  for (int64_t step = 0; step < kSteps; ++step) {
    const StaticWindow::Appended appended = window.Append();
    const auto from = slot(appended.move.from, appended.move.rows);
    std::copy(from.begin(), from.end(), slot(appended.move.to, appended.move.rows).begin());
    quantisation.Quantise(0, row_of(kPrompt + step), slot(appended.row));
  }
  int64_t outside = 0;
  for (int64_t at = kPrompt; at < kPrompt + kSteps; ++at) {
    for (int64_t i = 0; i < kRow; ++i) {
      const TensorQuantisation& by = i < kKvDim ? reference.keys(0) : reference.values(0);
      const double value = row_of(at)[i], half = 0.5 * by.scale;
      outside += value < -by.zero * by.scale - half || value > (255 - by.zero) * by.scale + half;
    }
  }
  EXPECT_GT(outside, 0);
  EXPECT_EQ(quantisation.saturated(), outside);
  std::vector<uint8_t> codes(kRow);
  for (int64_t at = window.first_attended(); at < window.length(); ++at) {
    reference.Quantise(0, row_of(at), absl::MakeSpan(codes));
    const auto held = slot(window.RowOf(at));
    EXPECT_TRUE(std::equal(held.begin(), held.end(), codes.begin())) << at;
    std::vector<float> back(kRow), expected(kRow);
    quantisation.Dequantise(0, held, absl::MakeSpan(back));
    reference.Dequantise(0, codes, absl::MakeSpan(expected));
    EXPECT_EQ(back, expected) << at;
  }
}

}  // namespace
}  // namespace runahead
