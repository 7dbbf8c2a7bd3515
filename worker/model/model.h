// A model on a device: configuration, weights, and the sections of a layer that its family is made of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "worker/format/model_file.h"
#include "worker/model/load_plan.h"

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
  int64_t rotated = 0;           // the first so many dimensions of a head, by RoPE
  std::vector<int64_t> windows;  // by layer: AttentionShape::window; empty: all layers see all
  // For people, one sentence each: keys of the file that say something and that are not read (unread_keys.h).
  std::vector<std::string> remarks = {};
  int64_t q_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
};

// What attention does in each layer: scores by 1/sqrt(head_dim), the config's windows, KV in the device's dtype.
std::vector<AttentionShape> AttentionShapes(const ModelConfig& config, const Device& device);

// Activation memory: a buffer a slot, grown as needed, kept. Who enqueues on one stream only may use a slot again at
// once: what was enqueued before reads it before it is written again.
class ForwardScratch {
 public:
  explicit ForwardScratch(Device& device) : device_(device) {}
  // A tensor over the slot's buffer, which grows to fit. The old contents are gone.
  absl::StatusOr<Tensor> Get(int slot, DType dtype, int64_t rows, int64_t cols);

 private:
  Device& device_;
  std::vector<std::shared_ptr<Buffer>> buffers_;
};

// The matrices of a layer, in its family's order (Model::Matrices).
using LayerMatrices = absl::Span<const std::shared_ptr<const Weights>>;

// The rows that a section works on, and what it works with: of a part of one prompt, or of a decode step.
struct SectionRows {
  // Slots of `scratch` that sections may use; what they leave there is of no meaning to the next one.
  static constexpr int kScratchSlots = 8;

  Stream& stream;
  ForwardScratch& scratch;
  const KvTable& table;  // of the whole step; these are its query rows [first, first + count)
  int64_t first = 0, count = 0;
  bool batch_invariant = false;  // a row's result does not depend on the rows beside it
  LayerMatrices matrices = {};   // where the layer's are, of those that were streamed; empty: where they were loaded
  // Of Recompute, not batch-invariant: LinearOptions::blocks; empty: one block.
  absl::Span<const int32_t> blocks = {};

  // Of the layer's matrices, which were loaded as `loaded`, the one to multiply with.
  const std::shared_ptr<const Weights>& Matrix(LayerMatrices loaded, size_t index) const {
    return matrices.empty() ? loaded[index] : matrices[index];
  }
  // Absolute, one a row.
  absl::Span<const int32_t> positions() const { return table.positions().subspan(first, count); }
};

// Where Project leaves what it makes of some rows: q and K and V as attention reads them, or qkv. What has no buffer is
// not wanted.
struct Projection {
  MutTensor q = {};       // [rows, heads*head_dim]
  BufferRef kv = {};      // the layer's base: the table says where behind it K and V of the rows go
  MutTensor normed = {};  // [rows, hidden], any dtype: X, from which Recompute makes K and V
  // f32 [rows, (heads + 2*kv_heads)*head_dim]: what Device::StoreQkv splits. Then q and kv are not written.
  MutTensor qkv = {};
};

// What sections keep activations in between ops.
inline DType ActivationDType(const Device& device, bool batch_invariant) {
  return batch_invariant ? device.invariant_dtype() : device.compute_dtype();
}

// Immutable after Load; thread-safe. A family is the sections of its layers: functions that enqueue on the rows they
// are given and know no chain, store, chunk or schedule. A loop calls them in the order
//   Embed, then for each layer Project, attention (by `attention(layer)`), Finish; at last Logits
// or, for KV alone, Recompute, and decides which rows, when, and where KV lies. x is the residual stream, f32 [rows,
// hidden]. Errors are those of arguments.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  // What Attention does in `layer`, and what its KV rows look like: of one size in all layers, in the device's compute
  // dtype.
  virtual const AttentionShape& attention(int64_t layer) const = 0;
  // The matrices of a layer as they were loaded, that of Q, K and V first, then as Finish needs them; as many in all
  // layers. Loaded with kUseStreamed, they have homes, and sections are told where copies of them are.
  virtual LayerMatrices Matrices(int64_t layer) const = 0;
  // The matrices that are no layer's, each once.
  virtual std::vector<std::shared_ptr<const Weights>> Tables() const = 0;

  // x = what the family makes of tokens `ids` (one a row) at their positions.
  virtual absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const = 0;
  // Q, K and V of the layer from x: norm, products, rotation.
  virtual absl::Status Project(const SectionRows& rows, int64_t layer, const ConstTensor& x,
                               const Projection& to) const = 0;
  // K and V of the layer from `normed`, which Project left, to where the table says behind `kv`, a layer's base: there
  // they follow each other. The same as Project's up to rounding, and bitwise so where both are batch-invariant.
  virtual absl::Status Recompute(const SectionRows& rows, int64_t layer, const ConstTensor& normed,
                                 const BufferRef& kv) const = 0;
  // What follows attention: x += the output projection of `attended` [rows, heads*head_dim]; x += the MLP of x.
  virtual absl::Status Finish(const SectionRows& rows, int64_t layer, const ConstTensor& attended,
                              const MutTensor& x) const = 0;
  // logits f32 [rows, vocab] of x behind the last layer. A row's result never depends on the rows beside it.
  virtual absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const = 0;

  // Whether the layers' matrices have homes in host memory.
  bool streams_weights() const { return !Matrices(0).empty() && Matrices(0)[0]->home().buffer != nullptr; }
  // Of all its matrices.
  WeightBytes weight_bytes() const;
  int64_t kv_row_bytes() const { return attention(0).kv_row_bytes(); }
  // Of each layer's attention; 0: it has none.
  std::vector<int64_t> windows() const {
    std::vector<int64_t> windows;
    for (int64_t layer = 0; layer < config().layers; ++layer) windows.push_back(attention(layer).window);
    return windows;
  }
  DType kv_dtype() const { return attention(0).kv_dtype; }
};

// What is known without loading weights. INVALID_ARGUMENT naming the key when the file is not a model we run.
// Likewise for a key that nothing of ours reads and that changes what llama.cpp computes.
absl::StatusOr<ModelConfig> ReadModelConfig(const ModelFile& file);

// Beside kUseDecode: Recompute works on many rows, not batch-invariant. The weights of K and V take memory once more.
inline constexpr unsigned kUseRecompute = 1u << 8;

// What LoadModel would load of `file`, after all that it checks: nothing is read of the weights. Errors: those of
// ReadModelConfig and TensorLoader, which name key or tensor; INVALID_ARGUMENT for a tensor that the family lacks.
absl::StatusOr<LoadPlan> PlanLoading(std::shared_ptr<const ModelFile> file);

// Once all of PlanLoading holds, loads the weights onto `device` for `uses` (WeightUse bits, kUseRecompute;
// kUseStreamed: the matrices of layers, while all else is on the device); `progress(done, total)` in tensors, from any
// thread. INVALID_ARGUMENT, before any memory is taken, for heads that the device does not attend over.
absl::StatusOr<std::shared_ptr<const Model>> LoadModel(std::shared_ptr<const ModelFile> file,
                                                       std::shared_ptr<Device> device, unsigned uses,
                                                       std::function<void(int, int)> progress);

}  // namespace runahead
