// FlashInfer's kernels on a GPU; on the emulation plain kernels stand for them, behind the same plan, launch and merge.
#include <algorithm>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/flash_attention.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/flash_case.h"
#include "tests/kernels/cuda/gpu_paged_kv.h"

namespace runahead {
namespace {

struct Sequence {
  int64_t length;
  uint32_t seed = 1;
  int64_t queries = 1;
};

// A launch over sequences, whose queries and results have gaps between rows.
struct Batch {
  Batch(const FlashShape& of, const std::vector<Sequence>& all, int64_t page_tokens, int64_t partial_gap = 0,
        int64_t partial_offset = 0)
      : shape(of),
        sequences(all),
        q(of.dtype, RowsOf(all), of.cols(), 16),
        out(of.dtype, RowsOf(all), of.cols(), 8),
        kv(of.dtype, of.kv_cols(), ShuffledPages(page_tokens, SequencesOf(all), /*by_pieces=*/true),
           [&](size_t s, int64_t p, int64_t c) { return RandomValue(all[s].seed + 1000, p, c); }),
        partials(DType::kF32, kv.piece_count(), of.heads * (of.head_dim + 1), partial_gap, partial_offset),
        workspace(FlashPiecesWorkspaceBytes(Args(), kv.work(), partials.matrix())) {
    for (size_t s = 0; s < all.size(); ++s) {
      for (int64_t i = 0; i < all[s].queries; ++i) rows.push_back({s, all[s].length - all[s].queries + i});
    }
    q.Upload([&](int64_t row, int64_t col) { return Query(all[rows[row].sequence].seed, rows[row].position, col); });
  }
  static int64_t RowsOf(const std::vector<Sequence>& all) {
    int64_t rows = 0;
    for (const Sequence& one : all) rows += one.queries;
    return rows;
  }
  static std::vector<KvSequence> SequencesOf(const std::vector<Sequence>& all) {
    std::vector<KvSequence> sequences;
    for (const Sequence& one : all) {
      sequences.push_back({.queries = one.queries, .length = one.length, .end = one.length});
    }
    return sequences;
  }

  AttentionArgs Args(int64_t window = 0) const {
    return kv.Of({.q = q.matrix(),
                  .heads = shape.heads,
                  .kv_heads = shape.kv_heads,
                  .head_dim = shape.head_dim,
                  .kv_dtype = shape.dtype,
                  .scale = shape.scale(),
                  .window = window});
  }
  cudaError_t Launch(const AttentionArgs& args, const AttentionWork& work, const PieceRange* ranges,
                     cudaStream_t stream = nullptr) {
    const cudaError_t error = LaunchFlashPieces(args, work, partials.matrix(), workspace.data(), stream);
    return error != cudaSuccess ? error
                                : LaunchMergePieces(partials.matrix(), ranges, shape.heads, out.matrix(), stream);
  }
  void Run(int64_t window = 0) {
    EXPECT_EQ(Launch(Args(window), kv.work(), kv.ranges()), cudaSuccess);
    out.Download();
    partials.Download();
  }
  void ExpectReference(int64_t window = 0) const {
    for (size_t row = 0; row < rows.size() && !testing::Test::HasFatalFailure(); ++row) {
      const Sequence& of = sequences[rows[row].sequence];
      FlashReference(shape, of.seed, of.length, window).Expect(rows[row].position, out, static_cast<int64_t>(row));
    }
  }

  struct Row {
    size_t sequence;
    int64_t position;
  };

