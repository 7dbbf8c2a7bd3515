// FlashInfer's kernels on a GPU; on the emulation plain kernels stand for them, behind the same plan, launch and merge.
#include "kernels/cuda/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  DType dtype = DType::kBF16;

  int64_t cols() const { return static_cast<int64_t>(heads) * head_dim; }
  int64_t kv_cols() const { return 2 * static_cast<int64_t>(kv_heads) * head_dim; }
  int64_t kv_row_bytes() const { return kv_cols() * 2; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

// Uniform in [-1, 1), a function of what it is for.
float RandomValue(uint32_t seed, int64_t row, int64_t col) {
  auto bits = static_cast<uint32_t>(seed * 0x9e3779b9u + row * 0x85ebca6bu + col * 0xc2b2ae35u);
  for (const int shift : {16, 15, 13}) bits = (bits ^ (bits >> shift)) * 0x2c1b3c6du;
  return static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;
}
float Query(uint32_t seed, int64_t position, int64_t col) {
  return 3 * RandomValue(seed, position, col);
}

// KV rows [first, end) of a sequence; from `length` on, what is in memory by chance.
std::unique_ptr<GpuMatrix> KvRows(const Shape& shape, uint32_t seed, int64_t first, int64_t end, int64_t length,
                                  float behind) {
  auto rows = std::make_unique<GpuMatrix>(shape.dtype, end - first, shape.kv_cols());
  rows->Upload(
      [&](int64_t r, int64_t c) { return first + r < length ? RandomValue(seed + 1000, first + r, c) : behind; });
  return rows;
}

// What the queries of a sequence made of `seed` come to, in double.
class Reference {
 public:
  Reference(const Shape& shape, uint32_t seed, int64_t length) : shape_(shape), seed_(seed) {
    for (int64_t p = 0; p < length; ++p) {
      for (int64_t c = 0; c < shape.kv_cols(); ++c) {
        kv_.push_back(Rounded(shape.dtype, RandomValue(seed + 1000, p, c)));
      }
    }
  }

  // Compares the query at `position`. Weights and values are rounded to the dtype on the way, and so is the result.
  void Expect(int64_t position, const GpuMatrix& out, int64_t row) const {
    for (int64_t head = 0; head < shape_.heads; ++head) {
      const std::vector<double> weights = Weights(position, head);
      const float* values = Kv(0, shape_.kv_heads + KvHead(head));
      for (int64_t d = 0; d < shape_.head_dim; ++d) {
        double want = 0, magnitude = 0;
        for (int64_t p = 0; p <= position; ++p) {
          const double value = weights[p] * values[p * shape_.kv_cols() + d];
          want += value;
          magnitude += std::fabs(value);
        }
        ASSERT_NEAR(out.at(row, head * shape_.head_dim + d), want, 2 * Epsilon(shape_.dtype) * magnitude + 1e-5)
            << "position " << position << ", head " << head << ", element " << d;
      }
    }
  }

 private:
  int64_t KvHead(int64_t head) const { return head / (shape_.heads / shape_.kv_heads); }
  const float* Kv(int64_t position, int64_t head) const {
    return &kv_[position * shape_.kv_cols() + head * shape_.head_dim];
  }
  std::vector<double> Weights(int64_t position, int64_t head) const {
    std::vector<float> q;
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      q.push_back(Rounded(shape_.dtype, Query(seed_, position, head * shape_.head_dim + d)));
    }
    std::vector<double> weights;
    for (int64_t p = 0; p <= position; ++p) {
      weights.push_back(std::inner_product(q.begin(), q.end(), Kv(p, KvHead(head)), 0.0) * shape_.scale());
    }
    const double max = *std::max_element(weights.begin(), weights.end());
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - max);
    for (double& weight : weights) weight /= sum;
    return weights;
  }

  const Shape shape_;
  const uint32_t seed_;
  std::vector<float> kv_;
};

std::vector<Shape> AllShapes() {
  std::vector<Shape> shapes;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128, 256}) {
      for (const auto& [heads, kv_heads] : {std::pair(3, 3), std::pair(9, 3), std::pair(8, 2), std::pair(8, 1)}) {
        shapes.push_back({heads, kv_heads, head_dim, dtype});
      }
    }
  }
  return shapes;
}

