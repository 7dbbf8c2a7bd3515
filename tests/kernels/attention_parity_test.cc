// Attention on every device: prompts in one op, decode steps by pieces and their merge.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "kernels/cpu/cpu_device.h"
#include "tests/kernels/op_parity.h"
#include "tests/kernels/paged_kv.h"

namespace runahead {
namespace {

// Softmax attention of one query over KV rows 0..visible-1 (f32 here, rounded to the KV dtype before), or the window's
// last of them.
std::vector<double> Attended(const float* q, const std::vector<float>& kv, int64_t visible, int64_t kv_head,
                             const AttentionShape& shape) {
  const int64_t dim = shape.head_dim, row = 2 * shape.kv_heads * dim;
  const int64_t begin = shape.window == 0 ? 0 : std::max<int64_t>(0, visible - shape.window);
  std::vector<double> weights(visible), out(dim);
  double top = -1e30, sum = 0;
  for (int64_t t = begin; t < visible; ++t) {
    for (int64_t d = 0; d < dim; ++d) weights[t] += static_cast<double>(q[d]) * kv[t * row + kv_head * dim + d];
    weights[t] *= shape.scale;
    if (shape.soft_cap > 0) weights[t] = shape.soft_cap * std::tanh(weights[t] / shape.soft_cap);
    top = std::max(top, weights[t]);
  }
  for (int64_t t = begin; t < visible; ++t) sum += weights[t] = std::exp(weights[t] - top);
  for (int64_t t = begin; t < visible; ++t) {
    for (int64_t d = 0; d < dim; ++d) out[d] += weights[t] / sum * kv[t * row + (shape.kv_heads + kv_head) * dim + d];
  }
  return out;
}

struct Prompt {
  int64_t queries, length, dense_length = 0;
};

class AttentionParity : public OpParity {
 protected:
  // What a layer has: sequences, their KV by position, and a query row each for as many as there are.
  struct Problem {
    AttentionShape shape;
    std::vector<KvSequence> sequences;  // that have all their positions
    std::vector<std::vector<float>> kv;
    std::vector<float> q;
    bool by_pieces = false;  // the layout: sequences may have several queries in a step
    int64_t row() const { return 2 * shape.kv_heads * shape.head_dim; }
    int64_t cols() const { return shape.heads * shape.head_dim; }
    int64_t rows() const { return static_cast<int64_t>(q.size()) / cols(); }
  };

  Problem MakeProblem(const AttentionShape& shape, const std::vector<Prompt>& batch) {
    Problem problem{.shape = shape, .sequences = {}, .kv = {}, .q = {}, .by_pieces = false};
    for (const auto& [queries, length, dense_length] : batch) {
      problem.sequences.push_back({queries, length, 0, 0, length, dense_length});
      problem.kv.push_back(Rounded(std::max(length, dense_length) * problem.row(), static_cast<uint32_t>(30 + length)));
      const std::vector<float> q = Rounded(queries * problem.cols(), static_cast<uint32_t>(90 + length));
      problem.q.insert(problem.q.end(), q.begin(), q.end());
    }
    return problem;
  }
  // A decode step.
  Problem MakeStep(const AttentionShape& shape, const std::vector<int64_t>& lengths) {
    std::vector<Prompt> batch;
    for (const int64_t length : lengths) batch.push_back({1, length});
    return MakeProblem(shape, batch);
  }
  // Rows of a decode step, several of a sequence.
  Problem MakeRows(const AttentionShape& shape, const std::vector<Prompt>& batch) {
    Problem problem = MakeProblem(shape, batch);
    problem.by_pieces = true;
    return problem;
  }
  // Query `query` of a sequence by itself, its first row of q at `row`.
  static Problem Alone(const Problem& problem, size_t sequence, int64_t query, int64_t row) {
    const KvSequence& of = problem.sequences[sequence];
    const int64_t length = of.length - of.queries + query + 1, cols = problem.cols();
    const std::vector<float>& kv = problem.kv[sequence];
    return {.shape = problem.shape,
            .sequences = {{.queries = 1, .length = length, .end = length}},
            .kv = {{kv.begin(), kv.begin() + length * problem.row()}},
            .q = {problem.q.begin() + (row + query) * cols, problem.q.begin() + (row + query + 1) * cols}};
  }
  void ExpectAsEachAlone(const Problem& problem, const std::vector<float>& got) {
    int64_t row = 0;
    for (size_t s = 0; s < problem.sequences.size(); row += problem.sequences[s++].queries) {
      for (int64_t i = 0; i < problem.sequences[s].queries; ++i) {
        const auto at = got.begin() + (row + i) * problem.cols();
        ASSERT_EQ(std::vector<float>(at, at + problem.cols()), Step(Alone(problem, s, i, row), 256))
            << "window " << problem.shape.window << ", sequence " << s << ", query " << i;
      }
    }
  }
  std::vector<float> Rounded(int64_t count, uint32_t seed) {
    std::vector<float> values = RandomFloats(count, seed, 2.0f);
    for (float& value : values) value = RoundTo(dtype(), value);
    return values;
  }

