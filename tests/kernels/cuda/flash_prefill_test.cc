// FlashInfer's kernels on a GPU; on the emulation plain kernels stand for them, behind the same launches.
#include <functional>
#include <limits>
#include <memory>
#include <tuple>

#include "gtest/gtest.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/flash_case.h"

namespace runahead {
namespace {

FlashPrefillArgs ArgsOf(const FlashShape& shape, const GpuMatrix& q, const GpuMatrix& out, const GpuMatrix& kv,
                        int64_t length, int64_t dense_length = 0, int64_t window = 0) {
  return {.q = q.matrix(),
          .out = out.matrix(),
          .heads = shape.heads,
          .kv_heads = shape.kv_heads,
          .head_dim = shape.head_dim,
          .kv_dtype = shape.dtype,
          .scale = shape.scale(),
          .kv = kv.Row(0),
          .length = length,
          .dense_length = dense_length,
          .window = window};
}

class FlashPrefillTest : public GpuTest {
 protected:
  struct Case {
    int64_t queries;
    int64_t length;
    int64_t dense_length = 0;
    int64_t spare = 0;    // KV rows behind
    float behind = kNan;  // what is in them
  };

  std::unique_ptr<GpuMatrix> Run(const FlashShape& shape, const Case& problem, int64_t q_gap = 8) {
    const int64_t rows = std::max(problem.length, problem.dense_length) + problem.spare;
    const auto kv = KvRows(shape, kSeed, 0, rows, problem.length, problem.behind);
    GpuMatrix q(shape.dtype, problem.queries, shape.cols(), q_gap);
    q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, problem.length - problem.queries + r, c); });
    auto out = std::make_unique<GpuMatrix>(shape.dtype, problem.queries, shape.cols());
    const FlashPrefillArgs args = ArgsOf(shape, q, *out, *kv, problem.length, problem.dense_length);
    EXPECT_EQ(LaunchFlashPrefill(args, nullptr), cudaSuccess);
    out->Download();
    return out;
  }

  void ExpectReference(const FlashShape& shape, const Case& problem) {
    SCOPED_TRACE(testing::Message() << Name(shape) << ", queries " << problem.queries << ", length " << problem.length
                                    << ", dense length " << problem.dense_length);
    const auto out = Run(shape, problem);
    const FlashReference reference(shape, kSeed, problem.length);
    for (int64_t i = 0; i < problem.queries && !HasFatalFailure(); ++i) {
      reference.Expect(problem.length - problem.queries + i, *out, i);
    }
  }

  static constexpr uint32_t kSeed = 5;
};

TEST_F(FlashPrefillTest, MatchesTheReferenceForEveryShape) {
  for (const FlashShape& shape : AllShapes()) {
    for (const Case& problem : {Case{1, 1}, Case{5, 37}, Case{70, 70}, Case{29, 300}}) {
      ExpectReference(shape, problem);
      if (HasFatalFailure()) return;
    }
  }
}

// As many as several tiles of queries and of KV, and the first and last lengths of a tile.
TEST_F(FlashPrefillTest, MatchesTheReferenceAroundTileBorders) {
  for (const int head_dim : {64, 128}) {
    FlashShape shape;
    shape.head_dim = head_dim;
    for (const int64_t queries : {63, 64, 65, 127, 129, 191, 193}) {
      ExpectReference(shape, {queries, queries});
      ExpectReference(shape, {queries, queries + 128});
      if (HasFatalFailure()) return;
    }
  }
}

// Parts of the queries, as where they are too many for one launch: each goes over no more KV than its first window.
TEST_F(FlashPrefillTest, WindowsAreCutInParts) {
  for (const FlashShape& shape : {FlashShape{4, 2, 64, DType::kF16}, FlashShape{3, 1, 64, DType::kBF16},
                                  FlashShape{4, 2, 128, DType::kBF16}, FlashShape{2, 1, 256, DType::kF16}}) {
    for (const auto& [queries, length, window] :
         {std::tuple(130, 130, 1), std::tuple(130, 130, 64), std::tuple(29, 300, 20), std::tuple(60, 300, 129)}) {
      SCOPED_TRACE(testing::Message() << Name(shape) << ", window " << window);
      const int64_t first = length - queries;
      const auto kv = KvRows(shape, kSeed, 0, length, length, kNan);
      GpuMatrix q(shape.dtype, queries, shape.cols()), out(shape.dtype, queries, shape.cols());
      q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, first + r, c); });
      for (const FlashPrefillArgs& part : FlashPrefillParts(ArgsOf(shape, q, out, *kv, length, 0, window), 50)) {
        EXPECT_LE(part.length, part.q.rows + window - 1);
        ASSERT_EQ(LaunchFlashPrefill(part, nullptr), cudaSuccess);
      }
      out.Download();
      const FlashReference reference(shape, kSeed, length, window);
      for (int64_t i = 0; i < queries && !HasFatalFailure(); ++i) reference.Expect(first + i, out, i);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(FlashPrefillTest, ALaunchWithAWindowTakesAQuarterOfItAtMost) {
  FlashPrefillArgs args;
  args.q.stride = args.out.stride = 64;
  args.window = 100;
  EXPECT_EQ(MostFlashQueries(args), 1024);
  args.window = 32768;
  EXPECT_EQ(MostFlashQueries(args), 8192);
}

