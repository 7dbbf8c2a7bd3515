// That the emulation runs kernels as CUDA does, and finds what CUDA leaves undefined.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/cuda/emulation_kernels.h"
#include "tests/testing/cuda_emulation/control.h"

namespace runahead {
namespace {

void Finish(cudaError_t launched) {
  ASSERT_EQ(launched, cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
}

TEST(EmulatedKernel, EveryThreadHasItsIndices) {
  const dim3 grid(3, 2, 2);
  const dim3 block(5, 3, 2);
  std::vector<uint3> threads(12 * 30, uint3{99, 99, 99});
  std::vector<uint3> blocks(12 * 30, uint3{99, 99, 99});
  Finish(LaunchIndices(threads.data(), blocks.data(), grid, block, nullptr));
  size_t i = 0;
  for (unsigned b = 0; b < 12; ++b) {
    for (unsigned t = 0; t < 30; ++t, ++i) {
      EXPECT_EQ(threads[i].x + 5 * threads[i].y + 15 * threads[i].z, t);
      EXPECT_EQ(blocks[i].x + 3 * blocks[i].y + 6 * blocks[i].z, b);
      EXPECT_LT(threads[i].x, 5u);
      EXPECT_LT(threads[i].y, 3u);
      EXPECT_LT(blocks[i].x, 3u);
      EXPECT_LT(blocks[i].y, 2u);
    }
  }
}

template <typename T>
class EmulatedBlockSum : public ::testing::Test {};
using SummedTypes = ::testing::Types<int, int64_t, float, double>;
TYPED_TEST_SUITE(EmulatedBlockSum, SummedTypes);

TYPED_TEST(EmulatedBlockSum, AddsAllThreads) {
  for (const int threads : {32, 96, 1024}) {
    std::vector<TypeParam> values(3 * threads);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<TypeParam>(i);
    std::vector<TypeParam> sums(3);
    Finish(LaunchBlockSum(values.data(), sums.data(), 3, threads, nullptr));
    for (int b = 0; b < 3; ++b) {
      EXPECT_EQ(sums[b], static_cast<TypeParam>(threads * (b * threads) + threads * (threads - 1) / 2));
    }
  }
}

TEST(EmulatedKernel, BarriersHoldInOddBlocks) {
  for (const int threads : {1, 7, 33, 129, 1023}) {
    std::vector<int> values(threads);
    for (int i = 0; i < threads; ++i) values[i] = i;
    Finish(LaunchReverse(values.data(), threads, true, nullptr));
    for (int i = 0; i < threads; ++i) ASSERT_EQ(values[i], threads - 1 - i);
  }
}

TEST(EmulatedKernel, AMissingBarrierShows) {
  std::vector<int> values(64);
  for (int i = 0; i < 64; ++i) values[i] = i;
  Finish(LaunchReverse(values.data(), 64, false, nullptr));
  int right = 0;
  for (int i = 0; i < 64; ++i) right += values[i] == 63 - i;
  EXPECT_LT(right, 64);
}

TEST(EmulatedKernel, ShufflesAndVotesAreThoseOfCuda) {
  std::vector<int> out(32 * 8, -1);
  Finish(LaunchShuffles(out.data(), nullptr));
  for (int lane = 0; lane < 32; ++lane) {
    const int* row = &out[lane * 8];
    EXPECT_EQ(row[0], 3);
    EXPECT_EQ(row[1], lane + 5 < 32 ? lane + 5 : lane);
    EXPECT_EQ(row[2], lane >= 5 ? lane - 5 : lane);
    EXPECT_EQ(row[3], lane ^ 17);
    EXPECT_EQ(row[4], lane / 8 * 8 + 1);
    EXPECT_EQ(static_cast<unsigned>(row[5]), 0xaaaaaaaau);
    EXPECT_EQ(row[6], 1);
    EXPECT_EQ(row[7], 0);
  }
}

TEST(EmulatedKernel, ThreadsThatEndedCountAtBarriers) {
  std::vector<int> out(128, -1);
  Finish(LaunchSomeLeave(out.data(), 128, nullptr));
  for (int i = 0; i < 128; ++i) EXPECT_EQ(out[i], i % 2 == 1 ? -1 : i ^ 2);
}

TEST(EmulatedKernel, WarpsMeetOnTheirOwn) {
  std::vector<int> out(160, -1);
  Finish(LaunchWarpsApart(out.data(), 160, nullptr));
  for (int i = 0; i < 160; ++i) EXPECT_EQ(out[i], 1 << (i / 32));
}

TEST(EmulatedKernel, SharedMemoryHoldsGarbageAtFirst) {
  std::vector<float> out(4 * 4, 0.0f);
  Finish(LaunchReadUnwritten(out.data(), 4, nullptr));
  for (const float value : out) EXPECT_TRUE(std::isnan(value)) << value;
}

TEST(EmulatedKernel, AtomicsCountEveryThread) {
  int count = 0;
  float sum = 0;
  int most = -1;
  Finish(LaunchAtomics(&count, &sum, &most, 3, 100, nullptr));
  EXPECT_EQ(count, 300);
  EXPECT_EQ(sum, 150.0f);
  EXPECT_EQ(most, 99);
}

TEST(EmulatedKernel, SizesThatCudaRefusesAreRefused) {
  int value = 0;
  EXPECT_EQ(LaunchAdd(&value, 1, 0, 1, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchAdd(&value, 1, 1, 0, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchAdd(&value, 1, 1, 1025, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchAdd(&value, 1, 1, dim3(32, 33), nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchAdd(&value, 1, dim3(1, 65536), 1, nullptr), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  Finish(cudaSuccess);
  EXPECT_EQ(value, 0);
}

TEST(EmulatedKernel, FailsWhenTheTestAsksForIt) {
  int value = 0;
  cuda_emulation::FailNext("cudaLaunchKernelEx", cudaErrorLaunchOutOfResources);
  EXPECT_EQ(LaunchAdd(&value, 1, 1, 1, nullptr), cudaErrorLaunchOutOfResources);
  Finish(LaunchAdd(&value, 1, 1, 1, nullptr));
  EXPECT_EQ(value, 1);
  cudaGetLastError();
}

TEST(EmulatedKernelDeathTest, AShuffleWithAThreadThatEndedIsAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::vector<int> out(32);
  EXPECT_DEATH(Finish(LaunchShuffleWithTheGone(out.data(), nullptr)), "lane 0 shuffles with lane 1, which has ended");
}

TEST(EmulatedKernelDeathTest, ThreadsThatWaitForEachOtherForeverAreAnError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(Finish(LaunchHalfABarrier(nullptr)), "is stuck: 33 threads at __syncthreads, 31 in warp functions");
}

TEST(EmulatedElements, Bfloat16RoundsToNearestEven) {
  EXPECT_EQ(__float2bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(__float2bfloat16(1.0f + 0x1p-8f).bits, 0x3f80);             // a tie, to even
  EXPECT_EQ(__float2bfloat16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);         // a tie, to even
  EXPECT_EQ(__float2bfloat16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);  // above a tie
  EXPECT_EQ(__bfloat162float({0xc000}), -2.0f);
  EXPECT_EQ(__float2bfloat16(std::nanf("")).bits, 0x7fff);
}

// Every half is what it is as a float, and what lies between two halves becomes the nearest.
TEST(EmulatedElements, HalfRoundsToNearestEven) {
  for (unsigned bits = 0; bits < 0x7c00; ++bits) {
    const float value = __half2float({static_cast<uint16_t>(bits)});
    const int exponent = std::max(static_cast<int>(bits >> 10), 1);
    EXPECT_EQ(value, std::ldexp(static_cast<float>((bits & 1023) + (bits >= 1024 ? 1024 : 0)), exponent - 25));
    ASSERT_EQ(__float2half(value).bits, bits);
    ASSERT_EQ(__float2half(-value).bits, bits | 0x8000);
    const float half_step = std::ldexp(1.0f, exponent - 26);
    ASSERT_EQ(__float2half(value + half_step).bits, bits + bits % 2) << value;
    ASSERT_EQ(__float2half(std::nextafter(value + half_step, 1e9f)).bits, bits + 1) << value;
    ASSERT_EQ(__float2half(std::nextafter(value + half_step, 0.0f)).bits, bits) << value;
  }
  EXPECT_EQ(__float2half(std::numeric_limits<float>::infinity()).bits, 0x7c00);
  EXPECT_EQ(__half2float({0xfc00}), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(__float2half(1e30f).bits, 0x7c00);
  EXPECT_TRUE(std::isnan(__half2float(__float2half(std::nanf("")))));
}

}  // namespace
}  // namespace runahead