  struct Layer {
    std::shared_ptr<const KvTable> table;
    BufferRef kv;
  };
  // Of the ranges that `sequences` have. What windows hide from all queries is NaN.
  Layer NewLayer(const Problem& problem, std::vector<KvSequence> sequences, int64_t page_tokens) {
    return NewLayer(memory(), problem, std::move(sequences), page_tokens);
  }
  static Layer NewLayer(DeviceMemory& memory, const Problem& problem, std::vector<KvSequence> sequences,
                        int64_t page_tokens) {
    std::vector<std::vector<float>> kv = problem.kv;
    for (size_t i = 0; i < kv.size() && problem.shape.window > 0; ++i) {
      const KvSequence& of = sequences[i];
      const int64_t hidden = std::max<int64_t>(0, of.length - of.queries + 1 - problem.shape.window);
      std::fill_n(kv[i].begin(), hidden * problem.row(), kNan);
    }
    PagedKv paged = PageKv(std::move(sequences), kv, problem.row(), page_tokens);
    paged.layout.by_pieces = problem.by_pieces;
    const int64_t rows = static_cast<int64_t>(paged.rows.size()) / problem.row();
    const Tensor base = memory.NewTensor(paged.rows, rows, problem.shape.kv_dtype);
    auto table = memory.device().MakeKvTable(memory.stream(), std::move(paged.layout));
    EXPECT_TRUE(table.ok()) << table.status();
    return {*std::move(table), base.ref};
  }

  Tensor Queries(const Problem& problem) { return memory().NewTensor(problem.q, problem.rows(), dtype(), 8); }
  Tensor Partials(const Problem& problem, const KvTable& table) {
    const int64_t cols = problem.shape.heads * (problem.shape.head_dim + 1);
    return memory().NewTensor(std::vector<float>(table.pieces() * cols, kNan), table.pieces());
  }
  // A decode step whose layers hold positions apart: the pieces of each in turn, and one merge.
  std::vector<float> Step(const Problem& problem, const std::vector<Layer>& layers) {
    const Tensor in = Queries(problem), out = memory().Empty(problem.rows(), problem.cols(), dtype(), 8);
    const Tensor partials = Partials(problem, *layers[0].table);
    for (const Layer& layer : layers) {
      EXPECT_EQ(layer.table->pieces(), partials.rows);
      EXPECT_TRUE(device().AttendPieces(stream(), in, problem.shape, *layer.table, layer.kv, partials).ok());
    }
    EXPECT_TRUE(device().MergePieces(stream(), partials, problem.shape, *layers[0].table, out).ok());
    return memory().Read(out);
  }
  std::vector<float> Step(const Problem& problem, int64_t page_tokens) {
    return Step(problem, {NewLayer(problem, problem.sequences, page_tokens)});
  }
  // A GPU has kernels for rows without gaps between them.
  std::vector<float> Attend(const Problem& problem, int64_t page_tokens, int64_t gap = 0) {
    const Layer layer = NewLayer(problem, problem.sequences, page_tokens);
    const Tensor out = memory().Empty(problem.rows(), problem.cols(), dtype(), gap);
    EXPECT_TRUE(device().Attention(stream(), Queries(problem), problem.shape, *layer.table, layer.kv, out).ok());
    return memory().Read(out);
  }

