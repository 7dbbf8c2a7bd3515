// A model on a device: configuration, weights, and the forward pass of its family.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "worker/format/gguf.h"
#include "worker/model/kv_port.h"

namespace runahead {

struct ModelConfig {
  std::string name;
  std::string fingerprint;  // of the file, hexadecimal
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t context_length = 0;
  float norm_eps = 0;
  float rope_base = 0;
  int64_t kv_dim() const { return kv_heads * head_dim; }
};

// One forward pass over `ids.size()` rows: a part of one prompt, or one row for each sequence of a decode step.
struct ForwardBatch {
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;   // absolute, one a row
  std::vector<int64_t> logit_rows;  // rising; rows whose logits are wanted. Empty: only KV is wanted
  bool batch_invariant = false;     // decode: a row's result does not depend on the others
};

// Activation memory of passes that run one at a time; grown as needed, kept between passes.
class ForwardScratch {
 public:
  explicit ForwardScratch(Device& device) : device_(device) {}
  // A tensor over the slot's buffer, which grows to fit. The old contents are gone.
  absl::StatusOr<Tensor> Get(int slot, DType dtype, int64_t rows, int64_t cols);
  Device& device() const { return device_; }

 private:
  Device& device_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

// Immutable after Load; thread-safe.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // What Attention and KV rows look like on `device`'s compute dtype (KV dtype = compute dtype).
  virtual const AttentionShape& attention_shape() const = 0;
  // Enqueues the pass on `stream`. Returns logits f32 [logit_rows.size(), vocab], valid once the stream got there and
  // until the scratch's next pass; an empty tensor where none were wanted. Argument errors and the port's errors only.
  virtual absl::StatusOr<Tensor> Forward(Stream& stream, ForwardScratch& scratch, const ForwardBatch& batch,
                                         KvPort& port) const = 0;
};

// What is known without loading weights. INVALID_ARGUMENT naming the key when the file is not a model we run.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

// Loads the weights onto `device` for `uses` (WeightUse bits); `progress(done, total)` in tensors, from any thread.
absl::StatusOr<std::shared_ptr<const Model>> LoadModel(std::shared_ptr<const GgufFile> file,
                                                       std::shared_ptr<Device> device, unsigned uses,
                                                       std::function<void(int, int)> progress);

}  // namespace runahead
