#include "kernels/cpu/int8/quantized_rows.h"

#include <algorithm>
#include <utility>

#include "kernels/base/checks.h"
#include "kernels/cpu/for_rows.h"

namespace runahead {
namespace {

constexpr size_t kQuantizedBlockBytes = kInt8Block + 5 * sizeof(float);  // with its scale and sums

size_t Padded(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

thread_local QuantizedRows::Memory QuantizedRows::spare_;

QuantizedRows::QuantizedRows(const Int8Kernels& kernels, ThreadPool& pool, const float* x, int64_t x_stride,
                             int64_t rows, int64_t blocks)
    : rows_(rows), blocks_(blocks), memory_(std::exchange(spare_, {})) {
  const size_t bytes = panels() * Padded(kInt8PanelRows * blocks * kQuantizedBlockBytes);
  if (bytes > memory_.bytes) {
    memory_ = {};
    memory_.data.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
    RUNAHEAD_CHECK(memory_.data != nullptr);
    memory_.bytes = bytes;
  }
  ForRows(pool, rows, blocks * kInt8Block, [&](int64_t r) {
    kernels.quantize_row(x + r * x_stride, blocks, r % kInt8PanelRows, panel(r / kInt8PanelRows));
  });
}

QuantizedRows::~QuantizedRows() {
  if (memory_.bytes > spare_.bytes) spare_ = std::move(memory_);
}

Int8Panel QuantizedRows::panel(int64_t p) const {
  // The memory is that of a full panel, whatever its rows are, so tiles can read whole ones: they end at row
  // (blocks - 1) * rows + kInt8PanelRows of q at most.
  static_assert(kInt8PanelRows % kInt8TileRows == 0);
  Int8Panel panel;
  panel.rows = std::min<int64_t>(kInt8PanelRows, rows_ - p * kInt8PanelRows);
  const int64_t blocks = panel.rows * blocks_;
  std::byte* const at = memory_.data.get() + p * Padded(kInt8PanelRows * blocks_ * kQuantizedBlockBytes);
  panel.q = reinterpret_cast<int8_t*>(at);
  panel.scales = reinterpret_cast<float*>(at + blocks * kInt8Block);
  panel.minus_sums = reinterpret_cast<int32_t*>(panel.scales + blocks);
  panel.scaled_sums = reinterpret_cast<float*>(panel.minus_sums + blocks);
  panel.minus_half_sums = reinterpret_cast<int32_t*>(panel.scaled_sums + blocks);
  return panel;
}

}  // namespace runahead