  const FlashShape shape;
  const std::vector<Sequence> sequences;
  std::vector<Row> rows;  // of q and out
  GpuMatrix q, out;
  GpuPagedKv kv;
  GpuMatrix partials;
  GpuMemory workspace;
};

class FlashDecodeTest : public GpuTest {
 protected:
  void ExpectReference(const FlashShape& shape, const std::vector<Sequence>& sequences, int64_t page_tokens = 256,
                       int64_t window = 0) {
    SCOPED_TRACE(testing::Message() << Name(shape) << ", pages of " << page_tokens << ", window " << window);
    Batch batch(shape, sequences, page_tokens);
    batch.Run(window);
    batch.ExpectReference(window);
  }
};

TEST_F(FlashDecodeTest, MatchesTheReferenceForEveryShape) {
  for (const FlashShape& shape : AllShapes()) {
    ExpectReference(shape, {{1}, {70, 2}, {256, 3}, {300, 4}});
    if (HasFatalFailure()) return;
  }
}

TEST_F(FlashDecodeTest, MoreHeadsThanATileShareAKvHead) {
  for (const int group : {5, 7, 16, 20, 33}) ExpectReference({group, 1, 64, DType::kBF16}, {{300}, {9, 2}});
}

TEST_F(FlashDecodeTest, LengthsAroundTileAndPieceBorders) {
  std::vector<Sequence> sequences;
  for (const int64_t length : {15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 257, 511, 512, 513, 777}) {
    sequences.push_back({length, static_cast<uint32_t>(length)});
  }
  ExpectReference({4, 2, 64, DType::kF16}, sequences);
  ExpectReference({4, 2, 128, DType::kBF16}, sequences);
}

TEST_F(FlashDecodeTest, PagesOfAnySizeLieAnywhere) {
  for (const int64_t page_tokens : {1, 16, 48, 64, 300, 512}) {
    ExpectReference({6, 2, 64, DType::kF16}, {{700}, {256, 2}, {300, 3}}, page_tokens);
  }
}

// Its pieces are longer than the smallest.
TEST_F(FlashDecodeTest, ALongSequence) {
  ExpectReference({2, 1, 64, DType::kF16}, {{17'000}, {30, 2}});
}

TEST_F(FlashDecodeTest, WindowsBeginAnywhere) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int64_t window : {1, 200, 255, 256, 521, 522, 776, 777}) {
      ExpectReference({20, 1, head_dim, DType::kBF16}, {{777}, {40, 6}}, 64, window);
    }
  }
  for (const int64_t window : {600, 17'000}) ExpectReference({2, 1, 64, DType::kF16}, {{20'000, 7}}, 256, window);
}

TEST_F(FlashDecodeTest, PiecesThatAWindowHidesAreEmptyAndNobodyElsesAreWritten) {
  const FlashShape shape = {18, 1, 64, DType::kBF16};
  Batch batch(shape, {{777}, {600, 2}}, 256);
  batch.Run(/*window=*/100);
  ASSERT_EQ(batch.kv.piece_count(), FlashDecodePieceRoom(4 + 3));
  const bool hidden[] = {true, true, false, false, true, false, false};
  for (int64_t piece = 0; piece < 7; ++piece) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      const float log = batch.partials.at(piece, shape.cols() + head);
      EXPECT_EQ(log == -INFINITY, hidden[piece]) << piece << ", " << head << ": " << log;
    }
  }
  for (int64_t piece = 7; piece < batch.kv.piece_count(); ++piece) {
    for (int64_t c = 0; c < batch.partials.cols(); ++c) ASSERT_TRUE(std::isnan(batch.partials.at(piece, c)));
  }
}

