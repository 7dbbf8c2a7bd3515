// Arguments to be checked, and what is said of bad ones.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/base/checks.h"
#include "kernels/base/memory.h"

namespace runahead::checked {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};
inline constexpr OpLimits kLimits{
    .dtypes = kDTypes, .kv_dtypes = kDTypes, .head_dim_multiple = 8, .most_head_dim = 128, .most_vocab = 1000};

inline BufferRef Bytes(size_t bytes) {
  return BufferRef::Whole(*AllocateHostMemory(bytes, nullptr));
}

inline Tensor Make(int64_t rows, int64_t cols, DType dtype = DType::kF32) {
  return MakeTensor(Bytes(rows * cols * DTypeSize(dtype)), dtype, rows, cols);
}

inline ::testing::Matcher<const absl::Status&> Refused(const std::vector<std::string>& words) {
  std::vector<::testing::Matcher<std::string>> parts;
  for (const std::string& word : words) parts.push_back(::testing::HasSubstr(word));
  return ::testing::AllOf(::testing::Property(&absl::Status::code, absl::StatusCode::kInvalidArgument),
                          ::testing::ResultOf([](const absl::Status& status) { return std::string(status.message()); },
                                              ::testing::AllOfArray(parts)));
}

}  // namespace runahead::checked