  void ExpectReference(const Problem& problem, const std::vector<float>& got) {
    const AttentionShape& shape = problem.shape;
    // Shares of the softmax may be rounded to the dtype before they meet V.
    const double size = dtype() == DType::kF32 ? 4.0 : dtype() == DType::kBF16 ? 4000.0 : 1000.0;
    int64_t row = 0;
    for (size_t s = 0; s < problem.sequences.size(); ++s) {
      const auto& [queries, length, page, begin, end, dense] = problem.sequences[s];
      for (int64_t i = 0; i < queries * shape.heads; ++i) {
        const int64_t query = i / shape.heads, head = i % shape.heads;
        const int64_t at = (row + query) * problem.cols() + head * shape.head_dim;
        const std::vector<double> wanted = Attended(&problem.q[at], problem.kv[s], length - queries + query + 1,
                                                    head / (shape.heads / shape.kv_heads), shape);
        for (int64_t d = 0; d < shape.head_dim; ++d) {
          ASSERT_NEAR(got[at + d], wanted[d], Tolerance(dtype(), wanted[d], size))
              << "window " << shape.window << ", cap " << shape.soft_cap << ", head_dim " << shape.head_dim
              << ", sequence " << s << " of " << length << ", query " << query << ", head " << head;
        }
      }
      row += queries;
    }
  }