// Rows of partials with an odd number of floats, and with an even one from an even and from an odd float on, for the
// same pieces.
TEST_F(FlashDecodeTest, BitwiseTheSameWhereverPartialsLie) {
  const FlashShape shape = {9, 3, 64, DType::kBF16};
  Batch odd(shape, {{600}, {1'000, 2}}, 256), even(shape, {{600}, {1'000, 2}}, 256, 1),
      apart(shape, {{600}, {1'000, 2}}, 256, 1, 1);
  odd.Run();
  even.Run();
  apart.Run();
  for (int64_t piece = 0; piece < 7; ++piece) {
    for (int64_t c = 0; c < odd.partials.cols(); ++c) {
      ASSERT_EQ(odd.partials.bits(piece, c), even.partials.bits(piece, c)) << piece << ", " << c;
      ASSERT_EQ(apart.partials.bits(piece, c), even.partials.bits(piece, c)) << piece << ", " << c;
    }
  }
}

TEST_F(FlashDecodeTest, BitwiseTheSameAloneAndInAnyBatch) {
  for (const FlashShape& shape : AllShapes()) {
    for (const int64_t window : {0, 300}) {
      Batch alone(shape, {{600, 9}}, 256), batched(shape, {{1, 2}, {40, 3}, {600, 9}, {256, 4}, {1'000, 5}}, 16);
      alone.Run(window);
      batched.Run(window);
      for (int64_t c = 0; c < shape.cols(); ++c) {
        ASSERT_EQ(batched.out.bits(2, c), alone.out.bits(0, c)) << Name(shape) << ", " << c;
      }
    }
  }
}

// The queries of a sequence in the tiles of one block, or by themselves where the window begins inside a piece; with as
// many heads to a KV head as fill a tile and more.
TEST_F(FlashDecodeTest, QueriesOfASequenceAreBitwiseThoseOfOneEach) {
  for (const FlashShape& shape : {FlashShape{4, 4, 64, DType::kBF16}, FlashShape{6, 2, 128, DType::kF16},
                                  FlashShape{20, 1, 64, DType::kBF16}, FlashShape{5, 1, 256, DType::kBF16}}) {
    for (const int64_t window : {0, 300}) {
      SCOPED_TRACE(testing::Message() << Name(shape) << ", window " << window);
      Batch together(shape, {{40, 2}, {520, 9, 12}, {258, 4, 5}, {3, 5, 3}}, 16);
      ASSERT_GT(together.kv.plan().most_shared, 1);
      together.Run(window);
      together.ExpectReference(window);
      if (HasFatalFailure()) return;
      for (size_t row = 0; row < together.rows.size(); ++row) {
        const Sequence& of = together.sequences[together.rows[row].sequence];
        Batch alone(shape, {{together.rows[row].position + 1, of.seed}}, 256);
        alone.Run(window);
        for (int64_t c = 0; c < shape.cols(); ++c) {
          ASSERT_EQ(together.out.bits(static_cast<int64_t>(row), c), alone.out.bits(0, c)) << row << ", " << c;
        }
      }
    }
  }
}

// A recorded launch reads the arrays when it runs: sequences may have grown since, as long as the pieces have room.
TEST_F(FlashDecodeTest, ARecordedLaunchServesSequencesThatGrow) {
  const FlashShape shape = {4, 2, 64, DType::kF16};
  const Batch before(shape, {{300, 1}, {500, 2}, {1'200, 3}, {900, 4}}, 256);
  Batch after(shape, {{301, 1}, {600, 2}, {1'280, 3}, {1'024, 4}}, 256);
  ASSERT_EQ(before.kv.piece_count(), after.kv.piece_count());
  ASSERT_NE(before.kv.plan().pages.size(), after.kv.plan().pages.size());
  const GpuArray<PieceRange> ranges(before.kv.plan().ranges);
  const GpuArray<AttentionPiece> pieces(before.kv.plan().pieces);
  const GpuArray<PieceRun> runs(before.kv.plan().work);
  ASSERT_EQ(before.kv.plan().work.size(), after.kv.plan().work.size());
  const GpuArray<int64_t> pages(std::vector<int64_t>(64, 0));
  AttentionArgs args = after.Args();
  args.pages = pages.data();

  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(after.Launch(args, {pieces.data(), runs.data(), after.kv.work().count}, ranges.data(), stream),
            cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t recorded;
  ASSERT_EQ(cudaGraphInstantiate(&recorded, graph, 0), cudaSuccess);

  const auto write = [](auto* to, const auto& values) {
    EXPECT_EQ(cudaMemcpy(to, values.data(), values.size() * sizeof(*to), cudaMemcpyHostToDevice), cudaSuccess);
  };
  write(ranges.data(), after.kv.plan().ranges);
  write(pieces.data(), after.kv.plan().pieces);
  write(runs.data(), after.kv.plan().work);
  write(pages.data(), after.kv.plan().pages);
  ASSERT_EQ(cudaDeviceSynchronize(),
            cudaSuccess);  // the copies may be under way, and the graph's stream waits for none
  EXPECT_EQ(cudaGraphLaunch(recorded, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  after.out.Download();
  after.ExpectReference();
  EXPECT_EQ(cudaGraphExecDestroy(recorded), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(FlashDecodeTest, RefusesWhatItDoesNotTake) {
  Batch batch({}, {{300}}, 256);
  const auto launch = [&](const auto& change, int64_t count = 2) {
    AttentionArgs args = batch.Args();
    AttentionWork work = batch.kv.work();
    work.count = count;
    change(args);
    return LaunchFlashPieces(args, work, batch.partials.matrix(), nullptr, nullptr);
  };
  EXPECT_EQ(launch([](AttentionArgs& args) { args.kv_dtype = DType::kF16; }), cudaErrorInvalidValue);
  EXPECT_EQ(launch([](AttentionArgs& args) { args.soft_cap = 2; }), cudaErrorInvalidValue);
  EXPECT_EQ(launch([](AttentionArgs& args) { args.layer += 8; }), cudaErrorInvalidValue);
  EXPECT_EQ(launch([](AttentionArgs& args) { args.q.stride += 1; }), cudaErrorInvalidValue);
  EXPECT_EQ(launch([](AttentionArgs&) {}, 0), cudaSuccess) << "nothing to do";
}

}  // namespace
}  // namespace runahead
