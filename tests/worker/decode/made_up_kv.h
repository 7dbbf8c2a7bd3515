// KV that tests write as the hand-off would: values of their own, or of no model, for loops that are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

#include "kernels/base/dtype.h"
#include "kernels/base/status_macros.h"
#include "worker/kv/store.h"

namespace runahead {

inline void WriteValue(float value, DType dtype, std::byte* to) {
  const uint16_t half = dtype == DType::kBF16 ? ToBFloat16(value).bits : ToFloat16(value).bits;
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, sizeof(value));
  } else {
    std::memcpy(to, &half, sizeof(half));
  }
}

// Writes a layer's KV of the lease's first `tokens` tokens. `next` gives the values in order.
template <typename Next>
void WriteRows(KvStore& store, const LeaseId& lease, int64_t layer, int64_t tokens, DType dtype, const Next& next) {
  auto write = store.BeginWrite(lease, layer, 0, tokens);
  RUNAHEAD_CHECK(write.ok() && write->ready().Wait().ok());
  for (const BufferRef& to : write->destination()) {
    for (size_t at = 0; at < to.size; at += DTypeSize(dtype)) WriteValue(next(), dtype, to.data() + at);
  }
  RUNAHEAD_CHECK(write->Commit().Wait().ok());
}

// The prompt's KV of a lease, the same for each prompt of as many tokens.
inline void FillPrompt(KvStore& store, const LeaseId& lease, int64_t prompt, DType dtype) {
  std::mt19937 random(static_cast<uint32_t>(prompt));
  std::normal_distribution<float> normal;
  for (int64_t layer = 0; layer < store.options().layers; ++layer) {
    WriteRows(store, lease, layer, prompt, dtype, [&] { return normal(random); });
  }
}

}  // namespace runahead
