// The models, prompts and comparisons of KVPR's tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/exactness.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_device.h"
#include "tests/worker/decode/kvpr/kvpr_world.h"

namespace runahead {

struct Heads {
  const char* name;
  SyntheticFamily family;
  int64_t kv_heads;
  int64_t window = 0;
};
inline constexpr Heads kMha{"Mha", SyntheticFamily::kLlama, 6}, kGqa{"Gqa", SyntheticFamily::kLlama, 2},
    kMqa{"Mqa", SyntheticFamily::kLlama, 1}, kOpt{"Opt", SyntheticFamily::kOpt, 6};
// With windows where families have them.
inline constexpr Heads kOtherFamilies[] = {{"Qwen2", SyntheticFamily::kQwen2, 2},
                                           {"Qwen3", SyntheticFamily::kQwen3, 2},
                                           {"Phi3", SyntheticFamily::kPhi3, 6, 200},
                                           {"Gemma2", SyntheticFamily::kGemma2, 2, 200},
                                           {"Gemma3", SyntheticFamily::kGemma3, 1, 200},
                                           {"Falcon", SyntheticFamily::kFalcon, 1},
                                           {"Starcoder2", SyntheticFamily::kStarcoder2, 2, 200}};

inline LoadedModel LoadHeads(const Heads& heads, DType dtype = DType::kF32,
                             int64_t layers = TestDeviceIsSlow() ? 2 : 3) {
  SyntheticModel model = SmallModel(layers);
  model.kv_heads = heads.kv_heads;
  model.family = heads.family;
  model.window = heads.window;
  if (heads.family == SyntheticFamily::kOpt) model.context_length = 1500;
  return LoadForTest(WriteSynthetic(model, std::string("kvpr_") + heads.name), dtype, 2);
}

inline std::vector<int64_t> Prompts() {
  if (TestDeviceIsSlow()) return {1, 255, 300};
  return {1, 5, 255, 256, 300, 700, 1024, 64};
}
inline int64_t Steps() {
  return TestDeviceIsSlow() ? 3 : 8;
}

// What plain decode gives, where KV of all came.
inline std::vector<StepLogits> PlainSteps(const LoadedModel& loaded, const std::vector<int64_t>& prompts,
                                          int64_t steps) {
  KvprWorld plain(loaded, prompts, steps);
  plain.UseDecodeLoop();
  std::vector<StepLogits> logits;
  for (int64_t step = 0; step < steps; ++step) logits.push_back(plain.Step());
  return logits;
}

inline void ExpectSame(const StepLogits& actual, const StepLogits& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t row = 0; row < actual.size(); ++row) EXPECT_EQ(actual[row], expected[row]) << "row " << row;
}
inline void ExpectClose(const StepLogits& actual, const StepLogits& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t row = 0; row < actual.size(); ++row) {
    SCOPED_TRACE(row);
    ExpectLogits(actual[row], Doubles(expected[row]));
  }
}

// Device memory for staging and `blocks` blocks of KV.
inline int64_t BytesWithResident(const LoadedModel& loaded, int64_t blocks) {
  const ModelConfig& config = loaded.model->config();
  const int64_t kv = loaded.model->kv_row_bytes(), x = 4 * config.hidden;
  // Half of it is staging: two slots of a piece, which 2,048 tokens of both surely hold.
  return 2 * 2048 * (kv + x) + 2 * blocks * kKvBlockTokens * kv * config.layers;
}

// Device memory for windows of `blocks` blocks together, beside the least staging of steps of `rows` sequences.
inline KvprOptions WindowsOf(const LoadedModel& loaded, int64_t rows, int64_t blocks) {
  const ModelConfig& config = loaded.model->config();
  const int64_t kv = loaded.model->kv_row_bytes();
  const int64_t x = config.hidden * static_cast<int64_t>(DTypeSize(loaded.device->compute_dtype()));
  KvprOptions options;
  options.max_rows = rows;
  options.chunk_tokens = 256;
  options.slots = 2;
  options.device_bytes = (2 * 256 + 4 * rows) * (kv + x) + blocks * kKvBlockTokens * kv * config.layers;
  return options;
}

}  // namespace runahead
