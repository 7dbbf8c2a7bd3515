#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "kernels/cuda/gemm.h"

namespace runahead {
namespace {

class NumberedPlan final : public GemmPlan {
 public:
  NumberedPlan(const GemmShape& shape, int number) : GemmPlan(shape), number_(number) {}
  size_t workspace_bytes() const override { return number_; }
  cudaError_t Run(const GemmOperands&, cudaStream_t) const override { return cudaSuccess; }

 private:
  const int number_;
};

// Counts what it is asked; refuses shapes of no columns.
class CountingPlanner final : public GemmPlanner {
 public:
  explicit CountingPlanner(int& made) : made_(made) {}
  absl::StatusOr<std::shared_ptr<const GemmPlan>> Plan(const GemmShape& shape) override {
    ++made_;
    if (shape.k == 0) return absl::InternalError("nothing computes this");
    return std::make_shared<const NumberedPlan>(shape, made_);
  }

 private:
  int& made_;
};

GemmShape Shape(int64_t m) {
  return {.m = m, .n = 64, .k = 32, .x_stride = 32, .out_stride = 64};
}

TEST(GemmPlans, MakeEachShapeOnce) {
  int made = 0;
  GemmPlans plans(std::make_unique<CountingPlanner>(made));
  const auto first = *plans.Find(Shape(1));
  EXPECT_EQ(*plans.Find(Shape(1)), first);
  EXPECT_EQ(made, 1);
  EXPECT_NE(*plans.Find(Shape(2)), first);
  EXPECT_EQ(made, 2);
}

TEST(GemmPlans, TellApartAllThatDecidesTheKernel) {
  int made = 0;
  GemmPlans plans(std::make_unique<CountingPlanner>(made));
  std::vector<GemmShape> shapes(12, Shape(5));
  shapes[1].n = 65;
  shapes[2].k = 33;
  shapes[3].dtype = DType::kBF16;
  shapes[4].out_dtype = DType::kBF16;
  shapes[5].x_stride = 40;
  shapes[6].out_stride = 72;
  shapes[7].accumulate = true;
  shapes[8].bias = true;
  shapes[9].activation = Activation::kRelu;
  shapes[10].batch_invariant = true;
  shapes[11].alignment = 4;
  for (const GemmShape& shape : shapes) ASSERT_TRUE(plans.Find(shape).ok());
  EXPECT_EQ(made, 12);
  for (const GemmShape& shape : shapes) ASSERT_TRUE(plans.Find(shape).ok());
  EXPECT_EQ(made, 12);
}

TEST(GemmPlans, AskAgainForWhatFailed) {
  int made = 0;
  GemmPlans plans(std::make_unique<CountingPlanner>(made));
  GemmShape impossible = Shape(1);
  impossible.k = 0;
  EXPECT_EQ(plans.Find(impossible).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(plans.Find(impossible).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(made, 2);
}

TEST(GemmPlans, AreBoundedAndOutliveTheCache) {
  int made = 0;
  GemmPlans plans(std::make_unique<CountingPlanner>(made));
  const auto first = *plans.Find(Shape(0));
  for (size_t m = 1; m <= GemmPlans::kMost; ++m) ASSERT_TRUE(plans.Find(Shape(m)).ok());
  EXPECT_EQ(first->workspace_bytes(), 1u);  // held, whatever the cache forgot
  const int before = made;
  ASSERT_TRUE(plans.Find(Shape(0)).ok());
  EXPECT_EQ(made, before + 1);
}

TEST(GemmPlans, AreFoundFromManyThreads) {
  int made = 0;
  GemmPlans plans(std::make_unique<CountingPlanner>(made));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&plans] {
      for (int64_t m = 0; m < 100; ++m) EXPECT_TRUE(plans.Find(Shape(m)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 100);
}

}  // namespace
}  // namespace runahead