std::string Name(const Shape& shape) {
  return std::string(DTypeName(shape.dtype)) + ", " + std::to_string(shape.heads) + " heads, " +
         std::to_string(shape.kv_heads) + " KV heads of " + std::to_string(shape.head_dim);
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

  std::unique_ptr<GpuMatrix> Run(const Shape& shape, const Case& problem, int64_t q_gap = 8) {
    const int64_t rows = std::max(problem.length, problem.dense_length) + problem.spare;
    const auto kv = KvRows(shape, kSeed, 0, rows, problem.length, problem.behind);
    GpuMatrix q(shape.dtype, problem.queries, shape.cols(), q_gap);
    q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, problem.length - problem.queries + r, c); });
    auto out = std::make_unique<GpuMatrix>(shape.dtype, problem.queries, shape.cols());
    EXPECT_EQ(LaunchFlashPrefill({.q = q.matrix(),
                                  .out = out->matrix(),
                                  .heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.head_dim,
                                  .kv_dtype = shape.dtype,
                                  .scale = shape.scale(),
                                  .kv = kv->Row(0),
                                  .length = problem.length,
                                  .dense_length = problem.dense_length},
                                 nullptr),
              cudaSuccess);
    out->Download();
    return out;
  }

  void ExpectReference(const Shape& shape, const Case& problem) {
    SCOPED_TRACE(testing::Message() << Name(shape) << ", queries " << problem.queries << ", length " << problem.length
                                    << ", dense length " << problem.dense_length);
    const auto out = Run(shape, problem);
    const Reference reference(shape, kSeed, problem.length);
    for (int64_t i = 0; i < problem.queries && !HasFatalFailure(); ++i) {
      reference.Expect(problem.length - problem.queries + i, *out, i);
    }
  }

  static constexpr uint32_t kSeed = 5;
};

TEST_F(FlashPrefillTest, MatchesTheReferenceForEveryShape) {
  for (const Shape& shape : AllShapes()) {
    for (const Case& problem : {Case{1, 1}, Case{5, 37}, Case{70, 70}, Case{29, 300}}) {
      ExpectReference(shape, problem);
      if (HasFatalFailure()) return;
    }
  }
}

// As many as several tiles of queries and of KV, and the first and last lengths of a tile.
TEST_F(FlashPrefillTest, MatchesTheReferenceAroundTileBorders) {
  for (const int head_dim : {64, 128}) {
    Shape shape;
    shape.head_dim = head_dim;
    for (const int64_t queries : {63, 64, 65, 127, 129, 191, 193}) {
      ExpectReference(shape, {queries, queries});
      ExpectReference(shape, {queries, queries + 128});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(FlashPrefillTest, WhatLiesBehindTheLastRowDoesNotMatter) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128, 256}) {
      const Shape shape = {4, 2, head_dim, dtype};
      ExpectReference(shape, {40, 77, 0, 200});
      ExpectReference(shape, {40, 77, 0, 200, std::numeric_limits<float>::infinity()});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(FlashPrefillTest, TheDenseRectangleGivesTheSame) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128, 256}) {
      const Shape shape = {6, 2, head_dim, dtype};
      for (const Case& problem :
           {Case{40, 40, 40}, Case{33, 90, 90}, Case{33, 90, 313, 0, 9.0f}, Case{130, 130, 257, 50, -9.0f}}) {
        ExpectReference(shape, problem);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(FlashPrefillTest, AgreesWithThePlainKernel) {
  const Shape shape = {9, 3, 64, DType::kF16};
  const auto out = Run(shape, {40, 150});
  const auto kv = KvRows(shape, kSeed, 0, 150, 150, 0);
  GpuMatrix q(shape.dtype, 40, shape.cols()), plain(shape.dtype, 40, shape.cols());
  q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, 110 + r, c); });
  const GpuArray<AttentionItem> items(
      {{.query_row = 0, .queries = 40, .length = 150, .first_span = 0, .span_count = 1}});
  const GpuArray<AttentionSpan> spans({{.rows = kv->Row(0), .first = 0, .tokens = 150}});
  ASSERT_EQ(LaunchPlainAttention({.q = q.matrix(),
                                  .out = plain.matrix(),
                                  .heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.head_dim,
                                  .kv_dtype = shape.dtype,
                                  .scale = shape.scale(),
                                  .items = items.data(),
                                  .spans = spans.data(),
                                  .item_count = 1,
                                  .most_queries = 40},
                                 nullptr),
            cudaSuccess);
  plain.Download();
  for (int64_t r = 0; r < 40; ++r) {
    for (int64_t c = 0; c < shape.cols(); ++c) ASSERT_NEAR(out->at(r, c), plain.at(r, c), 2e-3) << r << " " << c;
  }
}