  AttentionShape Shape(int64_t heads, int64_t kv_heads, int64_t dim) {
    return {heads, kv_heads, dim, dtype(), 1.0f / std::sqrt(static_cast<float>(dim))};
  }
  // Borders of pieces and of pages, and what is long.
  static std::vector<int64_t> Lengths() {
    if (TestDeviceIsSlow()) return {1, 255, 256, 257, 600};
    return {1, 255, 256, 257, 1000, 4097};
  }
};

TEST_P(AttentionParity, Prompts) {
  struct {
    int64_t heads, kv_heads, dim;
  } const shapes[] = {{4, 4, 64}, {6, 2, 64}, {8, 1, 128}, {3, 3, 48}, {2, 1, 80}};
  const std::vector<std::vector<Prompt>> batches = {
      {{5, 5}, {1, 1}, {1, 33}, {7, 40}},  // one query among more
      {{70, 133}, {33, 33}},               // behind a prefix and not
      {{9, 20, 31}, {4, 4, 4}},            // the dense rectangle
  };
  for (const auto& [heads, kv_heads, dim] : shapes) {
    for (const std::vector<Prompt>& batch : batches) {
      const Problem problem = MakeProblem(Shape(heads, kv_heads, dim), batch);
      for (const auto& [page_tokens, gap] : {std::pair(0, 0), std::pair(3, 0), std::pair(0, 8)}) {
        ExpectReference(problem, Attend(problem, page_tokens, gap));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttentionParity, PromptsWithWindowsAndSoftCaps) {
  const bool slow = TestDeviceIsSlow();
  const std::vector<Prompt> prompts =
      slow ? std::vector<Prompt>{{5, 290}, {9, 9}, {2, 70}} : std::vector<Prompt>{{40, 300}, {33, 33}, {5, 140}};
  for (const int64_t dim : {64, 48}) {
    for (const int64_t window : slow ? std::vector<int64_t>{0, 20, 257} : std::vector<int64_t>{0, 1, 20, 257, 1000}) {
      for (const float soft_cap : {0.0f, 1.5f}) {
        AttentionShape shape = Shape(4, 2, dim);
        shape.window = window;
        shape.soft_cap = soft_cap;
        const Problem problem = MakeProblem(shape, prompts);
        ExpectReference(problem, Attend(problem, 0));
        ExpectReference(problem, Attend(problem, 64));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Of all queries the last alone, of all positions the first.
TEST_P(AttentionParity, AWindowMayHideOnePositionOfOneQuery) {
  AttentionShape shape = Shape(4, 2, 64);
  shape.window = 69;
  Problem problem = MakeProblem(shape, {{3, 70}});
  for (int64_t head = 0; head < 2; ++head) {  // so much that it would show
    std::fill_n(problem.kv[0].begin() + (2 + head) * 64, 64, 20.0f);
  }
  ExpectReference(problem, Attend(problem, 0));
  ExpectReference(problem, Attend(problem, 16));
}

TEST_P(AttentionParity, StepsOfEveryHeadLayoutInPagesOfAnySize) {
  struct {
    int64_t heads, kv_heads, dim;
  } const shapes[] = {{4, 4, 64}, {6, 2, 64}, {9, 3, 64}, {8, 1, 128}, {3, 3, 48}, {2, 1, 80}};
  for (const auto& [heads, kv_heads, dim] : shapes) {
    const Problem problem = MakeStep(Shape(heads, kv_heads, dim), Lengths());
    const std::vector<float> got = Step(problem, 256);
    ExpectReference(problem, got);
    if (HasFatalFailure()) return;
    for (const int64_t page_tokens : {0, 1, 16}) EXPECT_EQ(Step(problem, page_tokens), got) << page_tokens;
  }
}

TEST_P(AttentionParity, StepsWithWindowsAndSoftCaps) {
  for (const int64_t dim : {64, 48}) {
    const bool slow = TestDeviceIsSlow();
    for (const int64_t window : slow ? std::vector<int64_t>{20, 257} : std::vector<int64_t>{1, 20, 256, 257, 1000}) {
      for (const float soft_cap : {0.0f, 1.5f}) {
        AttentionShape shape = Shape(4, 2, dim);
        shape.window = window;
        shape.soft_cap = soft_cap;
        const Problem problem = MakeStep(shape, Lengths());
        ExpectReference(problem, Step(problem, 16));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(AttentionParity, SeveralQueriesOfASequenceAreBitwiseThoseOfOneEach) {
  const std::vector<Prompt> batch =
      TestDeviceIsSlow() ? std::vector<Prompt>{{3, 257}, {1, 40}, {2, 2}, {5, 300}}
                         : std::vector<Prompt>{{16, 264}, {1, 40}, {2, 2}, {5, 700}, {16, 16}, {20, 512}};
  for (const auto& [heads, kv_heads, dim] :
       {std::tuple(4, 4, 64), std::tuple(6, 2, 64), std::tuple(20, 1, 128), std::tuple(3, 3, 48)}) {
    for (const int64_t window : {0, 2, 257}) {
      AttentionShape shape = Shape(heads, kv_heads, dim);
      shape.window = window;
      shape.soft_cap = window == 2 ? 1.5f : 0.0f;
      const Problem problem = MakeRows(shape, batch);
      const std::vector<float> got = Step(problem, 16);
      ExpectReference(problem, got);
      ExpectAsEachAlone(problem, got);
      if (HasFatalFailure()) return;
      EXPECT_EQ(Step(problem, 256), got);
    }
  }
}

// Where the pieces of some are longer than those of others.
TEST_P(AttentionParity, QueriesOfASequenceKeepTheirOwnCuts) {
  if (TestDeviceIsSlow()) GTEST_SKIP() << "long sequences take long here";
  const Problem problem = MakeRows(Shape(4, 2, 64), {{6, 16'387}, {3, 32'769}});
  const std::vector<float> got = Step(problem, 256);
  ExpectAsEachAlone(problem, got);
}

// Tiers as below; queries lie on both sides of their border.
TEST_P(AttentionParity, SeveralQueriesOfASequenceMergeWhatLiesInSeveralTables) {
  const Problem problem = MakeRows(Shape(6, 2, 64), {{5, 514}, {2, 300}, {1, 100}});
  const std::vector<float> whole = Step(problem, 256);
  std::vector<KvSequence> old = problem.sequences, newest = old;
  old[0].end = newest[0].begin = 512;
  old[1].end = newest[1].begin = 256;
  old[2].end = 0;
  const Layer a = NewLayer(problem, old, 256), b = NewLayer(problem, newest, 16);
  EXPECT_EQ(Step(problem, {a, b}), whole);
  EXPECT_EQ(Step(problem, {b, a}), whole);
}

// Other sequences beside it, before it, behind it.
TEST_P(AttentionParity, ASequenceIsBitwiseTheSameInAnyBatch) {
  for (const int64_t window : {0, 300}) {
    for (const float soft_cap : {0.0f, 2.0f}) {
      AttentionShape shape = Shape(6, 2, 64);
      shape.window = window;
      shape.soft_cap = soft_cap;
      const std::vector<float> alone = Step(MakeStep(shape, {700}), 256);
      for (const std::vector<int64_t>& before : {std::vector<int64_t>{100}, {1, 300, 513, 20, 256, 600}}) {
        std::vector<int64_t> lengths = before;
        lengths.insert(lengths.end(), {700, 40});
        const std::vector<float> batch = Step(MakeStep(shape, lengths), 16);
        const auto at = batch.begin() + static_cast<int64_t>(before.size()) * 6 * 64;
        EXPECT_EQ(std::vector<float>(at, at + 6 * 64), alone) << "behind " << before.size();
      }
    }
  }
}

// Tiers: each table has other positions of the same sequences, in a base and in pages of its own.
TEST_P(AttentionParity, PiecesOfSeveralTablesMergeToTheSameBits) {
  for (const int64_t window : {0, 300}) {
    AttentionShape shape = Shape(6, 2, 64);
    shape.window = window;
    const Problem problem = MakeStep(shape, {1000, 100, 513});
    const std::vector<float> whole = Step(problem, 256);
    ExpectReference(problem, whole);
    // The first sequence lies in three tiers, the second in the newest one, the third in two.
    std::vector<KvSequence> old = problem.sequences, middle = old, newest = old;
    old[0].end = middle[0].begin = 256;
    middle[0].end = newest[0].begin = 768;
    old[1].end = middle[1].end = 0;
    old[2].end = middle[2].begin = 512;
    newest[2].begin = newest[2].end = 513;
    const Layer a = NewLayer(problem, old, 256), b = NewLayer(problem, middle, 16), c = NewLayer(problem, newest, 1);
    EXPECT_EQ(Step(problem, {a, b, c}), whole) << window;
    EXPECT_EQ(Step(problem, {c, a, b}), whole) << window;
  }
}

// A tier in which the host attends itself: what it made of its pieces, in f32, is merged with the device's own.
TEST_P(AttentionParity, PiecesThatTheHostMadeAreMergedByTheDevice) {
  auto opened = NewCpuDevice({});
  ASSERT_TRUE(opened.ok()) << opened.status();
  DeviceMemory host(*std::move(opened));
  Problem problem = MakeStep(Shape(6, 2, 64), {1000, 16'700, 100, 513});  // the second has pieces of 512
  std::vector<KvSequence> old = problem.sequences, newest = old;
  old[0].end = newest[0].begin = 256;
  old[1].end = newest[1].begin = 16'384;
  old[2].end = 0;
  newest[3].begin = 513;
  const Layer here = NewLayer(problem, newest, 16);
  Problem on_host = problem;
  on_host.shape.kv_dtype = DType::kF32;
  const Layer there = NewLayer(host, on_host, old, 256);

  const int64_t cols = problem.shape.heads * (problem.shape.head_dim + 1);
  const Tensor made = host.NewTensor(std::vector<float>(there.table->pieces() * cols, kNan), there.table->pieces());
  const Tensor q = host.NewTensor(problem.q, problem.rows());
  ASSERT_TRUE(host.device().AttendPieces(host.stream(), q, on_host.shape, *there.table, there.kv, made).ok());
  std::vector<float> rows = host.Read(made);
  ASSERT_GE(here.table->pieces(), there.table->pieces());
  rows.resize(here.table->pieces() * cols, kNan);

  const Tensor partials = memory().NewTensor(rows, here.table->pieces());
  const Tensor out = memory().Empty(problem.rows(), problem.cols(), dtype());
  ASSERT_TRUE(device().AttendPieces(stream(), Queries(problem), problem.shape, *here.table, here.kv, partials).ok());
  ASSERT_TRUE(device().MergePieces(stream(), partials, problem.shape, *here.table, out).ok());
  ExpectReference(problem, memory().Read(out));
}

// What another device, or another table, makes of the pieces that this one does not have must not be lost.
TEST_P(AttentionParity, PiecesOfOthersAreLeftAsTheyAre) {
  const Problem problem = MakeStep(Shape(6, 2, 64), {600, 300});
  std::vector<KvSequence> some = problem.sequences;
  some[0].begin = 512;
  some[1].end = 256;
  const Layer layer = NewLayer(problem, some, 256);
  const int64_t cols = 6 * 65, pieces = layer.table->pieces();
  ASSERT_GE(pieces, 5);
  const Tensor partials = memory().NewTensor(std::vector<float>(pieces * cols, 55.0f), pieces);
  ASSERT_TRUE(device().AttendPieces(stream(), Queries(problem), problem.shape, *layer.table, layer.kv, partials).ok());
  const std::vector<float> got = memory().Read(partials);
  for (const int64_t piece : {0, 1, 4}) {
    for (int64_t i = 0; i < cols; ++i) ASSERT_EQ(got[piece * cols + i], 55.0f) << piece;
  }
  for (const int64_t piece : {2, 3}) {
    for (int64_t i = 0; i < cols; ++i) ASSERT_NE(got[piece * cols + i], 55.0f) << piece;
  }
}

// The one format: what the host computes for a piece is what any device merges.
TEST_P(AttentionParity, APieceIsMeansThenLogarithms) {
  AttentionShape shape = Shape(4, 2, 64);
  shape.window = 300;
  const Problem problem = MakeStep(shape, {700});
  const Layer layer = NewLayer(problem, problem.sequences, 256);
  const Tensor partials = Partials(problem, *layer.table);
  ASSERT_TRUE(device().AttendPieces(stream(), Queries(problem), shape, *layer.table, layer.kv, partials).ok());
  const std::vector<float> got = memory().Read(partials);
  const double bound = dtype() == DType::kF32 ? 2e-5 : 0.05;
  for (int64_t piece = 0; piece < 3; ++piece) {
    const int64_t begin = std::max<int64_t>(400, piece * 256), end = std::min<int64_t>(700, (piece + 1) * 256);
    for (int64_t head = 0; head < 4; ++head) {
      const float log = got[piece * 4 * 65 + 4 * 64 + head];
      if (begin >= end) {
        EXPECT_EQ(log, -kInfinity) << "hidden";
        continue;
      }
      double sum = 0;
      std::vector<double> mean(64);
      for (int64_t t = begin; t < end; ++t) {
        const float* const k = &problem.kv[0][t * problem.row() + head / 2 * 64];
        double score = 0;
        for (int64_t d = 0; d < 64; ++d) score += static_cast<double>(problem.q[head * 64 + d]) * k[d];
        const double weight = std::exp(score * shape.scale);
        sum += weight;
        for (int64_t d = 0; d < 64; ++d) mean[d] += weight * k[2 * 64 + d];
      }
      EXPECT_NEAR(log, std::log2(sum), bound) << piece;
      for (int64_t d = 0; d < 64; ++d) EXPECT_NEAR(got[piece * 4 * 65 + head * 64 + d], mean[d] / sum, bound) << piece;
    }
  }
}

// Scores have no bound but the dtype's, so logarithms have none to speak of: shares are of the largest.
TEST_P(AttentionParity, PiecesOfAnyWeightAreMerged) {
  const Problem problem = MakeStep(Shape(2, 1, 64), {700});
  const Layer layer = NewLayer(problem, problem.sequences, 256);
  const int64_t cols = 2 * 65, pieces = layer.table->pieces();
  ASSERT_GE(pieces, 3);
  for (const float log : {-1e5f, -200.0f, 0.0f, 200.0f, 1e5f}) {
    // Values 1 and 2 with weights of one to two, and what a window hides.
    std::vector<float> rows(pieces * cols, kNan);
    for (const int64_t piece : {0, 2}) {
      std::fill_n(rows.begin() + piece * cols, 2 * 64, piece == 0 ? 1.0f : 2.0f);
      std::fill_n(rows.begin() + piece * cols + 2 * 64, 2, piece == 0 ? log : log + 1);
    }
    std::fill_n(rows.begin() + cols + 2 * 64, 2, -kInfinity);
    const Tensor partials = memory().NewTensor(rows, pieces), out = memory().Empty(1, 2 * 64);
    ASSERT_TRUE(device().MergePieces(stream(), partials, problem.shape, *layer.table, out).ok());
    EXPECT_THAT(memory().Read(out), ::testing::Each(::testing::FloatNear(5.0f / 3, 1e-5f))) << log;
  }
}

// A tier that has nothing of a step's sequences may have no memory either.
TEST_P(AttentionParity, ATableThatHasNothingTakesNoLayer) {
  const Problem problem = MakeStep(Shape(6, 2, 64), {600, 300});
  std::vector<KvSequence> none = problem.sequences;
  for (KvSequence& sequence : none) sequence.end = 0;
  const auto table = device().MakeKvTable(stream(), {.page_tokens = 256, .pages = {}, .sequences = none});
  ASSERT_TRUE(table.ok()) << table.status();
  const int64_t pieces = (*table)->pieces();
  const Tensor partials = memory().NewTensor(std::vector<float>(pieces * 6 * 65, 55.0f), pieces);
  ASSERT_EQ(device().AttendPieces(stream(), Queries(problem), problem.shape, **table, {}, partials), absl::OkStatus());
  EXPECT_THAT(memory().Read(partials), ::testing::Each(55.0f));
}

INSTANTIATE_TEST_SUITE_P(All, AttentionParity, AllParityCases(), NameOf);

}  // namespace
}  // namespace runahead
