// Q, K and V of a layer, as families with rotary positions make them.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model/model.h"
#include "worker/model/projection_scratch.h"
#include "worker/model/tensor_loader.h"

namespace runahead {

// What goes with the matrix of Q, K and V, f32 [1, n]; what a model lacks has no buffer.
struct QkvVectors {
  Tensor bias;            // [1, q_dim + 2*kv_dim]
  Tensor q_norm, k_norm;  // [1, head_dim]: each head of Q and of K is normed before it is rotated
};

// The two sections of one layer; lives as long as a call of them.
struct RotaryQkv {
  Device& device;
  const SectionRows& rows;
  const AttentionShape& shape;
  const std::shared_ptr<const Weights>& matrix;  // [q_dim + 2*kv_dim, hidden]: Q over K over V
  const QkvVectors& vectors;
  const Tensor& rotation;  // of Rotation
  float norm_eps;
  ProjectionSlots slots;

  // Q, K, V = norm * Wqkv + bqkv; Q and K normed by head and rotated. As Model::Project; `norm` writes the normed rows
  // to a tensor.
  absl::Status Project(absl::FunctionRef<absl::Status(const Tensor& out)> norm, const Projection& to) const;
  // K, V = normed * Wkv + bkv; K normed by head and rotated. As Model::Recompute.
  absl::Status Recompute(const ConstTensor& normed, const BufferRef& kv) const;

 private:
  int64_t q_cols() const { return shape.heads * shape.head_dim; }
  int64_t k_cols() const { return shape.kv_heads * shape.head_dim; }
  // The heads of the first `queries` columns of x, and of the keys behind them; nothing where the family has no norms.
  absl::Status NormHeads(const Tensor& x, int64_t queries) const;
  // All heads of x, whose first row is the table's query row `first`.
  absl::Status Rotate(const Tensor& x, int64_t first) const;
};

// How a file has them.
struct QkvForm {
  bool permuted = false;    // rows of Q and K lie permuted for interleaved rotation
  bool needs_bias = false;  // else biases may be missing
  bool head_norm = false;
  bool fused = false;   // one tensor, attn_qkv: Q over K over V
  float norm_plus = 0;  // see TensorLoader::Vector
};
struct LoadedQkv {
  std::shared_ptr<const Weights> matrix;  // for Recompute, too
  QkvVectors vectors;
};
// Tensors <prefix>attn_q, attn_k, attn_v (or attn_qkv), attn_q_norm and attn_k_norm.
absl::StatusOr<LoadedQkv> LoadQkv(const TensorLoader& loader, const ModelConfig& config, const std::string& prefix,
                                  const QkvForm& form);

}  // namespace runahead
