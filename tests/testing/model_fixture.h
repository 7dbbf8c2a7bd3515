// Runs a model on a device of the test's form (test_device.h) without any service: prefill and step-by-step decode of
// one sequence.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/base/device.h"
#include "tests/testing/dense_kv.h"
#include "tests/testing/device_tensor.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/model/grammar_source.h"
#include "worker/model/model.h"

namespace runahead {

// A model on a device of its own. Dies with a message when it cannot be loaded.
struct LoadedModel {
  std::shared_ptr<const ModelFile> file;
  std::shared_ptr<Device> device;
  std::shared_ptr<const Model> model;
  std::shared_ptr<GrammarSource> grammars = nullptr;  // for stages; null: their jobs ask for no form
};
LoadedModel LoadForTest(const std::string& path, DType dtype, int threads);

// Writes a synthetic checkpoint into the test's temporary directory and returns its path.
std::string WriteSynthetic(const SyntheticModel& options, const std::string& name);

// `count` seeded ids of a vocabulary of `vocab`.
std::vector<int32_t> RandomIds(int64_t count, int64_t vocab, uint64_t seed);

// One sequence. Each call returns the logits of the wanted rows, [rows][vocab].
class SequenceRunner {
 public:
  SequenceRunner(const LoadedModel& loaded, int64_t capacity);
  // Appends `ids` in one pass; logits of every row, or of the last one only.
  std::vector<std::vector<float>> Append(const std::vector<int32_t>& ids, bool batch_invariant, bool all_logits);
  // KV rows of a layer as f32: [tokens * 2 * kv_dim].
  std::vector<float> Kv(int64_t layer);
  // Puts others, as many, in their place.
  void SetKv(int64_t layer, const std::vector<float>& rows);

 private:
  const LoadedModel& loaded_;
  DeviceMemory memory_;
  OwnedPassMemory pass_memory_;
  DenseKv kv_;
};

}  // namespace runahead
