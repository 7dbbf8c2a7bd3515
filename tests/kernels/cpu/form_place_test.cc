#include "kernels/cpu/form_place.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/int8/int8_weights.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {
namespace {

constexpr int64_t kRows = 100, kCols = 256;
// Sixteen rows at a time.
constexpr size_t kPackedBytes = 112 * kCols / 32 * 18;

class FormPlaceTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::shared_ptr<SharedWeights> Open() const { return *SharedWeights::Open({.path = folder_, .identity = "ours"}); }
  static WeightSource Source(const RandomWeights& weights, const std::string& name) {
    return {
        .owner = nullptr, .cols = kCols, .runs = {{weights.type, weights.bytes.data(), weights.rows}}, .name = name};
  }
  Int8Weights Make(const RandomWeights& weights, SharedWeights* shared, const std::string& name) {
    return *Int8Weights::Make(Source(weights, name), {arena_, shared, budget_, name}, pool_);
  }

  const std::string folder_ = ::testing::TempDir() + "/form_place_" + std::to_string(getpid());
  const std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>(0);
  Arena arena_{HostChunks(nullptr)};
  ThreadPool pool_{2};
  const RandomWeights weights_{WeightType::kQ4_0, kRows, kCols, 1};
  const RandomWeights others_{WeightType::kQ4_0, kRows, kCols, 2};
};

TEST_F(FormPlaceTest, WhoComesSecondHasWhatTheFirstPackedAndPacksNothing) {
  const auto packer = Open();
  const Int8Weights packed = Make(weights_, packer.get(), "m");
  ASSERT_TRUE(packer->Complete("weights").ok());
  const auto reader = Open();
  // Were anything packed, it would be what these rows say, or end the process.
  const Int8Weights read = Make(others_, reader.get(), "m");
  const Int8Weights alone = Make(weights_, nullptr, "m");
  ASSERT_EQ(read.memory().size, kPackedBytes);
  EXPECT_EQ(std::memcmp(read.memory().data(), packed.memory().data(), kPackedBytes), 0);
  EXPECT_EQ(std::memcmp(read.memory().data(), alone.memory().data(), kPackedBytes), 0);
  EXPECT_NE(read.memory().data(), packed.memory().data()) << "mapped apart, as in two processes";

  std::vector<float> x(3 * kCols, 0.25f), from_packed(3 * kRows), from_read(3 * kRows);
  const auto multiply = [&](const Int8Weights& weights, std::vector<float>& out) {
    weights.Multiply(KernelsFor(false), FastestInt8Kernels(), pool_,
                     {.x = x.data(), .x_stride = kCols, .m = 3, .out = out.data(), .out_stride = kRows, .cols = kRows});
  };
  multiply(packed, from_packed);
  multiply(read, from_read);
  EXPECT_EQ(std::memcmp(from_packed.data(), from_read.data(), from_read.size() * sizeof(float)), 0);
}

TEST_F(FormPlaceTest, WhatIsSharedCountsInTheBudgetAsLongAsItIsUsed) {
  const auto packer = Open();
  {
    const Int8Weights packed = Make(weights_, packer.get(), "m");
    EXPECT_EQ(budget_->used(), kPackedBytes);
  }
  EXPECT_EQ(budget_->used(), 0u);
  const auto status = FormPlace(arena_, packer.get(), std::make_shared<MemoryBudget>(kPackedBytes - 1), "other")
                          .Take(kPackedBytes)
                          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(packer->shared_bytes(), kPackedBytes) << "it was not asked";
}

TEST_F(FormPlaceTest, WithoutANameOrAPlaceThereItIsInTheArena) {
  const auto packer = Open();
  const auto nameless = FormPlace(arena_, packer.get(), budget_, "").Take(100);
  ASSERT_TRUE(nameless.ok());
  EXPECT_FALSE(nameless->filled);
  ASSERT_TRUE(packer->Complete("weights").ok());
  const auto late = FormPlace(arena_, packer.get(), budget_, "late").Take(100);
  ASSERT_TRUE(late.ok());
  EXPECT_FALSE(late->filled);
  std::memset(late->memory.data(), 1, 100);
  EXPECT_EQ(packer->shared_bytes(), 0u);
  EXPECT_EQ(budget_->used(), 0u) << "an arena counts by itself";
}

TEST_F(FormPlaceTest, ADeviceSharesWhatItKeepsInEightBitsAndHasNamed) {
  const auto shared = Open();
  const auto device = *NewCpuDevice({.int8 = true, .memory_budget = 1 << 20, .shared_weights = shared});
  const size_t all = device->memory_left();
  const auto named = *device->LoadWeights(Source(weights_, "m"), kUsePrefill);
  EXPECT_EQ(shared->shared_bytes(), kPackedBytes);
  EXPECT_EQ(device->memory_left(), all - kPackedBytes);
  const auto streamed = *device->LoadWeights(Source(weights_, "streamed"), kUseDecode | kUseStreamed);
  const RandomWeights plain(WeightType::kF32, kRows, kCols, 3);
  const auto stored = *device->LoadWeights(Source(plain, "plain"), kUseDecode);
  const auto nameless = *device->LoadWeights(Source(weights_, ""), kUseDecode);
  EXPECT_EQ(shared->shared_bytes(), kPackedBytes);
}

}  // namespace
}  // namespace runahead
