#include "kernels/base/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/base/checked.h"

namespace runahead {
namespace {

using checked::Bytes;
using checked::kDTypes;
using checked::kLimits;
using checked::Make;
using checked::Refused;

struct SomeWeights : Weights {
  SomeWeights(int64_t rows, int64_t cols) : Weights(rows, cols) {}
  ConstBufferRef HomeFrom(int64_t) const override { return {}; }
};

TEST(Checks, ATensorHasADtypeAShapeAStrideAndABuffer) {
  const Tensor good = Make(3, 5, DType::kBF16);
  EXPECT_TRUE(CheckTensor("x", good, kDTypes, 3, 5).ok());
  EXPECT_THAT(CheckTensor("x", good, {DType::kF32, DType::kF16}, 3, 5), Refused({"x is bf16", "f32 or f16"}));
  EXPECT_THAT(CheckTensor("x", good, kDTypes, 3, 4), Refused({"[3, 5]", "[3, 4]"}));
  Tensor bad = good;
  bad.stride = 4;
  EXPECT_THAT(CheckTensor("x", bad, kDTypes, 3, 5), Refused({"stride of 4"}));
  bad.stride = 6;
  EXPECT_THAT(CheckTensor("x", bad, kDTypes, 3, 5), Refused({"buffer of 30 bytes"}));
  bad = good;
  bad.ref.buffer = nullptr;
  EXPECT_THAT(CheckTensor("x", bad, kDTypes, 3, 5), Refused({"buffer"}));
  bad = good;
  bad.ref.offset = 2;  // the slice itself reaches beyond the buffer
  EXPECT_THAT(CheckTensor("x", bad, kDTypes, 3, 5), Refused({"buffer"}));
}

TEST(Checks, WeightSources) {
  const std::vector<std::byte> data(1024);
  const WeightSource good{nullptr, 64, {{WeightType::kQ4_1, data.data(), 2}}};
  EXPECT_TRUE(CheckWeightSource(good).ok());
  WeightSource bad = good;
  bad.cols = 63;
  EXPECT_THAT(CheckWeightSource(bad), Refused({"blocks of 32", "63"}));
  bad.runs[0].type = WeightType::kF16;
  EXPECT_TRUE(CheckWeightSource(bad).ok());
  bad.cols = 0;
  EXPECT_THAT(CheckWeightSource(bad), Refused({"0 columns"}));
  bad = good;
  bad.runs[0].data = nullptr;
  EXPECT_THAT(CheckWeightSource(bad), Refused({"run 0", "no data"}));
  bad.runs.clear();
  EXPECT_THAT(CheckWeightSource(bad), Refused({"without rows"}));
  for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0}, {2}, {1, 1}}) {
    bad = good;
    bad.cuts = cuts;
    EXPECT_THAT(CheckWeightSource(bad), Refused({"2 rows", "cut at"}));
  }
  bad.cuts = {1};
  EXPECT_TRUE(CheckWeightSource(bad).ok());
}

TEST(Checks, Copies) {
  EXPECT_TRUE(CheckCopy(Bytes(8), Bytes(8)).ok());
  EXPECT_THAT(CheckCopy(Bytes(8), Bytes(9)), Refused({"8 bytes to 9"}));
  BufferRef beyond = Bytes(8);
  beyond.offset = 1;
  EXPECT_THAT(CheckCopy(Bytes(8), beyond), Refused({"beyond its buffer"}));
}

TEST(Checks, NormsWantAWeightOfTheRowsWidth) {
  const Tensor x = Make(2, 6), w = Make(1, 6), out = Make(2, 6), half = Make(2, 6, DType::kF16);
  EXPECT_TRUE(CheckRmsNorm(kLimits, x, w, out).ok());
  EXPECT_THAT(CheckRmsNorm(kLimits, x, Make(1, 5), out), Refused({"weight", "[1, 6]"}));
  EXPECT_THAT(CheckRmsNorm(kLimits, x, w, half), Refused({"out is f16"}));
  EXPECT_TRUE(CheckLayerNorm(x, w, w, half).ok());
  EXPECT_THAT(CheckLayerNorm(x, w, Make(2, 6), out), Refused({"bias", "[1, 6]"}));
  EXPECT_THAT(CheckLayerNorm(half, w, w, out), Refused({"x is f16"}));
}

