#include "worker/model/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/exactness.h"
#include "tests/testing/expected_run.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

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
  const ExpectedRun reference = ReferenceRun(loaded, ids);
  SequenceRunner runner(loaded, 64);
  const auto logits = runner.Append(ids, /*batch_invariant=*/false, /*all_logits=*/true);
  for (size_t t = 0; t < ids.size(); ++t) ExpectLogits(logits[t], reference.logits[t]);
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    ExpectRows(runner.Kv(layer), reference.kv[layer], reference.kv_dim);
  }
}

TEST_P(LlamaTest, DecodeStepsMatchTheScalarReference) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(GetParam().model, GetParam().name), DType::kF32, 2);
  const std::vector<int32_t> ids = RandomIds(21, loaded.model->config().vocab, 6);
  const ExpectedRun reference = ReferenceRun(loaded, ids);
  SequenceRunner runner(loaded, 64);
  runner.Append({ids.begin(), ids.begin() + 9}, false, false);
  for (size_t t = 9; t < ids.size(); ++t) {
    ExpectLogits(runner.Append({ids[t]}, /*batch_invariant=*/true, true)[0], reference.logits[t]);
  }
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    ExpectRows(runner.Kv(layer), reference.kv[layer], reference.kv_dim);
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
  ExpectLogits(actual[0], Doubles(expected.back()));
}

std::vector<Case> AllShapes() {
  return {Case{"mha", Make(4, 4, 16, WeightType::kF32, true)}, Case{"gqa", Make(6, 2, 32, WeightType::kQ4_1, false)},
          Case{"mqa", Make(4, 1, 24, WeightType::kQ8_0, true)}, Case{"f16", Make(4, 2, 16, WeightType::kF16, false)}};
}
INSTANTIATE_TEST_SUITE_P(Shapes, LlamaTest, testing::ValuesIn(AllShapes()),
                         [](const auto& info) { return std::string(info.param.name); });

// Every position of a prompt is a step on the reference's tokens. On random weights margins are small (a quarter in the
// middle, 3 at the most), and one step in seventy differs: it takes many to tell that from 3%. A slow device has too
// few of each shape, and is asked about all together.
TEST(LlamaForward, Bf16StaysNearF32) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  RUNAHEAD_NEED_TEST_DEVICE(DType::kBF16);
  const int64_t rows = TestDeviceIsSlow() ? 134 : 1000;
  TokenRule all(DType::kBF16);
  for (const Case& shape : AllShapes()) {
    SCOPED_TRACE(shape.name);
    const std::string path = WriteSynthetic(shape.model, shape.name);
    const LoadedModel f32 = LoadForTest(path, DType::kF32, 2), bf16 = LoadForTest(path, DType::kBF16, 2);
    const std::vector<int32_t> ids = RandomIds(rows, f32.model->config().vocab, 8);
    SequenceRunner a(f32, rows), b(bf16, rows);
    const auto expected = a.Append(ids, false, true);
    const auto actual = b.Append(ids, false, true);
    TokenRule rule(DType::kBF16);
    for (size_t t = 0; t < ids.size(); ++t) {
      for (TokenRule* each : {&rule, &all}) each->Add(TopOf(actual[t]).id, TopOf(expected[t]));
    }
    if (!TestDeviceIsSlow()) rule.ExpectKept();
  }
  all.ExpectKept();
  RecordProperty("different", all.different());
}

TEST(LlamaForward, RefusesRowsOutsideVocabularyAndContext) {
  RUNAHEAD_NEED_TEST_DEVICE(DType::kF32);
  const LoadedModel loaded = LoadForTest(WriteSynthetic({}, "bounds"), DType::kF32, 1);
  const std::unique_ptr<Stream> stream = loaded.device->NewStream("test");
  OwnedPassMemory memory(*loaded.device);
  const int32_t vocab = static_cast<int32_t>(loaded.model->config().vocab);
  const int32_t context = static_cast<int32_t>(loaded.model->config().context_length);
  const auto refused = [&](int32_t id, int64_t length) {
    LayerPass pass(*loaded.model, *loaded.device, *stream, memory.memory(),
                   {{id}, KvLayout::OnePage(1, length), {0}, false});
    EXPECT_EQ(pass.Begin().code(), absl::StatusCode::kOutOfRange) << id << " at " << length - 1;
  };
  refused(vocab, 1);
  refused(-1, 1);
  refused(0, context + 1);
}

}  // namespace
}  // namespace runahead
