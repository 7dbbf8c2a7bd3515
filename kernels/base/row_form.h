// In which form rows travel and are kept: those of KV in a dtype, those of X in a dtype or quantised.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/base/dtype.h"
#include "kernels/base/op_params.h"

namespace runahead {

// Numbers are those of slices on the wire; a wire may bring any other.
enum class RowForm : uint8_t {
  kF32 = 0,
  kBF16 = 1,
  kF16 = 2,
  kQ8 = 3,   // symmetrically in 8 bits, by blocks of 32: what products in 8 bits make of it
  kQ16 = 4,  // likewise in 16 bits: about fifteen bits of a block's largest value, whatever its size
  kQ4 = 5,   // in 4 bits, as KV is, by groups of 32; X is kept so, and nothing travels so
};
inline constexpr RowForm kRowForms[] = {RowForm::kF32, RowForm::kBF16, RowForm::kF16,
                                        RowForm::kQ8,  RowForm::kQ16,  RowForm::kQ4};

constexpr RowForm FormOf(DType dtype) {
  return dtype == DType::kF32 ? RowForm::kF32 : dtype == DType::kBF16 ? RowForm::kBF16 : RowForm::kF16;
}

constexpr bool IsQuantised(RowForm form) {
  return form == RowForm::kQ8 || form == RowForm::kQ16 || form == RowForm::kQ4;
}

// Of a form that is not quantised.
constexpr DType DTypeOf(RowForm form) {
  return form == RowForm::kF32 ? DType::kF32 : form == RowForm::kBF16 ? DType::kBF16 : DType::kF16;
}

// Of a form that is; rows are whole groups of it.
constexpr KvQuant QuantOf(RowForm form) {
  if (form == RowForm::kQ4) return {.bits = 4, .group = 32};
  return {.bits = form == RowForm::kQ8 ? 8 : 16, .group = 32, .symmetric = true};
}

// "f32", "bf16", "f16", "q8", "q16", "q4"; "unknown" for a number that is none.
constexpr std::string_view RowFormName(RowForm form) {
  switch (form) {
    case RowForm::kF32:
    case RowForm::kBF16:
    case RowForm::kF16:
      return DTypeName(DTypeOf(form));
    case RowForm::kQ8:
      return "q8";
    case RowForm::kQ16:
      return "q16";
    case RowForm::kQ4:
      return "q4";
  }
  return "unknown";
}

constexpr std::optional<RowForm> ParseRowForm(std::string_view name) {
  for (const RowForm form : kRowForms) {
    if (RowFormName(form) == name) return form;
  }
  return std::nullopt;
}

// Of a row of n elements; quantised: n is a multiple of 32.
constexpr int64_t RowFormBytes(RowForm form, int64_t n) {
  return IsQuantised(form) ? static_cast<int64_t>(KvQuantRowBytes(n, QuantOf(form)))
                           : n * static_cast<int64_t>(DTypeSize(DTypeOf(form)));
}

}  // namespace runahead
