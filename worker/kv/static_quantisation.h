// KV of 8 bits for fixed shapes (docs/static-window.md): one scale and one zero for all K of a layer, and one for all
// V, fixed by the prompt. What is past and what is new share them, so nothing is ever quantised again.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace runahead {

// How a tensor's values stand in codes of 8 bits: value = (code - zero) * scale. 0 is always a value, that of code
// `zero`.
struct TensorQuantisation {
  float scale = 1;
  int32_t zero = 0;  // 0 to 255
};

// That of all `values`, each of which is then within scale / 2 of its code's value. INVALID_ARGUMENT where one is not
// finite.
absl::StatusOr<TensorQuantisation> FitTensor(absl::Span<const float> values);

// The nearest codes of `values`; returns how many of these saturate: they lie more than scale / 2 beyond the first or
// last code. NaN gets `zero`, and counts. `codes` is as long.
int64_t QuantiseTensor(const TensorQuantisation& by, absl::Span<const float> values, absl::Span<uint8_t> codes);
void DequantiseTensor(const TensorQuantisation& by, absl::Span<const uint8_t> codes, absl::Span<float> values);

// Of all layers of one sequence. Rows are K|V, f32, [rows, 2 * kv_dim]. Not thread-safe.
class StaticQuantisation {
 public:
  // Both at least 1.
  StaticQuantisation(int64_t layers, int64_t kv_dim);

  // Fixes the layer's parameters by the rows of the prompt. FAILED_PRECONDITION where they are fixed already;
  // INVALID_ARGUMENT for no rows, or a value that is not finite.
  absl::Status Fix(int64_t layer, absl::Span<const float> rows);
  // Codes of rows, of the prompt or later ones, as long as `rows`; what saturates is counted. The layer is fixed.
  void Quantise(int64_t layer, absl::Span<const float> rows, absl::Span<uint8_t> codes);
  void Dequantise(int64_t layer, absl::Span<const uint8_t> codes, absl::Span<float> rows) const;

  const TensorQuantisation& keys(int64_t layer) const { return layers_[layer]->keys; }
  const TensorQuantisation& values(int64_t layer) const { return layers_[layer]->values; }
  // How many elements saturated so far, in all layers.
  int64_t saturated() const { return saturated_; }

 private:
  struct Layer {
    TensorQuantisation keys, values;
  };
  int64_t kv_dim_;
  std::vector<std::optional<Layer>> layers_;  // nothing: not fixed
  int64_t saturated_ = 0;
};

}  // namespace runahead
