// What is the CUDA device's own: which machines it starts on. Its ops are in the parity tests.
#include "kernels/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include "tests/kernels/cpu/random_weights.h"
#include "tests/testing/cuda_emulation/control.h"
#include "tests/testing/device_tensor.h"

namespace runahead {
namespace {

TEST(CudaDevice, SaysWhyItDoesNotStartWithoutAGpu) {
  for (const cudaError_t error : {cudaErrorInsufficientDriver, cudaErrorNoDevice}) {
    cuda_emulation::SetDevices(1, error);
    const absl::Status status = NewCudaDevice({}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find(cudaGetErrorString(error)), absl::string_view::npos) << status;
  }
  cuda_emulation::SetDevices(1);
  EXPECT_TRUE(NewCudaDevice({}).ok());
}

TEST(CudaDevice, RefusesGpusAndBudgetsThatAreNotThere) {
  EXPECT_EQ(NewCudaDevice({.ordinal = 1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NewCudaDevice({.ordinal = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NewCudaDevice({.memory_budget = size_t{1} << 50}).status().code(), absl::StatusCode::kInvalidArgument);
  cuda_emulation::SetDevices(2);
  {
    const auto second = NewCudaDevice({.ordinal = 1});
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ((*second)->name(), "cuda:1");
  }
  cuda_emulation::SetDevices(1);
}

TEST(CudaDevice, RefusesAGpuThatIsTooOldAndSaysWhichIsNot) {
  cuda_emulation::SetCapability(75);
  const absl::Status status = NewCudaDevice({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("7.5"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("8.0"), absl::string_view::npos) << status;
  cuda_emulation::SetCapability(80);
  EXPECT_TRUE(NewCudaDevice({}).ok());
  cuda_emulation::SetCapability(90);
}

TEST(CudaDevice, NamesHeadsThatItAttendsOverSlowly) {
  const auto device = *NewCudaDevice({.compute_dtype = DType::kBF16});
  for (const int64_t head_dim : {64, 128, 256}) EXPECT_EQ(device->SlowHeads(head_dim), "") << head_dim;
  for (const int64_t head_dim : {80, 96, 32}) {
    EXPECT_NE(device->SlowHeads(head_dim).find(std::to_string(head_dim)), std::string::npos) << head_dim;
  }
  EXPECT_NE((*NewCudaDevice({.compute_dtype = DType::kF32}))->SlowHeads(64), "") << "tensor cores take 16 bits";
}

TEST(CudaDevice, WeightsCountAgainstTheBudgetAndPassThroughBoundedMemory) {
  const RandomWeights weights(WeightType::kQ8_0, 40000, 512, 1);  // 22 MB stored, 41 MB in bf16
  auto small = *NewCudaDevice({.compute_dtype = DType::kBF16, .memory_budget = 40 << 20});
  EXPECT_EQ(small->LoadWeights(weights.Source(), kUseDecode).status().code(), absl::StatusCode::kResourceExhausted);
  auto large = *NewCudaDevice({.compute_dtype = DType::kBF16, .memory_budget = 64 << 20});
  const auto loaded = large->LoadWeights(weights.Source(), kUseDecode);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_FALSE(large->LoadWeights(weights.Source(), 0).ok());
  EXPECT_LT(cuda_emulation::CountLiveObjects().device_bytes, size_t{64} << 20);
}

// More than twice what the staging holds: each part of it is used again while the GPU still reads it.
TEST(CudaDevice, WeightsLargerThanTheStagingArriveWhole) {
  constexpr int64_t kRows = 4301, kCols = 2048;
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  DeviceMemory memory(*NewCudaDevice({.compute_dtype = DType::kF32}));
  const size_t pinned_before = cuda_emulation::CountLiveObjects().registered_bytes;
  const WeightSource source{nullptr, kCols, {{WeightType::kF32, reinterpret_cast<std::byte*>(values.data()), kRows}}};
  const auto loaded = memory.device().LoadWeights(source, kUseDecode);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_LE(cuda_emulation::CountLiveObjects().registered_bytes - pinned_before, size_t{16} << 20);
  std::vector<int32_t> ids;
  for (int32_t row = 0; row < kRows; row += 7) ids.push_back(row);
  const Tensor out = memory.Empty(static_cast<int64_t>(ids.size()), kCols);
  ASSERT_TRUE(memory.device().Embed(memory.stream(), **loaded, ids, false, out).ok());
  const std::vector<float> got = memory.Read(out);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], values[ids[i / kCols] * kCols + i % kCols]) << "row " << ids[i / kCols];
  }
}

}  // namespace
}  // namespace runahead
