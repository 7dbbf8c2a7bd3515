// What the files of argument checks share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"

namespace runahead::check_parts {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

inline bool CoversBytes(const BufferRef& ref, size_t bytes) {
  return bytes == 0 || (ref.buffer != nullptr && ref.size >= bytes && ref.offset <= ref.buffer->size() &&
                        ref.size <= ref.buffer->size() - ref.offset);
}

// Whatever shape it has, `name` is a tensor of one of `dtypes`.
inline absl::Status CheckAnyShape(std::string_view name, const Tensor& tensor, absl::Span<const DType> dtypes) {
  return CheckTensor(name, tensor, dtypes, tensor.rows, tensor.cols);
}

// x is whole heads, in one of `dtypes`.
inline absl::Status CheckHeads(const Tensor& x, int64_t head_dim, absl::Span<const DType> dtypes) {
  RUNAHEAD_RETURN_IF_ERROR(CheckAnyShape("x", x, dtypes));
  if (head_dim < 1 || x.cols % head_dim != 0)
    return Invalid("x has ", x.cols, " columns, no whole heads of ", head_dim);
  return absl::OkStatus();
}

}  // namespace runahead::check_parts
