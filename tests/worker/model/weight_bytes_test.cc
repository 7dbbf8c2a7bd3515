// What a model's weights take on the CPU's device, by its numerics and what they are loaded for.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr int64_t kVocab = 320, kHidden = 64, kFfn = 160;
constexpr size_t kTableElements = kVocab * kHidden;
// Of one layer, with half as many KV heads as heads: Q, K and V, output, gate and up, down.
constexpr size_t kLayerElements = kHidden * kHidden * 2 + kHidden * kHidden + kHidden * kFfn * 3;

// Two tables, as the head is not tied, and two layers.
WeightBytes BytesOf(const CpuDeviceOptions& device, WeightType type, unsigned uses) {
  SyntheticModel model;
  model.vocab = kVocab;
  model.hidden = kHidden;
  model.ffn = kFfn;
  model.tied = false;
  model.SetWeightType(type);
  const auto file = *OpenGguf(WriteSynthetic(model, "weight_bytes"));
  return (*LoadModel(file, *NewCpuDevice(device), uses, [](int, int) {}))->weight_bytes();
}

TEST(WeightBytes, OneFormServesAllUsesInEightBitsAndTakesWhatTheFileDoes) {
  const size_t in_file = (2 * kTableElements + 2 * kLayerElements) / 32 * 18;
  for (const unsigned uses : {unsigned{kUsePrefill}, unsigned{kUseDecode}, kUsePrefill | kUseDecode}) {
    const WeightBytes bytes = BytesOf({.int8 = true}, WeightType::kQ4_0, uses);
    EXPECT_EQ(bytes.int8, in_file);
    EXPECT_EQ(bytes.total(), bytes.int8);
  }
}

TEST(WeightBytes, PrefillAndDecodeHaveAFormEachInF32) {
  const WeightBytes prefill = BytesOf({}, WeightType::kF32, kUsePrefill);
  EXPECT_GE(prefill.packed, 2 * kLayerElements * sizeof(float));
  EXPECT_EQ(prefill.stored, 2 * kTableElements * sizeof(float));
  const WeightBytes both = BytesOf({}, WeightType::kF32, kUsePrefill | kUseDecode);
  EXPECT_EQ(both.packed, prefill.packed);
  EXPECT_EQ(both.stored, prefill.stored + 2 * kLayerElements * sizeof(float));
  EXPECT_EQ(both.int8, 0u);
}

TEST(WeightBytes, StreamedWeightsCountWhereTheyAreAtHome) {
  EXPECT_EQ(BytesOf({}, WeightType::kF32, kUseDecode | kUseStreamed).total(),
            BytesOf({}, WeightType::kF32, kUseDecode).total());
}

}  // namespace
}  // namespace runahead
