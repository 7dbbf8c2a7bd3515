// For tests of kernels: memory of the device, and matrices in it whose surroundings are watched. The tests run against
// the emulated CUDA and, where there is a GPU, against the real one.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/testing/quantize.h"
#include "worker/format/dequantize.h"

namespace runahead {

// Tests that need a device are skipped where there is none.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 1) GTEST_SKIP() << "skipped: no CUDA device";
  }
};

// Bytes in device memory.
class GpuMemory {
 public:
  explicit GpuMemory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    EXPECT_EQ(cudaMalloc(&data_, bytes), cudaSuccess);
  }
  ~GpuMemory() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  void Write(const void* from) {
    if (bytes_ == 0) return;
    EXPECT_EQ(cudaMemcpy(data_, from, bytes_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  // After all that was launched before.
  void Read(void* to) const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    if (bytes_ == 0) return;
    EXPECT_EQ(cudaMemcpy(to, data_, bytes_, cudaMemcpyDeviceToHost), cudaSuccess);
  }

 private:
  size_t bytes_;
  void* data_ = nullptr;
};

// A copy of `values` in device memory.
template <typename T>
class GpuArray {
 public:
  explicit GpuArray(const std::vector<T>& values) : memory_(values.size() * sizeof(T)) { memory_.Write(values.data()); }
  T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  GpuMemory memory_;
};

// `value` as an element of `dtype`, and back.
inline uint32_t ElementBits(DType dtype, float value) {
  if (dtype == DType::kBF16) return FloatToBFloat16(value);
  if (dtype == DType::kF16) return FloatToFloat16(value);
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float ElementValue(DType dtype, uint32_t bits) {
  if (dtype == DType::kBF16) return BFloat16ToFloat(static_cast<uint16_t>(bits));
  if (dtype == DType::kF16) return Float16ToFloat(static_cast<uint16_t>(bits));
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float Rounded(DType dtype, float value) {
  return ElementValue(dtype, ElementBits(dtype, value));
}
// Relative error of an element that was rounded once.
inline double Epsilon(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}

// A gap that makes rows a multiple of 16 elements apart, however long they are.
inline constexpr int64_t kAlignRows = -1;

// A matrix in device memory. The `gap` elements behind each row, the `offset` ones before the first, and all elements
// until they are written, are 0xff: NaN in every type.
class GpuMatrix {
 public:
  GpuMatrix(DType dtype, int64_t rows, int64_t cols, int64_t gap = 0, int64_t offset = 0)
      : dtype_(dtype),
        rows_(rows),
        cols_(cols),
        stride_(gap == kAlignRows ? (cols + 15) / 16 * 16 : cols + gap),
        offset_(offset),
        bytes_((offset + rows * stride_) * DTypeSize(dtype), 0xff),
        memory_(bytes_.size()) {
    memory_.Write(bytes_.data());
  }

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }

  // The elements; of the device after Download, for the device at Upload.
  uint32_t bits(int64_t row, int64_t col) const {
    uint32_t bits = 0;
    std::memcpy(&bits, &bytes_[Byte(row, col)], DTypeSize(dtype_));
    return bits;
  }
  float at(int64_t row, int64_t col) const { return ElementValue(dtype_, bits(row, col)); }
  void set(int64_t row, int64_t col, float value) {
    const uint32_t bits = ElementBits(dtype_, value);
    std::memcpy(&bytes_[Byte(row, col)], &bits, DTypeSize(dtype_));
  }

  void Upload() { memory_.Write(bytes_.data()); }
  void Upload(const std::function<float(int64_t row, int64_t col)>& value) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) set(r, c, value(r, c));
    }
    Upload();
  }
  // Uniform in [-scale, scale).
  void UploadRandom(uint32_t seed, float scale = 1.0f) {
    std::mt19937 random(seed);
    Upload([&](int64_t, int64_t) { return scale * (static_cast<float>(random()) * 0x1p-31f - 1.0f); });
  }
  // Checks that what lies beside the elements is what it was.
  void Download() {
    memory_.Read(bytes_.data());
    std::vector<uint8_t> beside = bytes_;
    for (int64_t r = 0; r < rows_; ++r) std::memset(&beside[Byte(r, 0)], 0xff, cols_ * DTypeSize(dtype_));
    EXPECT_EQ(beside, std::vector<uint8_t>(beside.size(), 0xff)) << "written beside the matrix";
  }

  std::byte* Row(int64_t row) const { return memory_.data() + Byte(row, 0); }
  CudaMatrix matrix() const { return Slice(0, rows_); }
  CudaMatrix Slice(int64_t first, int64_t rows) const {
    return {.data = Row(first), .dtype = dtype_, .rows = rows, .cols = cols_, .stride = stride_};
  }

 private:
  int64_t Byte(int64_t row, int64_t col) const {
    return (offset_ + row * stride_ + col) * static_cast<int64_t>(DTypeSize(dtype_));
  }

  const DType dtype_;
  const int64_t rows_;
  const int64_t cols_;
  const int64_t stride_;
  const int64_t offset_;
  std::vector<uint8_t> bytes_;
  GpuMemory memory_;
};

inline constexpr DType kAllDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Where a matrix lies: dense, with rows that are aligned or not, or from an odd element on.
struct Placement {
  int64_t gap;
  int64_t offset;
};
inline constexpr Placement kPlacements[] = {{0, 0}, {kAlignRows, 0}, {3, 0}, {8, 1}};

}  // namespace runahead
