// Activations in 8 bits, as the products read them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "kernels/base/thread_pool.h"
#include "kernels/cpu/int8/product.h"

namespace runahead {

// All rows of a matrix, in panels of kInt8PanelRows. Lives as long as one product.
class QuantizedRows {
 public:
  // Rows of x are x_stride elements apart and hold 32 * blocks.
  QuantizedRows(const Int8Kernels& kernels, ThreadPool& pool, const float* x, int64_t x_stride, int64_t rows,
                int64_t blocks);
  ~QuantizedRows();
  QuantizedRows(const QuantizedRows&) = delete;
  QuantizedRows& operator=(const QuantizedRows&) = delete;

  int64_t panels() const { return (rows_ + kInt8PanelRows - 1) / kInt8PanelRows; }
  Int8Panel panel(int64_t p) const;

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  struct Memory {
    std::unique_ptr<std::byte[], Free> data;
    size_t bytes = 0;
  };
  // What the thread's last product had: they come one after the other, thousands a second, and each time the system
  // would have to find pages anew.
  static thread_local Memory spare_;

  const int64_t rows_, blocks_;
  Memory memory_;  // of each panel, in Int8Panel's order
};

}  // namespace runahead