TEST(Checks, LinearAccumulatesInF32WithoutAnActivation) {
  const SomeWeights w(8, 4);
  const Tensor x = Make(2, 4), out = Make(2, 8), half = Make(2, 8, DType::kBF16), bias = Make(1, 8);
  EXPECT_TRUE(CheckLinear(kLimits, x, DType::kF32, w, {}, half).ok());
  EXPECT_TRUE(CheckLinear(kLimits, x, DType::kF32, w, {.bias = bias, .activation = Activation::kSilu}, half).ok());
  EXPECT_TRUE(CheckLinear(kLimits, x, DType::kF32, w, {.accumulate = true, .bias = bias}, out).ok());
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kBF16, w, {}, out), Refused({"x is f32"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {.bias = Make(1, 4)}, out), Refused({"bias", "[1, 8]"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {.accumulate = true}, half), Refused({"f32"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {.accumulate = true, .activation = Activation::kRelu}, out),
              Refused({"activation"}));
}

TEST(Checks, LinearOfSomeRowsStaysInsideTheWeights) {
  const SomeWeights w(8, 4);
  const Tensor x = Make(2, 4), some = Make(2, 3);
  EXPECT_TRUE(CheckLinear(kLimits, x, DType::kF32, w, {}, some).ok());
  EXPECT_TRUE(CheckLinear(kLimits, x, DType::kF32, w, {.first_row = 5, .bias = Make(1, 3)}, some).ok());
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {.first_row = 5, .bias = Make(1, 8)}, some),
              Refused({"bias", "[1, 3]"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {.first_row = 6}, some), Refused({"3 columns", "row 6 of 8"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {.first_row = -1}, some), Refused({"row -1"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {}, Make(2, 9)), Refused({"9 columns"}));
  EXPECT_THAT(CheckLinear(kLimits, x, DType::kF32, w, {}, Make(2, 0)), Refused({"0 columns"}));
}

TEST(Checks, RowIndicesAreNamed) {
  const Tensor x = Make(5, 3), out = Make(2, 3);
  EXPECT_TRUE(CheckGatherRows(x, {4, 4}, out).ok());
  EXPECT_THAT(CheckGatherRows(x, {0, 5}, out), Refused({"index 1", "row 5", "x"}));
  EXPECT_THAT(CheckGatherRows(x, {-1, 0}, out), Refused({"index 0", "row -1"}));
  EXPECT_THAT(CheckGatherRows(x, {0}, out), Refused({"out", "[1, 3]"}));
  EXPECT_THAT(CheckGatherRows(x, {0, 1}, Make(2, 3, DType::kF16)), Refused({"x is f32", "out is f16"}));
  EXPECT_TRUE(CheckExchangeRows(x, {{4, 0}, {0, 4}}, Make(5, 3)).ok());
  EXPECT_THAT(CheckExchangeRows(x, {{5, 0}}, Make(5, 3)), Refused({"index 0", "row 5", "x"}));
  EXPECT_TRUE(CheckExchangeRows(x, {{4, 1}}, out).ok());
  EXPECT_THAT(CheckExchangeRows(x, {{0, 2}}, out), Refused({"row 2", "out"}));
  EXPECT_THAT(CheckExchangeRows(x, {{0, 0}}, Make(5, 2)), Refused({"out", "[5, 3]"}));
}

TEST(Checks, QuantisedRowsAreWholeGroupsInEnoughBytes) {
  const Tensor rows = Make(3, 192, DType::kF16);
  const KvQuant four{.bits = 4, .group = 64};
  ASSERT_EQ(KvQuantRowBytes(192, four), 3u * (4 + 32));
  EXPECT_TRUE(CheckQuantizeKv(rows, four, Bytes(3 * 108)).ok());
  EXPECT_TRUE(CheckDequantizeKv(Bytes(3 * 108), four, rows).ok());
  EXPECT_THAT(CheckQuantizeKv(rows, four, Bytes(3 * 108 - 1)), Refused({"out", "323", "324"}));
  EXPECT_THAT(CheckDequantizeKv(Bytes(100), four, rows), Refused({"from", "100", "324"}));
  EXPECT_THAT(CheckQuantizeKv(rows, {.bits = 5}, Bytes(1000)), Refused({"4 or 8", "5"}));
  EXPECT_THAT(CheckQuantizeKv(rows, {.group = 48}, Bytes(1000)), Refused({"32, 64 or 128", "48"}));
  EXPECT_THAT(CheckQuantizeKv(rows, {.group = 128}, Bytes(1000)), Refused({"192", "128"}));
  EXPECT_THAT(CheckQuantizeKv(rows, four, Bytes(1000).Slice(2, 998)), Refused({"offset 2"}));
  // X.
  EXPECT_TRUE(CheckQuantizeKv(rows, {.bits = 16, .group = 32, .symmetric = true}, Bytes(3 * 6 * 68)).ok());
  EXPECT_THAT(CheckQuantizeKv(rows, {.bits = 4, .group = 32, .symmetric = true}, Bytes(9000)),
              Refused({"8 or 16", "4"}));
  EXPECT_THAT(CheckQuantizeKv(rows, {.bits = 8, .group = 64, .symmetric = true}, Bytes(9000)), Refused({"32", "64"}));
  EXPECT_THAT(CheckQuantizeKv(rows, {.bits = 16, .group = 32}, Bytes(9000)), Refused({"4 or 8", "16"}));
}

TEST(Checks, SamplingParametersHaveRanges) {
  const Tensor logits = Make(2, 9), counts = Make(3, 9), ids = Make(2, 1);
  const auto check = [&](const SampleParams& params) {
    return CheckSample(kLimits, logits, {{.counts_row = 1, .kept = 1, .known = 1}, params}, {counts}, ids, ids);
  };
  EXPECT_TRUE(check({.temperature = 1, .top_k = 3, .top_p = 0.5f, .min_p = 1, .uniform = 0.999}).ok());
  EXPECT_THAT(check({.temperature = -1}), Refused({"temperature of row 1", "-1"}));
  EXPECT_THAT(check({.temperature = std::numeric_limits<float>::infinity()}), Refused({"temperature"}));
  EXPECT_THAT(check({.top_k = -1}), Refused({"top_k of row 1"}));
  EXPECT_THAT(check({.top_p = 0}), Refused({"top_p"}));
  EXPECT_THAT(check({.min_p = std::nanf("")}), Refused({"min_p"}));
  EXPECT_THAT(check({.uniform = 1}), Refused({"uniform"}));
  EXPECT_THAT(check({.repetition_penalty = 0}), Refused({"repetition_penalty of row 1", "positive"}));
  EXPECT_THAT(check({.presence_penalty = std::nanf("")}), Refused({"penalty of row 1"}));
  EXPECT_TRUE(check({.counts_row = 2, .kept = 1, .known = 2, .tokens = {{8, 4}, {0, 0}}}).ok());
  EXPECT_TRUE(check({.counts_row = 1, .known = 1, .tokens = {{8, 4}}}).ok()) << "another row of the sequence";
  EXPECT_THAT(check({.counts_row = 3}), Refused({"row 1", "row 3 of 3"}));
  EXPECT_THAT(check({.counts_row = 1, .kept = 1, .known = 1}), Refused({"row 1", "as a row before it"}));
  EXPECT_THAT(check({.counts_row = 0, .known = 1, .tokens = {{9, 2}}}), Refused({"id 9 of 9"}));
  EXPECT_THAT(check({.counts_row = 0, .known = 1, .tokens = {{8, -1}}}), Refused({"id 8 -1 times"}));
  EXPECT_THAT(check({.counts_row = 0, .kept = 2, .known = 1}), Refused({"keeps 2 of 1"}));
  EXPECT_THAT(check({.counts_row = 0, .known = 17}), Refused({"of 17", "at most 16"}));
  const Tensor one = Make(1, 1);
  EXPECT_THAT(CheckSample(kLimits, logits, {SampleParams{}}, {}, ids, ids), Refused({"logits", "[1, 9]"}));
  EXPECT_THAT(CheckSample(kLimits, Make(1, 1001), {SampleParams{}}, {}, one, one), Refused({"1001", "1000"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {}}, {}, Make(2, 2), ids), Refused({"ids", "[2, 1]"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {}}, {}, ids, Make(2, 2)), Refused({"values", "[2, 1]"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {}}, {Make(2, 8)}, ids, ids), Refused({"counts", "[2, 9]"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {.counts_row = 0}}, {}, ids, ids), Refused({"row 0 of 0"}));
  const SampleTables tables = {.bias = Make(4, 9), .allowed = Make(2, 1)};
  EXPECT_TRUE(CheckSample(kLimits, logits, {{}, {.bias_row = 3, .allowed_row = 1}}, tables, ids, ids).ok());
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {.bias_row = 4}}, tables, ids, ids), Refused({"a bias", "row 4 of 4"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {.allowed_row = 2}}, tables, ids, ids),
              Refused({"a mask", "row 2 of 2"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {}}, {.bias = Make(2, 8)}, ids, ids), Refused({"bias", "[2, 9]"}));
  EXPECT_THAT(CheckSample(kLimits, logits, {{}, {}}, {.allowed = Make(2, 9)}, ids, ids),
              Refused({"allowed", "[2, 1]"}));
}

