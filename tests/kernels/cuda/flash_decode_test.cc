// FlashInfer's kernels on a GPU; on the emulation plain kernels stand for them, behind the same plan, launch and merge.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/flash_case.h"

namespace runahead {
namespace {

// A sequence of the batch: its KV is cut at `cuts`, each part in memory of its own, and has `spare` rows behind.
struct Sequence {
  int64_t length;
  std::vector<int64_t> cuts;
  uint32_t seed = 1;
  int64_t spare = 0;
};

class FlashDecodeTest : public GpuTest {
 protected:
  // A launch over sequences, whose rows lie in reverse order with rows of nobody between them.
  struct Batch {
    Batch(const FlashShape& shape, const std::vector<Sequence>& sequences)
        : q(shape.dtype, Rows(sequences), shape.cols(), 16), out(shape.dtype, Rows(sequences), shape.cols(), 8) {
      for (size_t s = 0; s < sequences.size(); ++s) Add(shape, sequences[s], RowOf(sequences, s));
      q.Upload();
      plan = PlanFlashDecode(planned, shape.kv_row_bytes());
    }
    static int64_t Rows(const std::vector<Sequence>& sequences) { return 2 * static_cast<int64_t>(sequences.size()); }
    static int64_t RowOf(const std::vector<Sequence>& sequences, size_t s) { return Rows(sequences) - 1 - 2 * s; }

    void Add(const FlashShape& shape, const Sequence& sequence, int64_t row) {
      FlashDecodeSequence& decode = planned.emplace_back();
      decode = {row, sequence.length, {}};
      for (int64_t c = 0; c < shape.cols(); ++c) q.set(row, c, Query(sequence.seed, sequence.length - 1, c));
      std::vector<int64_t> ends = sequence.cuts;
      ends.push_back(sequence.length + sequence.spare);
      int64_t first = 0;
      for (const int64_t end : ends) {
        kv.push_back(KvRows(shape, sequence.seed, first, end, sequence.length, kNan));
        decode.spans.push_back({kv.back()->Row(0), end - first});
        first = end;
      }
      EXPECT_TRUE(FlashDecodeTakes(decode));
    }

    GpuMatrix q, out;
    std::vector<std::unique_ptr<GpuMatrix>> kv;
    std::vector<FlashDecodeSequence> planned;
    FlashDecodePlan plan;
  };

  static FlashDecodeArgs ArgsOf(const FlashShape& shape, const Batch& batch) {
    return {.q = batch.q.matrix(),
            .out = batch.out.matrix(),
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .kv_dtype = shape.dtype,
            .scale = shape.scale(),
            .row_count = static_cast<int64_t>(batch.plan.rows.size()),
            .piece_count = static_cast<int64_t>(batch.plan.pieces.size()),
            .page_tokens = batch.plan.page_tokens};
  }

  std::unique_ptr<Batch> Run(const FlashShape& shape, const std::vector<Sequence>& sequences) {
    auto batch = std::make_unique<Batch>(shape, sequences);
    FlashDecodeArgs args = ArgsOf(shape, *batch);
    const GpuArray<FlashDecodeRow> rows(batch->plan.rows);
    const GpuArray<FlashDecodePiece> pieces(batch->plan.pieces);
    const GpuArray<int64_t> pages(batch->plan.pages);
    const size_t bytes = FlashDecodeWorkspaceBytes(args.piece_count, shape.heads, shape.head_dim);
    const GpuArray<uint8_t> workspace(std::vector<uint8_t>(bytes, 0xff));
    args.rows = rows.data();
    args.pieces = pieces.data();
    args.pages = pages.data();
    args.workspace = reinterpret_cast<std::byte*>(workspace.data());
    EXPECT_EQ(LaunchFlashDecode(args, nullptr), cudaSuccess);
    batch->out.Download();
    return batch;
  }

