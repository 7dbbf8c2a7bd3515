#include "tests/testing/model_fixture.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "tests/testing/device_tensor.h"
#include "tests/testing/test_device.h"
#include "worker/format/open_model.h"

namespace runahead {

LoadedModel LoadForTest(const std::string& path, DType dtype, int threads) {
  LoadedModel loaded;
  auto file = OpenModelFile(path);
  if (!file.ok()) ADD_FAILURE() << file.status();
  RUNAHEAD_CHECK(file.ok());
  loaded.file = *file;
  auto device = OpenTestDevice(dtype, threads);
  if (!device.ok()) ADD_FAILURE() << device.status();
  RUNAHEAD_CHECK(device.ok());
  loaded.device = *device;
  auto model = LoadModel(loaded.file, loaded.device, kUsePrefill | kUseDecode, [](int, int) {});
  if (!model.ok()) ADD_FAILURE() << model.status();
  RUNAHEAD_CHECK(model.ok());
  loaded.model = *model;
  return loaded;
}

std::string WriteSynthetic(const SyntheticModel& options, const std::string& name) {
  const std::string path = testing::TempDir() + name + ".gguf";
  const absl::Status written = WriteSyntheticGguf(options, path);
  if (!written.ok()) ADD_FAILURE() << written;
  return path;
}

std::vector<int32_t> RandomIds(int64_t count, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  return ids;
}

SequenceRunner::SequenceRunner(const LoadedModel& loaded, int64_t capacity)
    : loaded_(loaded),
      memory_(loaded.device),
      pass_memory_(*loaded.device),
      kv_(*loaded.device, *loaded.model, capacity) {}

std::vector<std::vector<float>> SequenceRunner::Append(const std::vector<int32_t>& ids, bool batch_invariant,
                                                       bool all_logits) {
  ForwardBatch batch;
  batch.ids = ids;
  batch.batch_invariant = batch_invariant;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (all_logits || i + 1 == ids.size()) batch.logit_rows.push_back(static_cast<int64_t>(i));
  }
  kv_.Next(static_cast<int64_t>(ids.size()));
  auto logits = EnqueuePass(*loaded_.model, *loaded_.device, memory_.stream(), pass_memory_, batch, kv_);
  if (!logits.ok()) ADD_FAILURE() << logits.status();
  RUNAHEAD_CHECK(logits.ok());
  kv_.Append();
  const std::vector<float> values = memory_.Read(*logits);
  std::vector<std::vector<float>> rows;
  for (int64_t row = 0; row < logits->rows; ++row) {
    rows.emplace_back(values.begin() + row * logits->cols, values.begin() + (row + 1) * logits->cols);
  }
  return rows;
}

std::vector<float> SequenceRunner::Kv(int64_t layer) {
  const AttentionShape& shape = loaded_.model->attention(0);
  return memory_.Read(MakeTensor(kv_.layer(layer), shape.kv_dtype, kv_.length(), 2 * shape.kv_heads * shape.head_dim));
}

void SequenceRunner::SetKv(int64_t layer, const std::vector<float>& rows) {
  const Tensor from = memory_.NewTensor(rows, kv_.length(), loaded_.model->attention(0).kv_dtype);
  RUNAHEAD_CHECK(memory_.device().Copy(memory_.stream(), from.ref, kv_.layer(layer).Slice(0, from.ref.size)).ok());
  memory_.Finish();
}

}  // namespace runahead
