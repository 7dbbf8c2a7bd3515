#include "tests/testing/test_device.h"

#include <cstring>
#include <limits>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

void Encode(float value, DType dtype, std::byte* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, &value, 4);
  } else if (dtype == DType::kBF16) {
    const BFloat16 rounded = ToBFloat16(value);
    std::memcpy(to, &rounded, 2);
  } else {
    const Float16 rounded = ToFloat16(value);
    std::memcpy(to, &rounded, 2);
  }
}

float Decode(const std::byte* from, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, 2);
  return dtype == DType::kBF16 ? ToFloat(BFloat16{bits}) : ToFloat(Float16{bits});
}

BufferRef Room(Device& device, size_t bytes, MemoryKind kind) {
  auto buffer = device.Allocate(bytes, kind);
  RUNAHEAD_CHECK(buffer.ok());
  return BufferRef::Whole(*std::move(buffer));
}

}  // namespace

BufferRef PutBytes(Device& device, const std::vector<std::byte>& bytes) {
  const BufferRef host = Room(device, bytes.size(), MemoryKind::kHost);
  const BufferRef there = Room(device, bytes.size(), MemoryKind::kDevice);
  if (!bytes.empty()) std::memcpy(host.data(), bytes.data(), bytes.size());
  const std::unique_ptr<Stream> stream = device.NewStream("put");
  RUNAHEAD_CHECK(device.Copy(*stream, host, there).ok());
  RUNAHEAD_CHECK(device.Record(*stream).Wait().ok());
  return there;
}

Tensor PutTensor(Device& device, const std::vector<float>& values, int64_t rows, DType dtype, int64_t spare) {
  const int64_t cols = rows == 0 ? 0 : static_cast<int64_t>(values.size()) / rows;
  const int64_t stride = cols + spare;
  const size_t size = DTypeSize(dtype);
  std::vector<std::byte> bytes(rows * stride * size);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < stride; ++c) {
      const float value = c < cols ? values[r * cols + c] : std::numeric_limits<float>::quiet_NaN();
      Encode(value, dtype, bytes.data() + (r * stride + c) * size);
    }
  }
  return {PutBytes(device, bytes), dtype, rows, cols, stride};
}

Tensor NewTensor(Device& device, DType dtype, int64_t rows, int64_t cols, int64_t spare) {
  return PutTensor(device, std::vector<float>(rows * cols, std::numeric_limits<float>::quiet_NaN()), rows, dtype, spare);
}

std::vector<std::byte> TakeBytes(Device& device, Stream& stream, const BufferRef& ref) {
  const BufferRef host = Room(device, ref.size, MemoryKind::kHost);
  RUNAHEAD_CHECK(device.Copy(stream, ref, host).ok());
  RUNAHEAD_CHECK(device.Record(stream).Wait().ok());
  return {host.data(), host.data() + host.size};
}

std::vector<float> TakeTensor(Device& device, Stream& stream, const Tensor& tensor) {
  if (tensor.rows == 0) return {};
  const std::vector<std::byte> bytes = TakeBytes(device, stream, tensor.ref);
  std::vector<float> values;
  for (int64_t r = 0; r < tensor.rows; ++r) {
    for (int64_t c = 0; c < tensor.cols; ++c) {
      values.push_back(Decode(bytes.data() + (r * tensor.stride + c) * DTypeSize(tensor.dtype), tensor.dtype));
    }
  }
  return values;
}

std::vector<float> Rounded(std::vector<float> values, DType dtype) {
  for (float& value : values) {
    std::byte bytes[4];
    Encode(value, dtype, bytes);
    value = Decode(bytes, dtype);
  }
  return values;
}

}  // namespace runahead
