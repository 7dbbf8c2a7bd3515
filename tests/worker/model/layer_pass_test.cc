#include "worker/model/layer_pass.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace runahead
