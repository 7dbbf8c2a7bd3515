// Argument checks of the CPU device's ops: each names the tensor and says what was wanted.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/device.h"
#include "kernels/base/tensor.h"

namespace runahead {

// The dtype is one of `dtypes`, the shape is [rows, cols], and the buffer covers it.
absl::Status CheckTensor(std::string_view name, const Tensor& tensor, std::initializer_list<DType> dtypes, int64_t rows,
                         int64_t cols);

// Head counts and sizes are positive and divide each other, head_dim is even, KV is f32 or bf16.
absl::Status CheckAttentionShape(const AttentionShape& shape);

// The spans' buffers cover their tokens, and together they hold at least `tokens`.
absl::Status CheckKvSpans(const std::vector<KvSpan>& kv, const AttentionShape& shape, int64_t tokens);

// Query rows lie within `rows`, lengths are consistent, KV is whole.
absl::Status CheckSequences(const std::vector<AttentionSequence>& sequences, const AttentionShape& shape, int64_t rows);

}  // namespace runahead