TEST(Checks, HeadsFillTheColumns) {
  const Tensor x = Make(3, 12), weight = Make(1, 4);
  EXPECT_TRUE(CheckHeadNorm(x, 4, weight).ok());
  EXPECT_TRUE(CheckHeadNorm(x.Cols(4, 8), 4, weight).ok());
  EXPECT_THAT(CheckHeadNorm(x, 5, Make(1, 5)), Refused({"12 columns", "heads of 5"}));
  EXPECT_THAT(CheckHeadNorm(x, 0, Make(1, 0)), Refused({"heads of 0"}));
  EXPECT_THAT(CheckHeadNorm(x, 4, Make(1, 12)), Refused({"weight", "[1, 4]"}));
  EXPECT_THAT(CheckHeadNorm(Make(3, 12, DType::kBF16), 4, weight), Refused({"x is bf16"}));
}

TEST(Checks, AGateIsAsWideAsWhatItGates) {
  EXPECT_TRUE(CheckGatedActivate(kLimits, Make(2, 6), Make(2, 3, DType::kBF16)).ok());
  EXPECT_THAT(CheckGatedActivate(kLimits, Make(2, 5), Make(2, 3)), Refused({"gate_up", "[2, 6]"}));
  EXPECT_THAT(CheckGatedActivate(kLimits, Make(2, 6), Make(1, 3)), Refused({"out is [1, 3]"}));
  EXPECT_THAT(CheckGatedActivate(kLimits, Make(2, 6, DType::kF16), Make(2, 3)), Refused({"gate_up is f16"}));
}

}  // namespace
}  // namespace runahead
