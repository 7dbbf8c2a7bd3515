#include "kernels/base/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace runahead {
namespace {

bool Aligned(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % 64 == 0;
}

TEST(HostMemory, IsAlignedAndWritable) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{1000}, size_t{5} << 20}) {
    auto buffer = AllocateHostMemory(bytes, nullptr);
    ASSERT_TRUE(buffer.ok());
    EXPECT_EQ((*buffer)->size(), bytes);
    EXPECT_TRUE(Aligned((*buffer)->data()));
    std::memset((*buffer)->data(), 1, bytes);
  }
}

TEST(HostMemory, BudgetRefusesNamesSizesAndGetsItsBytesBack) {
  auto budget = std::make_shared<MemoryBudget>(1024);
  auto first = AllocateHostMemory(1000, budget);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(budget->used(), 1024u);
  auto second = AllocateHostMemory(64, budget);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(second.status().message()),
              ::testing::AllOf(::testing::HasSubstr("1024"), ::testing::HasSubstr("64")));
  first->reset();
  EXPECT_EQ(budget->used(), 0u);
  EXPECT_TRUE(AllocateHostMemory(64, budget).ok());
}

TEST(HostMemory, AbsurdSizesAreRefused) {
  auto budget = std::make_shared<MemoryBudget>(0);
  for (size_t bytes : {std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max() / 2}) {
    EXPECT_EQ(AllocateHostMemory(bytes, budget).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(budget->used(), 0u);
}

TEST(Arena, BlocksAreApartAlignedAndCounted) {
  auto budget = std::make_shared<MemoryBudget>(0);
  {
    Arena arena(HostChunks(budget));
    std::vector<BufferRef> blocks;
    for (int i = 0; i < 200; ++i) {
      auto block = arena.Allocate(1000 + i * 997);
      ASSERT_TRUE(block.ok());
      EXPECT_GE(block->size, size_t(1000 + i * 997));
      EXPECT_TRUE(Aligned(block->data()));
      std::memset(block->data(), i, block->size);
      blocks.push_back(*block);
    }
    for (int i = 0; i < 200; ++i) {
      EXPECT_EQ(blocks[i].data()[0], static_cast<std::byte>(i));
      EXPECT_EQ(blocks[i].data()[blocks[i].size - 1], static_cast<std::byte>(i));
    }
    EXPECT_GT(budget->used(), 0u);
  }
  EXPECT_EQ(budget->used(), 0u);
}

TEST(Arena, ASmallBudgetStillHoldsSmallBlocks) {
  auto budget = std::make_shared<MemoryBudget>(10000);
  Arena arena(HostChunks(budget));
  auto block = arena.Allocate(6400);
  ASSERT_TRUE(block.ok());
  EXPECT_EQ(arena.Allocate(6400).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace runahead
