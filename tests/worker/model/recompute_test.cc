// K and V made again from X are those that Project made, in every family.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/dense_kv.h"
#include "tests/testing/exactness.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"

namespace runahead {
namespace {

struct BothKv {
  std::vector<float> projected, recomputed;
};

// Of `layer` for prompt tokens at positions [0, tokens).
BothKv ProjectAndRecompute(const LoadedModel& loaded, int64_t layer, int64_t tokens, bool batch_invariant) {
  const Model& model = *loaded.model;
  Device& device = *loaded.device;
  DeviceMemory memory(loaded.device);
  ForwardScratch scratch(device);
  const auto table = device.MakeKvTable(memory.stream(), KvLayout::OnePage(tokens, tokens));
  RUNAHEAD_CHECK(table.ok());
  const SectionRows rows{memory.stream(), scratch, **table, 0, tokens, batch_invariant};
  const DType act = batch_invariant ? device.invariant_dtype() : device.compute_dtype();
  const Tensor x = memory.Empty(tokens, model.config().hidden),
               q = memory.Empty(tokens, model.config().heads * model.config().head_dim, act),
               normed = memory.Empty(tokens, model.config().hidden, act);
  const int64_t width = 2 * model.config().kv_dim();
  const Tensor projected = memory.Empty(tokens, width, model.kv_dtype()),
               recomputed = memory.Empty(tokens, width, model.kv_dtype());
  EXPECT_TRUE(model.Embed(rows, RandomIds(tokens, 320, 5), x).ok());
  EXPECT_TRUE(model.Project(rows, layer, x, {q, projected.ref, normed}).ok());
  EXPECT_TRUE(model.Recompute(rows, layer, normed, recomputed.ref).ok());
  memory.Finish();
  return {memory.Read(projected), memory.Read(recomputed)};
}

class RecomputeTest : public ::testing::TestWithParam<SyntheticFamily> {
 protected:
  void SetUp() override { RUNAHEAD_NEED_TEST_DEVICE(DType::kF32); }
  LoadedModel Load() const {
    SyntheticModel model = SmallModel();
    model.family = GetParam();
    if (model.family == SyntheticFamily::kOpt) {
      model.kv_heads = model.heads;
      model.context_length = 400;
    }
    return LoadForTest(WriteSynthetic(model, "recompute"), DType::kF32, 2);
  }
};

TEST_P(RecomputeTest, GivesWhatProjectGave) {
  const LoadedModel loaded = Load();
  for (const int64_t tokens : {1, 7, 300}) {
    const BothKv kv = ProjectAndRecompute(loaded, 1, tokens, false);
    ExpectRows(kv.recomputed, Doubles(kv.projected), loaded.model->config().kv_dim());
  }
}

TEST_P(RecomputeTest, GivesItBitwiseWhereRowsDoNotDependOnEachOther) {
  const LoadedModel loaded = Load();
  for (const int64_t tokens : {1, 7, 40}) {
    const BothKv kv = ProjectAndRecompute(loaded, 2, tokens, true);
    EXPECT_EQ(kv.recomputed, kv.projected);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RecomputeTest, ::testing::ValuesIn(kSyntheticFamilies),
                         [](const auto& info) { return std::string(ArchitectureOf(info.param)); });

}  // namespace
}  // namespace runahead
