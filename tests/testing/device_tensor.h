// Tensors of any device, filled from and read back to vectors of floats through host memory.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/base/device.h"

namespace runahead {

// The nearest value that `dtype` has.
inline float RoundTo(DType dtype, double value) {
  const float nearest = static_cast<float>(value);
  if (dtype == DType::kF32) return nearest;
  return dtype == DType::kBF16 ? ToFloat(ToBFloat16(nearest)) : ToFloat(ToFloat16(nearest));
}

// A device and a stream of it; every transfer waits. For one thread.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<Device> device)
      : device_(std::move(device)), stream_(device_->NewStream("test")) {}

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }
  void Finish() { ASSERT_TRUE(device_->Record(*stream_).Wait().ok()); }

  BufferRef NewBytes(const std::vector<std::byte>& bytes) {
    const BufferRef to = BufferRef::Whole(*device_->Allocate(bytes.size(), MemoryKind::kDevice));
    const BufferRef host = BufferRef::Whole(*device_->Allocate(bytes.size(), MemoryKind::kHost));
    std::memcpy(host.data(), bytes.data(), bytes.size());
    Move(host, to);
    return to;
  }
  std::vector<std::byte> ReadBytes(const BufferRef& ref) {
    const BufferRef host = BufferRef::Whole(*device_->Allocate(ref.size, MemoryKind::kHost));
    Move(ref, host);
    return std::vector<std::byte>(host.data(), host.data() + host.size);
  }

  // [rows, cols] of `dtype` with `pad` elements behind each row, from values[rows * cols]; the padding holds 77.
  Tensor NewTensor(const std::vector<float>& values, int64_t rows, DType dtype = DType::kF32, int64_t pad = 0) {
    const int64_t cols = rows == 0 ? 1 : static_cast<int64_t>(values.size()) / rows, stride = cols + pad;
    std::vector<std::byte> bytes(rows * stride * DTypeSize(dtype));
    for (int64_t i = 0; i < rows * stride; ++i) {
      const float value = i % stride < cols ? values[i / stride * cols + i % stride] : 77.0f;
      std::byte* at = bytes.data() + i * DTypeSize(dtype);
      if (dtype == DType::kF32) {
        std::memcpy(at, &value, sizeof(value));
      } else {
        const uint16_t bits = dtype == DType::kBF16 ? ToBFloat16(value).bits : ToFloat16(value).bits;
        std::memcpy(at, &bits, sizeof(bits));
      }
    }
    return {NewBytes(bytes), dtype, rows, cols, stride};
  }
  Tensor Empty(int64_t rows, int64_t cols, DType dtype = DType::kF32, int64_t pad = 0) {
    return NewTensor(std::vector<float>(rows * cols, 55.0f), rows, dtype, pad);
  }
  // The rows without their padding, which must still hold what NewTensor put there.
  std::vector<float> Read(const Tensor& tensor) {
    const std::vector<std::byte> bytes = ReadBytes(tensor.ref);
    std::vector<float> values;
    for (int64_t i = 0; i < static_cast<int64_t>(bytes.size() / DTypeSize(tensor.dtype)); ++i) {
      const float value = Element(bytes.data(), tensor.dtype, i);
      if (i % tensor.stride < tensor.cols) {
        values.push_back(value);
      } else {
        EXPECT_EQ(value, 77.0f) << "element " << i << " is behind a row";
      }
    }
    return values;
  }

  static float Element(const std::byte* bytes, DType dtype, int64_t index) {
    if (dtype == DType::kF32) {
      float value;
      std::memcpy(&value, bytes + index * sizeof(value), sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes + index * sizeof(bits), sizeof(bits));
    return dtype == DType::kBF16 ? ToFloat(BFloat16{bits}) : ToFloat(Float16{bits});
  }

 private:
  void Move(const BufferRef& from, const BufferRef& to) {
    ASSERT_TRUE(device_->Copy(*stream_, from, to).ok());
    Finish();
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace runahead
