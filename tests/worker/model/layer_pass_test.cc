#include "worker/model/layer_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/testing/exactness.h"
#include "tests/testing/expected_run.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

class LayerPassTest : public ::testing::Test {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }

  static ForwardBatch Batch(const std::vector<int32_t>& ids, std::vector<int64_t> wanted) {
    ForwardBatch batch;
    batch.ids = ids;
    batch.kv = KvLayout::OnePage(static_cast<int64_t>(ids.size()), static_cast<int64_t>(ids.size()));
    batch.logit_rows = std::move(wanted);
    return batch;
  }
};

TEST_F(LayerPassTest, PassesThatAreHalfDoneOnOneStreamKeepOutOfEachOthersWay) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(), "layer_pass"), DType::kF32, 2);
  const std::vector<int32_t> ids[] = {RandomIds(50, 320, 1), RandomIds(7, 320, 2)};
  DeviceMemory memory(loaded.device);
  ForwardScratch shared(*loaded.device), own[] = {ForwardScratch(*loaded.device), ForwardScratch(*loaded.device)};
  std::vector<LayerPass> passes;
  std::vector<DenseKv> kv;
  for (int i : {0, 1}) {
    const auto rows = static_cast<int64_t>(ids[i].size());
    passes.emplace_back(*loaded.model, *loaded.device, memory.stream(), PassMemory{own[i], shared},
                        Batch(ids[i], {rows - 1}));
    kv.emplace_back(*loaded.device, *loaded.model, rows).Next(rows);
    ASSERT_TRUE(passes[i].Begin().ok());
  }
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    for (int i : {0, 1}) ASSERT_TRUE(passes[i].Project(layer, kv[i].layer(layer)).ok());
    for (int i : {1, 0}) ASSERT_TRUE(passes[i].Attend(layer, kv[i].layer(layer)).ok());
  }
  const Tensor logits[] = {*passes[0].Logits(), *passes[1].Logits()};
  for (int i : {0, 1}) ExpectLogits(memory.Read(logits[i]), ReferenceRun(loaded, ids[i]).logits.back());
}

TEST_F(LayerPassTest, GivesTheLogitsOfTheWantedRowsInTheirOrder) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(), "layer_pass"), DType::kF32, 2);
  const std::vector<int32_t> ids = RandomIds(40, 320, 3);
  const ExpectedRun expected = ReferenceRun(loaded, ids);
  DeviceMemory memory(loaded.device);
  for (const std::vector<int64_t>& wanted : std::vector<std::vector<int64_t>>{{}, {0}, {3, 17, 39}}) {
    OwnedPassMemory pass_memory(*loaded.device);
    DenseKv kv(*loaded.device, *loaded.model, 40);
    kv.Next(40);
    const auto logits =
        EnqueuePass(*loaded.model, *loaded.device, memory.stream(), pass_memory, Batch(ids, wanted), kv);
    ASSERT_TRUE(logits.ok());
    ASSERT_EQ(logits->rows, static_cast<int64_t>(wanted.size()));
    memory.Finish();
    for (int64_t i = 0; i < logits->rows; ++i)
      ExpectLogits(memory.Read(logits->Rows(i, 1)), expected.logits[wanted[i]]);
  }
}

TEST_F(LayerPassTest, GivesLogitsOfAllRowsOfAPromptSomeAtATime) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(), "layer_pass"), DType::kF32, 2);
  const std::vector<int32_t> ids = RandomIds(40, 320, 6);
  const ExpectedRun expected = ReferenceRun(loaded, ids);
  std::vector<int64_t> all(40);
  std::iota(all.begin(), all.end(), 0);
  ForwardBatch batch = Batch(ids, all);
  batch.kv.of_prompts = true;
  batch.scored_rows = 39;
  DeviceMemory memory(loaded.device);
  ForwardScratch own(*loaded.device), shared(*loaded.device);
  const DenseKv kv(*loaded.device, *loaded.model, 40);
  LayerPass pass(*loaded.model, *loaded.device, memory.stream(), {own, shared}, std::move(batch));
  ASSERT_EQ(pass.Begin(), absl::OkStatus());
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    ASSERT_EQ(pass.Project(layer, kv.layer(layer)), absl::OkStatus());
    ASSERT_EQ(pass.Attend(layer, kv.layer(layer)), absl::OkStatus());
  }
  const auto last = pass.Logits();
  ASSERT_TRUE(last.ok()) << last.status();
  ASSERT_EQ(last->rows, 1);
  ExpectLogits(memory.Read(*last), expected.logits[39]);
  for (int64_t first = 0; first < 40; first += 16) {
    const auto logits = pass.LogitsOf(first, std::min<int64_t>(16, 40 - first));
    ASSERT_TRUE(logits.ok()) << logits.status();
    for (int64_t i = 0; i < logits->rows; ++i) {
      ExpectLogits(memory.Read(logits->Rows(i, 1)), expected.logits[first + i]);
    }
  }
}

// Of prompts whose KV lies in pages, in no order.
TEST_F(LayerPassTest, GivesTheLogitsOfTheWantedRowsOfSeveralPrompts) {
  const LoadedModel loaded = LoadForTest(WriteSynthetic(SmallModel(), "layer_pass"), DType::kF32, 2);
  const std::vector<int32_t> first = RandomIds(20, 320, 4), second = RandomIds(33, 320, 5);
  std::vector<int32_t> all = first;
  all.insert(all.end(), second.begin(), second.end());
  ForwardBatch batch = Batch(all, {19, 37, 52});
  batch.kv = {.page_tokens = 16,
              .pages = {4, 1, 0, 3, 2},
              .sequences = {{.queries = 20, .length = 20, .first_page = 0, .end = 20},
                            {.queries = 33, .length = 33, .first_page = 2, .end = 33}}};
  DeviceMemory memory(loaded.device);
  ForwardScratch own(*loaded.device), shared(*loaded.device);
  const DenseKv kv(*loaded.device, *loaded.model, 5 * 16);
  LayerPass pass(*loaded.model, *loaded.device, memory.stream(), {own, shared}, std::move(batch));
  ASSERT_EQ(pass.Begin(), absl::OkStatus());
  for (int64_t layer = 0; layer < loaded.model->config().layers; ++layer) {
    ASSERT_EQ(pass.Project(layer, kv.layer(layer)), absl::OkStatus());
    ASSERT_EQ(pass.Attend(layer, kv.layer(layer)), absl::OkStatus());
  }
  const auto logits = pass.Logits();
  ASSERT_TRUE(logits.ok()) << logits.status();
  const ExpectedRun runs[] = {ReferenceRun(loaded, first), ReferenceRun(loaded, second)};
  ExpectLogits(memory.Read(logits->Rows(0, 1)), runs[0].logits[19]);
  ExpectLogits(memory.Read(logits->Rows(1, 1)), runs[1].logits[17]);
  ExpectLogits(memory.Read(logits->Rows(2, 1)), runs[1].logits[32]);
}

}  // namespace
}  // namespace runahead
