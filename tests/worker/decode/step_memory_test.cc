#include "worker/decode/step_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "worker/decode/decode_loop.h"
#include "worker/format/gguf.h"
#include "worker/model/token_sampler.h"

namespace runahead {
namespace {

constexpr int64_t kBatch = 16, kTokens = 2 * kKvBlockTokens;

// A model whose activations are not small beside what is rounded up.
SyntheticModel WideModel() {
  SyntheticModel model = SmallModel(1);
  model.vocab = 20'000;
  return model;
}

std::shared_ptr<const Model> LoadWithin(const std::string& path, size_t budget, std::shared_ptr<Device>& device) {
  device = *NewCpuDevice({.memory_budget = budget});
  auto model = LoadModel(*OpenGguf(path), device, kUsePrefill | kUseDecode, [](int, int) {});
  return model.ok() ? *std::move(model) : nullptr;
}

// The least budget that the weights fit.
size_t WeightBytes(const std::string& path) {
  size_t low = 0, high = size_t{1} << 30;
  while (low + 1 < high) {
    std::shared_ptr<Device> device;
    const size_t middle = std::midpoint(low, high);
    (LoadWithin(path, middle, device) == nullptr ? low : high) = middle;
  }
  return high;
}

// A step of the largest batch over full sequences, and its tokens drawn, on a device with so much memory.
absl::Status StepWithin(const std::string& path, size_t budget, int64_t pass_rows = 0) {
  std::shared_ptr<Device> device;
  const std::shared_ptr<const Model> model = LoadWithin(path, budget, device);
  const auto store = *KvStore::Create(
      {.layers = 1, .row_bytes = model->kv_row_bytes(), .capacity_tokens = kBatch * kTokens}, *device, RealClock());
  RUNAHEAD_ASSIGN_OR_RETURN(const auto sampler, TokenSampler::Create(*device, kBatch, model->config().vocab));
  const std::unique_ptr<Stream> stream = device->NewStream("test");
  DecodeLoop loop(*model, *device, *store, *stream);
  std::vector<KvStore::Sequence> sequences;
  for (int64_t i = 0; i < kBatch; ++i) {
    const LeaseId lease = *store->Reserve({.prompt_tokens = kTokens - 1, .total_tokens = kTokens});
    auto write = store->BeginWrite(lease, 0, 0, kTokens - 1);
    for (const BufferRef& to : write->destination()) std::memset(to.data(), 0, to.size);
    RUNAHEAD_RETURN_IF_ERROR(write->Commit().Wait());
    sequences.push_back(*store->Open(lease));
  }
  std::vector<DecodeRow> rows;
  for (const KvStore::Sequence& sequence : sequences) rows.push_back({&sequence, 7, kTokens - 1});
  RUNAHEAD_RETURN_IF_ERROR(loop.Step(rows).status());
  // Rows of one sequence, of output beside the others', and then of a prompt.
  rows.pop_back();
  for (int64_t i = 0; i < pass_rows; ++i) {
    rows.push_back({.sequence = &sequences.back(), .token = 7, .position = kTokens - pass_rows + i});
    rows.back().wants_logits = i + 1 == pass_rows;
  }
  DecodeLoop prompts(*model, *device, *store, *stream, RowKind::kPrompt);
  if (pass_rows > 0) {
    RUNAHEAD_RETURN_IF_ERROR(loop.Step(rows).status());
    RUNAHEAD_RETURN_IF_ERROR(prompts.Step(absl::MakeSpan(rows).last(pass_rows)).status());
  }
  return device->Record(*stream).Wait();
}

TEST(DecodeStepBytes, AreEnoughForAFullStepAndNotTwiceThat) {
  const std::string path = WriteSynthetic(WideModel(), "step_memory");
  std::shared_ptr<Device> device;
  const ModelConfig config = LoadWithin(path, 0, device)->config();
  const size_t weights = WeightBytes(path), said = DecodeStepBytes(config, kBatch, {}, kBatch * kTokens);
  EXPECT_TRUE(StepWithin(path, weights + said).ok());
  constexpr size_t kRoundedUp = 4 << 20;
  EXPECT_EQ(StepWithin(path, weights + (said - kRoundedUp) / 2).code(), absl::StatusCode::kResourceExhausted);
}

TEST(DecodeStepBytes, AreEnoughForRowsOfPromptsBesides) {
  const std::string path = WriteSynthetic(WideModel(), "step_memory_rows");
  std::shared_ptr<Device> device;
  const ModelConfig config = LoadWithin(path, 0, device)->config();
  const size_t weights = WeightBytes(path);
  const auto said = [&](int64_t rows) {
    return weights + DecodeStepBytes(config, kBatch, {rows, rows}, kBatch * kTokens);
  };
  constexpr int64_t kRows = 400;
  EXPECT_EQ(StepWithin(path, said(kRows), kRows), absl::OkStatus());
  EXPECT_GT(said(kRows), said(0));
}

}  // namespace
}  // namespace runahead
