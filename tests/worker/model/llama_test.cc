#include "worker/model/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/testing/model_fixture.h"
#include "tests/testing/reference_llama.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

// Logits agree within 1e-4 of the row's largest magnitude.
template <typename Expected>
void ExpectRowNear(const std::vector<float>& actual, const std::vector<Expected>& expected, double share = 1e-4) {
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (Expected value : expected) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], share * largest) << "column " << i;
}

struct Case {
  const char* name;
  SyntheticModel model;
};

SyntheticModel Make(int64_t heads, int64_t kv_heads, int64_t head_dim, WeightType type, bool tied) {
  SyntheticModel model;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.head_dim = head_dim;
  model.layers = 3;
  model.tied = tied;
  model.SetWeightType(type);
  return model;
}

class LlamaTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
};

TEST_P(LlamaTest, PrefillMatchesTheScalarReference) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(GetParam().model, GetParam().name), DType::kF32, 2);
  const std::vector<int32_t> ids = RandomIds(37, loaded.model->config().vocab, 5);
  const ReferenceOutput reference = RunReferenceLlama(*loaded.file, ids);
  SequenceRunner runner(loaded, 64);
  const auto logits = runner.Append(ids, /*batch_invariant=*/false, /*all_logits=*/true);
  for (size_t t = 0; t < ids.size(); ++t) ExpectRowNear(logits[t], reference.logits[t]);
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    ExpectRowNear(runner.Kv(layer), reference.kv[layer]);
  }
}

TEST_P(LlamaTest, DecodeStepsMatchTheScalarReference) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(GetParam().model, GetParam().name), DType::kF32, 2);
  const std::vector<int32_t> ids = RandomIds(21, loaded.model->config().vocab, 6);
  const ReferenceOutput reference = RunReferenceLlama(*loaded.file, ids);
  SequenceRunner runner(loaded, 64);
  runner.Append({ids.begin(), ids.begin() + 9}, false, false);
  for (size_t t = 9; t < ids.size(); ++t) {
    ExpectRowNear(runner.Append({ids[t]}, /*batch_invariant=*/true, true)[0], reference.logits[t]);
  }
}

TEST_P(LlamaTest, LastRowAloneMatchesThePassOverAllRows) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(GetParam().model, GetParam().name), DType::kF32, 2);
  // More than two chunks of rows where the context has room for them, and a chunk that is not full.
  const ModelConfig& config = loaded.model->config();
  const int64_t chunks = std::min(2 * loaded.device->gemm_rows() + 76, config.context_length);
  const int64_t rows = TestDeviceIsSlow() ? 50 : chunks;
  const std::vector<int32_t> ids = RandomIds(rows, config.vocab, 7);
  SequenceRunner all(loaded, rows), last(loaded, rows);
  const auto expected = all.Append(ids, false, true);
  const auto actual = last.Append(ids, false, false);
  ASSERT_EQ(actual.size(), 1u);
  ExpectRowNear(actual[0], expected.back());
}

TEST_P(LlamaTest, Bf16StaysNearF32) {
  const LoadedModel f32 = LoadForTest(WriteSynthetic(GetParam().model, GetParam().name), DType::kF32, 2);
  RUNAHEAD_NEED_TEST_DEVICE(DType::kBF16);
  const LoadedModel bf16 = LoadForTest(WriteSynthetic(GetParam().model, GetParam().name), DType::kBF16, 2);
  const int64_t rows = TestDeviceIsSlow() ? 40 : 150;
  const std::vector<int32_t> ids = RandomIds(rows, f32.model->config().vocab, 8);
  SequenceRunner a(f32, rows), b(bf16, rows);
  const auto expected = a.Append(ids, false, true);
  const auto actual = b.Append(ids, false, true);
  int differ = 0;
  for (size_t t = 0; t < ids.size(); ++t) {
    const Top reference = TopOf(expected[t]);
    const bool same = TopOf(actual[t]).id == reference.id;
    EXPECT_TRUE(same || reference.margin < 0.5f) << "row " << t;
    differ += same ? 0 : 1;
    ExpectRowNear(actual[t], expected[t], 0.1);
  }
  EXPECT_LE(differ, rows / 10);  // random weights have small margins
}

INSTANTIATE_TEST_SUITE_P(Shapes, LlamaTest,
                         testing::Values(Case{"mha", Make(4, 4, 16, WeightType::kF32, true)},
                                         Case{"gqa", Make(6, 2, 32, WeightType::kQ4_1, false)},
                                         Case{"mqa", Make(4, 1, 24, WeightType::kQ8_0, true)},
                                         Case{"f16", Make(4, 2, 16, WeightType::kF16, false)}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(LlamaForward, RefusesRowsOutsideVocabularyAndContext) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const LoadedModel loaded = LoadForTest(WriteSynthetic({}, "bounds"), DType::kF32, 1);
  const std::unique_ptr<Stream> stream = loaded.device->NewStream("test");
  ForwardScratch scratch(*loaded.device);
  DensePort port(*loaded.device, loaded.model->attention_shape(), loaded.model->config().layers, 4);
  port.Next(1);
  const int32_t vocab = static_cast<int32_t>(loaded.model->config().vocab);
  const int32_t context = static_cast<int32_t>(loaded.model->config().context_length);
  for (const auto& [id, position] :
       std::vector<std::pair<int32_t, int32_t>>{{vocab, 0}, {-1, 0}, {0, context}, {0, -1}}) {
    const auto result = loaded.model->Forward(*stream, scratch, {{id}, {position}, {0}, false}, port);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kOutOfRange) << id << " at " << position;
  }
}

}  // namespace
}  // namespace runahead
