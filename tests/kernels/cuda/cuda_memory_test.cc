// Accounting of GPU memory and pinned memory, over an emulated GPU.
#include "kernels/cuda/cuda_memory.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/testing/cuda_emulation/control.h"

namespace runahead {
namespace {

using cuda_emulation::CountLiveObjects;
using cuda_emulation::LiveObjects;

constexpr size_t kMiB = 1 << 20;

TEST(CudaMemory, CountsDeviceMemoryAgainstTheBudget) {
  auto memory = *CudaMemory::Create(0, kMiB);
  auto half = memory->AllocateDevice(kMiB / 2);
  ASSERT_TRUE(half.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*half)->data()) % 64, 0u);
  const absl::Status full = memory->AllocateDevice(kMiB / 2 + 1).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(full.message().find("1048576"), absl::string_view::npos) << full;
  EXPECT_TRUE(memory->AllocatePinned(4 * kMiB).ok()) << "the host's memory is not the GPU's";
  half->reset();
  EXPECT_TRUE(memory->AllocateDevice(kMiB).ok());
}

TEST(CudaMemory, CountsWhatTheDriverTakesForSmallBlocks) {
  auto memory = *CudaMemory::Create(0, 1024);
  std::vector<std::shared_ptr<Buffer>> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(*memory->AllocateDevice(1));
  EXPECT_FALSE(memory->AllocateDevice(1).ok());
}

TEST(CudaMemory, GivesBackTheBudgetOfWhatTheGpuRefused) {
  auto memory = *CudaMemory::Create(0, kMiB);
  cuda_emulation::FailNext("cudaMallocAsync", cudaErrorMemoryAllocation);
  EXPECT_EQ(memory->AllocateDevice(kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(memory->AllocateDevice(kMiB).ok());
}

TEST(CudaMemory, TakesNineTenthsOfWhatIsFreeWithoutABudgetAndRefusesMoreThanThereIs) {
  cuda_emulation::SetTotalMemory(10 * kMiB);
  auto memory = *CudaMemory::Create(0, 0);
  EXPECT_TRUE(memory->AllocateDevice(9 * kMiB - 4096).ok());
  EXPECT_FALSE(memory->AllocateDevice(9 * kMiB + 4096).ok());
  EXPECT_EQ(CudaMemory::Create(0, 11 * kMiB).status().code(), absl::StatusCode::kInvalidArgument);
  cuda_emulation::SetTotalMemory(size_t{4} << 30);
}

TEST(CudaMemory, LeavesNothingBehindAndBuffersMayOutliveIt) {
  const LiveObjects before = CountLiveObjects();
  {
    std::shared_ptr<Buffer> device, large, small, neighbour;
    {
      auto memory = *CudaMemory::Create(0, kMiB);
      device = *memory->AllocateDevice(100);
      large = *memory->AllocatePinned(3 * kMiB);
      small = *memory->AllocatePinned(10);
      neighbour = *memory->AllocatePinned(10);
    }
    std::memset(large->data(), 1, large->size());
    std::memset(small->data(), 2, small->size());
    std::memset(neighbour->data(), 3, neighbour->size());
    EXPECT_EQ(small->data()[9], std::byte{2});
    EXPECT_EQ(CountLiveObjects().device_allocations, before.device_allocations + 1);
    EXPECT_EQ(CountLiveObjects().host_registrations, before.host_registrations + 2) << "small blocks share pages";
  }
  EXPECT_EQ(CountLiveObjects(), before);
}

TEST(CudaMemory, TakesTheDriversMemoryWhereOursCannotBePinned) {
  const LiveObjects before = CountLiveObjects();
  {
    auto memory = *CudaMemory::Create(0, kMiB);
    cuda_emulation::FailNext("cudaHostRegister", cudaErrorNotSupported);
    const auto pinned = memory->AllocatePinned(2 * kMiB);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    std::memset((*pinned)->data(), 1, 2 * kMiB);
    EXPECT_EQ(CountLiveObjects().host_allocations, before.host_allocations + 1);
  }
  EXPECT_EQ(CountLiveObjects(), before);
}

TEST(CudaMemory, SaysSoWhenTheHostCannotPin) {
  auto memory = *CudaMemory::Create(0, kMiB);
  cuda_emulation::FailNext("cudaHostRegister", cudaErrorNotSupported);
  cuda_emulation::FailNext("cudaHostAlloc", cudaErrorMemoryAllocation);
  const absl::Status status = memory->AllocatePinned(2 * kMiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("pinning 2097152 bytes"), absl::string_view::npos) << status;
}

TEST(CudaFlags, AreLoweredWhenTakenAndComeBack) {
  auto memory = *CudaMemory::Create(0, kMiB);
  auto flags = *CudaFlags::Create(*memory);
  std::vector<std::shared_ptr<uint32_t>> taken;
  while (std::shared_ptr<uint32_t> flag = flags->Take()) {
    EXPECT_EQ(*flag, 0u);
    *flag = 1;
    taken.push_back(std::move(flag));
  }
  EXPECT_GT(taken.size(), 1000u);
  taken.pop_back();
  const auto again = flags->Take();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(*again, 0u);
  EXPECT_EQ(flags->Take(), nullptr);
  flags.reset();  // those that are out keep it
}

}  // namespace
}  // namespace runahead