  void ExpectReference(const FlashShape& shape, const std::vector<Sequence>& sequences) {
    SCOPED_TRACE(Name(shape));
    const auto batch = Run(shape, sequences);
    for (size_t s = 0; s < sequences.size() && !HasFatalFailure(); ++s) {
      const int64_t row = Batch::RowOf(sequences, s);
      FlashReference(shape, sequences[s].seed, sequences[s].length).Expect(sequences[s].length - 1, batch->out, row);
      ASSERT_TRUE(std::isnan(batch->out.at(row - 1, 0))) << "a row of nobody";
    }
  }
};

TEST_F(FlashDecodeTest, MatchesTheReferenceForEveryShape) {
  for (const FlashShape& shape : AllShapes()) {
    ExpectReference(shape, {{1, {}}, {70, {}, 2}, {256, {}, 3}, {300, {256}, 4}});
    if (HasFatalFailure()) return;
  }
}

TEST_F(FlashDecodeTest, MoreHeadsThanATileShareAKvHead) {
  for (const int group : {5, 7, 16, 20, 33}) ExpectReference({group, 1, 64, DType::kBF16}, {{300, {}}, {9, {}, 2}});
}

TEST_F(FlashDecodeTest, LengthsAroundTileAndPieceBorders) {
  std::vector<Sequence> sequences;
  for (const int64_t length : {15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 511, 512, 513, 777}) {
    sequences.push_back({length, {}, static_cast<uint32_t>(length)});
  }
  ExpectReference({4, 2, 64, DType::kF16}, sequences);
  ExpectReference({4, 2, 128, DType::kBF16}, sequences);
}

TEST_F(FlashDecodeTest, SpansLieAnywhereAndAreCutAnywhere) {
  const FlashShape shape = {6, 2, 64, DType::kF16};
  ExpectReference(shape, {{700, {256, 512}}, {256, {}, 2}, {300, {256}, 3}});
  ExpectReference(shape, {{700, {64, 256, 320}}, {40, {16, 32}, 2}});
  ExpectReference(shape, {{700, {1, 255, 256, 699}}, {40, {3, 3, 32}, 2}});
}

// Its pieces are longer than the smallest.
TEST_F(FlashDecodeTest, ALongSequence) {
  ExpectReference({2, 1, 64, DType::kF16}, {{17'000, {4096, 16'128}}, {30, {}, 2}});
}

TEST_F(FlashDecodeTest, WhatLiesBehindTheLastRowDoesNotMatter) {
  for (const int head_dim : {64, 128, 256}) {
    ExpectReference({4, 2, head_dim, DType::kBF16}, {{77, {}, 1, 200}, {257, {256}, 2, 300}, {128, {}, 3, 1}});
  }
}

TEST_F(FlashDecodeTest, BitwiseTheSameAloneAndInAnyBatch) {
  for (const FlashShape& shape : AllShapes()) {
    const auto alone = Run(shape, {{600, {}, 9}});
    const auto batched =
        Run(shape, {{1, {}, 2}, {40, {7}, 3}, {600, {5, 256, 301}, 9, 33}, {256, {}, 4}, {1'000, {256}, 5}});
    const int64_t row = batched->planned[2].query_row, alone_row = alone->planned[0].query_row;
    for (int64_t c = 0; c < shape.cols(); ++c) {
      ASSERT_EQ(batched->out.bits(row, c), alone->out.bits(alone_row, c)) << Name(shape) << ", " << c;
    }
  }
}

// A recorded launch reads the arrays when it runs: sequences may have grown since, as long as the pieces have room.
TEST_F(FlashDecodeTest, ARecordedLaunchServesSequencesThatGrow) {
  const FlashShape shape = {4, 2, 64, DType::kF16};
  const Batch before(shape, {{300, {}, 1}, {500, {}, 2}, {1'200, {}, 3}, {900, {256}, 4}});
  const Batch after(shape, {{301, {}, 1}, {600, {}, 2}, {1'280, {}, 3}, {1'024, {256}, 4}});
  ASSERT_EQ(before.plan.pieces.size(), after.plan.pieces.size());
  ASSERT_NE(before.plan.pages.size(), after.plan.pages.size());
  const GpuArray<FlashDecodeRow> rows(before.plan.rows);
  const GpuArray<FlashDecodePiece> pieces(before.plan.pieces);
  const GpuArray<int64_t> pages(std::vector<int64_t>(64, 0));
  FlashDecodeArgs args = ArgsOf(shape, after);
  GpuMemory workspace(FlashDecodeWorkspaceBytes(args.piece_count, shape.heads, shape.head_dim));
  args.rows = rows.data();
  args.pieces = pieces.data();
  args.pages = pages.data();
  args.workspace = workspace.data();

  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(LaunchFlashDecode(args, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t recorded;
  ASSERT_EQ(cudaGraphInstantiate(&recorded, graph, 0), cudaSuccess);

  const auto write = [](auto* to, const auto& values) {
    EXPECT_EQ(cudaMemcpy(to, values.data(), values.size() * sizeof(*to), cudaMemcpyHostToDevice), cudaSuccess);
  };
  write(rows.data(), after.plan.rows);
  write(pieces.data(), after.plan.pieces);
  write(pages.data(), after.plan.pages);
  ASSERT_EQ(cudaDeviceSynchronize(),
            cudaSuccess);  // the copies may be under way, and the graph's stream waits for none
  EXPECT_EQ(cudaGraphLaunch(recorded, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const_cast<GpuMatrix&>(after.out).Download();
  for (size_t s = 0; s < after.planned.size(); ++s) {
    const FlashDecodeSequence& sequence = after.planned[s];
    FlashReference(shape, static_cast<uint32_t>(s + 1), sequence.length)
        .Expect(sequence.length - 1, after.out, sequence.query_row);
  }
  EXPECT_EQ(cudaGraphExecDestroy(recorded), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(FlashDecodeTest, RefusesWhatItDoesNotTake) {
  const FlashShape shape;
  const Batch batch(shape, {{300, {}}});
  FlashDecodeArgs args = ArgsOf(shape, batch);
  args.workspace = reinterpret_cast<std::byte*>(8);
  EXPECT_EQ(LaunchFlashDecode(args, nullptr), cudaErrorInvalidValue);
  args.workspace = nullptr;
  args.kv_dtype = DType::kF16;
  EXPECT_EQ(LaunchFlashDecode(args, nullptr), cudaErrorInvalidValue);
  args.kv_dtype = shape.dtype;
  args.row_count = 0;
  EXPECT_EQ(LaunchFlashDecode(args, nullptr), cudaSuccess) << "nothing to do";
}

}  // namespace
}  // namespace runahead
