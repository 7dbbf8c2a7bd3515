#include "kernels/cpu/checks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

bool CoversBytes(const BufferRef& ref, size_t bytes) {
  return bytes == 0 || (ref.buffer != nullptr && ref.size >= bytes && ref.offset <= ref.buffer->size() &&
                        ref.size <= ref.buffer->size() - ref.offset);
}

}  // namespace

absl::Status CheckTensor(std::string_view tensor_name, const Tensor& tensor, std::initializer_list<DType> dtypes,
                         int64_t rows, int64_t cols) {
  const std::string name(tensor_name);  // Debian's absl does not take std::string_view
  if (std::find(dtypes.begin(), dtypes.end(), tensor.dtype) == dtypes.end()) {
    std::string wanted;
    for (DType dtype : dtypes) absl::StrAppend(&wanted, wanted.empty() ? "" : " or ", std::string(DTypeName(dtype)));
    return Invalid(name, " is ", std::string(DTypeName(tensor.dtype)), ", not ", wanted);
  }
  if (tensor.rows != rows || tensor.cols != cols) {
    return Invalid(name, " is [", tensor.rows, ", ", tensor.cols, "], not [", rows, ", ", cols, "]");
  }
  if (tensor.stride < tensor.cols) return Invalid(name, " has a stride of ", tensor.stride, " for ", cols, " columns");
  const int64_t elements = rows == 0 ? 0 : (rows - 1) * tensor.stride + cols;
  if (!CoversBytes(tensor.ref, elements * DTypeSize(tensor.dtype))) {
    return Invalid(name, " reaches beyond its buffer of ", tensor.ref.size, " bytes");
  }
  return absl::OkStatus();
}

absl::Status CheckAttentionShape(const AttentionShape& shape) {
  if (shape.heads < 1 || shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0) {
    return Invalid(shape.heads, " heads cannot share ", shape.kv_heads, " KV heads");
  }
  if (shape.head_dim < 2 || shape.head_dim % 2 != 0) return Invalid("head_dim is ", shape.head_dim, ", not even");
  if (shape.kv_dtype == DType::kF16) return Invalid("the CPU keeps KV in f32 or bf16, not in f16");
  return absl::OkStatus();
}

absl::Status CheckKvSpans(const std::vector<KvSpan>& kv, const AttentionShape& shape, int64_t tokens) {
  int64_t held = 0;
  for (const KvSpan& span : kv) {
    if (span.tokens < 0 || !CoversBytes(span.rows, span.tokens * shape.kv_row_bytes())) {
      return Invalid("a KV span of ", span.tokens, " tokens has ", span.rows.size, " bytes, not ",
                     span.tokens * shape.kv_row_bytes());
    }
    held += span.tokens;
  }
  if (held < tokens) return Invalid("KV spans hold ", held, " tokens, and ", tokens, " are wanted");
  return absl::OkStatus();
}

absl::Status CheckSequences(const std::vector<AttentionSequence>& sequences, const AttentionShape& shape,
                            int64_t rows) {
  for (const AttentionSequence& sequence : sequences) {
    if (sequence.query_row < 0 || sequence.queries < 1 || sequence.query_row > rows - sequence.queries) {
      return Invalid("queries ", sequence.query_row, " to ", sequence.query_row + sequence.queries, " of ", rows);
    }
    if (sequence.length < sequence.queries) {
      return Invalid(sequence.queries, " queries of a sequence of ", sequence.length, " positions");
    }
    if (sequence.dense_length != 0 && sequence.dense_length < sequence.length) {
      return Invalid("a dense rectangle of ", sequence.dense_length, " of ", sequence.length, " positions");
    }
    RUNAHEAD_RETURN_IF_ERROR(CheckKvSpans(sequence.kv, shape, std::max(sequence.length, sequence.dense_length)));
  }
  return absl::OkStatus();
}

}  // namespace runahead
