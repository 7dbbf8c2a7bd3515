// What a model's file or folder says, and what Runahead would make of it, before anything is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"
#include "worker/model/model.h"

namespace runahead {

struct Inspection {
  // Tensors of one type.
  struct Stored {
    std::string type;
    int64_t tensors = 0;
    size_t bytes = 0;
  };
  struct Words {
    std::string kind;  // how the words of a text become tokens
    int64_t tokens = 0;
    std::string bos, eos;  // their texts; empty: none
    bool adds_bos = false;
  };

  std::string path;
  bool is_folder = false;            // else a GGUF file
  int files = 1;                     // that a GGUF model is in
  std::vector<std::string> remarks;  // ModelFile::remarks
  std::string architecture;          // as the file calls it; empty where it does not
  std::vector<Stored> stored;
  bool tied = true;         // the head is the embedding
  bool quantised = false;   // most of its elements are
  absl::Status takes_int8;  // why not, where it runs
  std::optional<ModelConfig> config;
  std::optional<LoadPlan> plan;
  std::optional<Words> words;
  absl::Status chat_template;          // why there are no chats
  std::vector<absl::Status> refusals;  // why it does not run, by part: the config or its tensors, the tokenizer
  absl::Status on_cpus;                // why not on CPUs, where it runs on GPUs only

  bool runs() const { return refusals.empty(); }
};

// Errors: those of OpenModelFile; what else is wrong with the model is in the inspection.
absl::StatusOr<Inspection> InspectModel(const std::string& path);

// What a worker takes about, where it computes in one way. Without activations and buffers: 50 to 150 MiB.
struct MemoryNeed {
  std::string dtype;  // as `--dtype` of workers has it
  bool on_gpu = false;
  DType kv_dtype = DType::kF32;  // what it is kept in unless kv_dtype says otherwise
  // Of a worker that only prefills, only decodes, or does both.
  size_t prefill_weights = 0, decode_weights = 0, both_weights = 0;
  size_t kv_per_token = 0;
  size_t prefill_kv = 0;  // of one prompt of `context` tokens
  size_t decode_kv = 0;   // of `batch` sequences of `context` tokens
};

// Of each way that there is for the model. `inspection` has a config and a plan.
std::vector<MemoryNeed> MemoryNeeds(const Inspection& inspection, int64_t context, int64_t batch);

}  // namespace runahead