TEST_F(FlashPrefillTest, WhatLiesBehindTheLastRowDoesNotMatter) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128, 256}) {
      const FlashShape shape = {4, 2, head_dim, dtype};
      ExpectReference(shape, {40, 77, 0, 200});
      ExpectReference(shape, {40, 77, 0, 200, std::numeric_limits<float>::infinity()});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(FlashPrefillTest, TheDenseRectangleGivesTheSame) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128, 256}) {
      const FlashShape shape = {6, 2, head_dim, dtype};
      for (const Case& problem :
           {Case{40, 40, 40}, Case{33, 90, 90}, Case{33, 90, 313, 0, 9.0f}, Case{130, 130, 257, 50, -9.0f}}) {
        ExpectReference(shape, problem);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(FlashPrefillTest, AgreesWithThePlainKernel) {
  const FlashShape shape = {9, 3, 64, DType::kF16};
  const auto out = Run(shape, {40, 150});
  const auto kv = KvRows(shape, kSeed, 0, 150, 150, 0);
  GpuMatrix q(shape.dtype, 40, shape.cols()), plain(shape.dtype, 40, shape.cols());
  q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, 110 + r, c); });
  const GpuArray<AttentionItem> items(std::vector<AttentionItem>{{.queries = 40, .length = 150}});
  const GpuArray<int64_t> pages(std::vector<int64_t>{0});
  const AttentionArgs args{.q = q.matrix(),
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .kv_dtype = shape.dtype,
                           .scale = shape.scale(),
                           .layer = kv->Row(0),
                           .pages = pages.data(),
                           .page_tokens = 256};
  ASSERT_EQ(LaunchPlainAttention(args, items.data(), 1, 40, plain.matrix(), nullptr), cudaSuccess);
  plain.Download();
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t c = 0; c < shape.cols(); ++c) ASSERT_NEAR(out->at(r, c), plain.at(r, c), 2e-3) << r << " " << c;
  }
}

// More elements than a kernel counts cannot be had in a test; its parts can.
TEST_F(FlashPrefillTest, PartsOfTheQueriesGiveWhatTheWholeGives) {
  const FlashShape shape;
  for (const int64_t dense_length : {0, 77}) {
    const auto kv = KvRows(shape, kSeed, 0, 77, 77, 9.0f);
    GpuMatrix q(shape.dtype, 50, shape.cols(), 8), out(shape.dtype, 50, shape.cols());
    q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, 27 + r, c); });
    const std::vector<FlashPrefillArgs> parts = FlashPrefillParts(ArgsOf(shape, q, out, *kv, 77, dense_length), 33);
    EXPECT_EQ(parts.size(), 2u);
    for (const FlashPrefillArgs& part : parts) EXPECT_EQ(LaunchFlashPrefill(part, nullptr), cudaSuccess);
    out.Download();
    const FlashReference reference(shape, kSeed, 77);
    for (int64_t i = 0; i < 50 && !HasFatalFailure(); ++i) reference.Expect(27 + i, out, i);
  }
}

TEST_F(FlashPrefillTest, ALaunchCountsItsElementsIn31Bits) {
  FlashPrefillArgs args;
  args.q.stride = 6 * 64 * 128;
  args.out.stride = 64 * 128;
  EXPECT_EQ(MostFlashQueries(args), 43690);
  args.q.stride = int64_t{1} << 31;
  EXPECT_EQ(MostFlashQueries(args), 0);
}

TEST_F(FlashPrefillTest, TakesMoreQueriesThanOneLaunchCounts) {
  const FlashShape shape;
  const GpuMatrix q(shape.dtype, 1, shape.cols()), kv(shape.dtype, 1, shape.kv_cols());
  FlashPrefillArgs args = ArgsOf(shape, q, q, kv, 1 << 29);
  args.q.rows = args.out.rows = 1 << 29;
  EXPECT_TRUE(FlashPrefillTakes(args));
  int64_t queries = 0;
  for (const FlashPrefillArgs& part : FlashPrefillParts(args, MostFlashQueries(args))) {
    EXPECT_LT(part.q.rows * part.q.stride, int64_t{1} << 31);
    queries += part.q.rows;
  }
  EXPECT_EQ(queries, 1 << 29);
}

TEST_F(FlashPrefillTest, RefusesWhatItDoesNotTake) {
  const FlashShape shape;
  const GpuMatrix q(shape.dtype, 8, shape.cols()), out(shape.dtype, 8, shape.cols());
  const GpuMatrix kv(shape.dtype, 20, shape.kv_cols());
  const FlashPrefillArgs good = ArgsOf(shape, q, out, kv, 20);
  const auto refused = [&](const std::function<void(FlashPrefillArgs&)>& change) {
    FlashPrefillArgs args = good;
    change(args);
    return !FlashPrefillTakes(args) && LaunchFlashPrefill(args, nullptr) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(FlashPrefillTakes(good));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.q.dtype = DType::kF32; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.kv_dtype = DType::kF16; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.head_dim = 96; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.kv_heads = 3; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.out.stride += 8; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.q.stride += 1; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.kv += 2; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.length = 7; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.q.rows = 0; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.window = -1; }));
  EXPECT_TRUE(refused([](FlashPrefillArgs& args) { args.window = args.dense_length = 20; }));
}

}  // namespace
}  // namespace runahead
