// A draw from one row of logits: what Device::Sample says, on a thread.
#pragma once

#include <cstdint>

#include "kernels/base/device.h"
#include "kernels/base/op_params.h"

namespace runahead {

// The rows of Device::Sample's tables that one draw reads; null: it names none.
struct DrawTables {
  const int32_t* counts = nullptr;    // [n]
  const float* bias = nullptr;        // [n]
  const uint32_t* allowed = nullptr;  // [MaskWords(n)]
};
DrawTables RowTables(const SampleParams& params, const SampleTables& tables);

// logits: [n], n above 0. Tokens that are kept are the caller's business. The same on every machine and in every build;
// linear in n. kNotFinite or kNothingAllowed: no token.
int32_t SampleRow(const float* logits, int64_t n, const SampleParams& params, const DrawTables& tables);

}  // namespace runahead