// More elements than a kernel counts cannot be had in a test; its parts can.
TEST_F(FlashPrefillTest, PartsOfTheQueriesGiveWhatTheWholeGives) {
  const Shape shape;
  for (const int64_t dense_length : {0, 77}) {
    const auto kv = KvRows(shape, kSeed, 0, 77, 77, 9.0f);
    GpuMatrix q(shape.dtype, 50, shape.cols(), 8), out(shape.dtype, 50, shape.cols());
    q.Upload([&](int64_t r, int64_t c) { return Query(kSeed, 27 + r, c); });
    const FlashPrefillArgs all = {.q = q.matrix(),
                                  .out = out.matrix(),
                                  .heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.head_dim,
                                  .kv_dtype = shape.dtype,
                                  .scale = shape.scale(),
                                  .kv = kv->Row(0),
                                  .length = 77,
                                  .dense_length = dense_length};
    const std::vector<FlashPrefillArgs> parts = FlashPrefillParts(all, 33);
    EXPECT_EQ(parts.size(), 2u);
    for (const FlashPrefillArgs& part : parts) EXPECT_EQ(LaunchFlashPrefill(part, nullptr), cudaSuccess);
    out.Download();
    const Reference reference(shape, kSeed, 77);
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
  const Shape shape;
  const GpuMatrix q(shape.dtype, 1, shape.cols()), kv(shape.dtype, 1, shape.kv_cols());
  FlashPrefillArgs args = {.q = q.matrix(),
                           .out = q.matrix(),
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .kv_dtype = shape.dtype,
                           .kv = kv.Row(0),
                           .length = 1 << 29};
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
  const Shape shape;
  const GpuMatrix q(shape.dtype, 8, shape.cols()), out(shape.dtype, 8, shape.cols());
  const GpuMatrix kv(shape.dtype, 20, shape.kv_cols());
  const FlashPrefillArgs good = {.q = q.matrix(),
                                 .out = out.matrix(),
                                 .heads = shape.heads,
                                 .kv_heads = shape.kv_heads,
                                 .head_dim = shape.head_dim,
                                 .kv_dtype = shape.dtype,
                                 .kv = kv.Row(0),
                                 .length = 20};
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
}

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
    Batch(const Shape& shape, const std::vector<Sequence>& sequences)
        : q(shape.dtype, Rows(sequences), shape.cols(), 16), out(shape.dtype, Rows(sequences), shape.cols(), 8) {
      for (size_t s = 0; s < sequences.size(); ++s) Add(shape, sequences[s], RowOf(sequences, s));
      q.Upload();
      plan = PlanFlashDecode(planned, shape.kv_row_bytes());
    }
    static int64_t Rows(const std::vector<Sequence>& sequences) { return 2 * static_cast<int64_t>(sequences.size()); }
    static int64_t RowOf(const std::vector<Sequence>& sequences, size_t s) { return Rows(sequences) - 1 - 2 * s; }

    void Add(const Shape& shape, const Sequence& sequence, int64_t row) {
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

  static FlashDecodeArgs ArgsOf(const Shape& shape, const Batch& batch) {
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

  std::unique_ptr<Batch> Run(const Shape& shape, const std::vector<Sequence>& sequences) {
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

  void ExpectReference(const Shape& shape, const std::vector<Sequence>& sequences) {
    SCOPED_TRACE(Name(shape));
    const auto batch = Run(shape, sequences);
    for (size_t s = 0; s < sequences.size() && !HasFatalFailure(); ++s) {
      const int64_t row = Batch::RowOf(sequences, s);
      Reference(shape, sequences[s].seed, sequences[s].length).Expect(sequences[s].length - 1, batch->out, row);
      ASSERT_TRUE(std::isnan(batch->out.at(row - 1, 0))) << "a row of nobody";
    }
  }
};

TEST_F(FlashDecodeTest, MatchesTheReferenceForEveryShape) {
  for (const Shape& shape : AllShapes()) {
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
  const Shape shape = {6, 2, 64, DType::kF16};
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
  for (const Shape& shape : AllShapes()) {
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
  const Shape shape = {4, 2, 64, DType::kF16};
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
    Reference(shape, static_cast<uint32_t>(s + 1), sequence.length)
        .Expect(sequence.length - 1, after.out, sequence.query_row);
  }
  EXPECT_EQ(cudaGraphExecDestroy(recorded), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(FlashDecodeTest, RefusesWhatItDoesNotTake) {
  const Shape shape;
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
