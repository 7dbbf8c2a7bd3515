// What decode steps with a KV table give to the GPU's runtime: counted on the emulation.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cpu/random_weights.h"
#include "tests/testing/cuda_emulation/control.h"
#include "tests/testing/device_tensor.h"

namespace runahead {
namespace {

constexpr int64_t kLayers = 32, kPageTokens = 256, kPages = 3, kMostSequences = 9, kVocab = 20;
constexpr int64_t kHeads = 2, kHeadDim = 64, kCols = kHeads * kHeadDim, kQkvCols = (kHeads + 2) * kHeadDim;
constexpr AttentionShape kShape = {kHeads, 1, kHeadDim, DType::kBF16, 0.125f};

// So often has the runtime been given something.
struct Calls {
  int64_t copies = cuda_emulation::Copies();
  int64_t kernels = cuda_emulation::KernelLaunches();
  int64_t graphs = cuda_emulation::GraphLaunches();
  int64_t recorded = cuda_emulation::GraphInstantiations();

  Calls operator-(const Calls& other) const {
    return {copies - other.copies, kernels - other.kernels, graphs - other.graphs, recorded - other.recorded};
  }
};

// Decode steps of the first `batch` of some sequences, without the products: memory stays the same from step to step.
class KvTableSteps : public testing::Test {
 protected:
  KvTableSteps() : memory_(*NewCudaDevice({.compute_dtype = DType::kBF16})) {
    const int64_t rows = kMostSequences * kPages * kPageTokens;
    const Tensor layer = memory_.NewTensor(RandomFloats(rows * 2 * kHeadDim, 1), rows, DType::kBF16);
    const BufferRef all = BufferRef::Whole(*device().Allocate(kLayers * layer.ref.size, MemoryKind::kDevice));
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.push_back(all.Slice(i * layer.ref.size, layer.ref.size));
      EXPECT_TRUE(device().Copy(stream(), layer.ref, layers_.back()).ok());
    }
    fresh_ = memory_.NewTensor(RandomFloats(kMostSequences * kQkvCols, 2), kMostSequences);
    qkv_ = memory_.Empty(kMostSequences, kQkvCols);
    q_ = memory_.Empty(kMostSequences, kCols, DType::kBF16);
    partials_ = memory_.Empty(64, kHeads * (kHeadDim + 1));
    x_ = memory_.Empty(kMostSequences, 32);
    rotation_ = {.table = memory_.NewTensor(RandomFloats(1024 * kHeadDim, 3), 1024)};
    table_ = *device().LoadWeights(words_.Source(), kUseDecode);
  }
  Device& device() { return memory_.device(); }
  Stream& stream() { return memory_.stream(); }

  // Step `step`, which has sequence i at this length. Sequences pass borders of pages and pieces.
  static int64_t LengthOf(int64_t i, int64_t step) { return 200 + 37 * i + 2 * step; }
  static KvLayout LayoutOf(int64_t batch, int64_t step) {
    KvLayout layout{kPageTokens, {}, {}};
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t length = LengthOf(i, step);
      layout.sequences.push_back({.length = length, .first_page = i * kPages, .end = length});
      for (int64_t page = 0; page < kPages; ++page) {
        layout.pages.push_back(static_cast<int32_t>((page * kMostSequences + i * 5) % (kMostSequences * kPages)));
      }
    }
    return layout;
  }

  // Returns the table's pieces.
  int64_t Run(int64_t batch, int64_t step, const Tensor& out) {
    const auto made = device().MakeKvTable(stream(), LayoutOf(batch, step));
    EXPECT_TRUE(made.ok()) << made.status();
    const KvTable& table = **made;
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < batch; ++i) ids.push_back(static_cast<int32_t>((step + i) % kVocab));
    EXPECT_TRUE(device().Embed(stream(), *table_, ids, false, x_.Rows(0, batch)).ok());
    EXPECT_TRUE(device().Copy(stream(), fresh_.ref, qkv_.ref).ok());
    const Tensor qkv = qkv_.Rows(0, batch), q = q_.Rows(0, batch), partials = partials_.Rows(0, table.pieces());
    for (const BufferRef& layer : layers_) {
      EXPECT_TRUE(device().Rope(stream(), qkv.Cols(0, kCols), kHeadDim, rotation_, table, 0).ok());
      EXPECT_TRUE(device().StoreQkv(stream(), qkv, kShape, q, table, 0, layer).ok());
      EXPECT_TRUE(device().AttendPieces(stream(), q, kShape, table, layer, partials).ok());
      EXPECT_TRUE(device().MergePieces(stream(), partials, kShape, table, out.Rows(0, batch)).ok());
    }
    return table.pieces();
  }

  DeviceMemory memory_;
  const RandomWeights words_{WeightType::kF32, kVocab, 32, 4};
  std::shared_ptr<const Weights> table_;
  std::vector<BufferRef> layers_;
  Tensor fresh_, qkv_, q_, partials_, x_;
  Rotation rotation_;
};

TEST_F(KvTableSteps, AreOneUploadAndOneGraphThatIsNotRecordedAnew) {
  const Tensor out = memory_.Empty(kMostSequences, kCols, DType::kBF16);
  const Tensor alone = memory_.Empty(kMostSequences, kCols, DType::kBF16);
  std::map<std::pair<int64_t, int64_t>, int> seen;  // steps by batch and pieces
  int steady = 0, steps = 0;
  const Calls first;
  for (int64_t step = 0; step < 30; ++step) {
    for (const int64_t batch : {int64_t{3}, kMostSequences}) {
      const Calls before;
      device().BeginStep(stream());
      const int64_t pieces = Run(batch, step, out);
      device().EndStep(stream());
      const Calls calls = Calls() - before;
      ++steps;
      if (const int had = seen[{batch, pieces}]++; had >= 2) {
        EXPECT_EQ(calls.copies, 1) << step << ", batch " << batch;
        EXPECT_EQ(calls.graphs, 1) << step << ", batch " << batch;
        EXPECT_EQ(calls.kernels, 0) << step << ", batch " << batch;
        EXPECT_EQ(calls.recorded, 0) << step << ", batch " << batch;
        ++steady;
      }
      const std::vector<float> got = memory_.Read(out.Rows(0, batch));
      if (step % 9 != 0) continue;
      Run(batch, step, alone);
      EXPECT_EQ(memory_.Read(alone.Rows(0, batch)), got) << step << ", batch " << batch;
    }
  }
  EXPECT_LE((Calls() - first).recorded, static_cast<int64_t>(seen.size()));
  EXPECT_EQ(seen.size(), 5u) << "three pieces of the small batch, two rooms of the large one";
  EXPECT_GE(steady, steps - 2 * 5);
}

// More than what steps have for arrays at first: what is staged and not read yet must come along.
TEST_F(KvTableSteps, ATableIsWholeThoughTheStepsArraysMove) {
  const Tensor out = memory_.Empty(3, kCols, DType::kBF16), alone = memory_.Empty(3, kCols, DType::kBF16);
  std::vector<int32_t> many(100'000, 7);
  const Tensor wide =
      MakeTensor(BufferRef::Whole(*device().Allocate(many.size() * 32 * sizeof(float), MemoryKind::kDevice)),
                 DType::kF32, static_cast<int64_t>(many.size()), 32);
  const Tensor qkv = qkv_.Rows(0, 3), q = q_.Rows(0, 3);
  for (int round = 0; round < 3; ++round) {
    Run(3, 0, alone);
    device().BeginStep(stream());
    const auto table = *device().MakeKvTable(stream(), LayoutOf(3, 0));
    EXPECT_TRUE(device().Embed(stream(), *table_, many, false, wide).ok());
    const Tensor partials = partials_.Rows(0, table->pieces());
    EXPECT_TRUE(device().AttendPieces(stream(), q, kShape, *table, layers_.back(), partials).ok());
    EXPECT_TRUE(device().MergePieces(stream(), partials, kShape, *table, out).ok());
    device().EndStep(stream());
    EXPECT_EQ(memory_.Read(out), memory_.Read(alone)) << round;
  }
}

// The step itself lets go of the memory that its arrays were in before they moved.
TEST_F(KvTableSteps, ATableThatIsGoneIsKeptByWhatReadsIt) {
  const Tensor out = memory_.Empty(1, kCols, DType::kBF16), qkv = qkv_.Rows(0, 1), q = q_.Rows(0, 1);
  const BufferRef& layer = layers_.front();
  using Op = std::function<absl::Status(Stream&, const KvTable&)>;
  const std::pair<const char*, Op> ops[] = {
      {"Rope",
       [&](Stream& on, const KvTable& table) {
         return device().Rope(on, qkv.Cols(0, kCols), kHeadDim, rotation_, table, 0);
       }},
      {"StoreQkv",
       [&](Stream& on, const KvTable& table) { return device().StoreQkv(on, qkv, kShape, q, table, 0, layer); }},
      {"AttendPieces",
       [&](Stream& on, const KvTable& table) {
         return device().AttendPieces(on, q, kShape, table, layer, partials_.Rows(0, table.pieces()));
       }},
      {"MergePieces",
       [&](Stream& on, const KvTable& table) {
         return device().MergePieces(on, partials_.Rows(0, table.pieces()), kShape, table, out);
       }},
      {"Attention",
       [&](Stream& on, const KvTable& table) { return device().Attention(on, q, kShape, table, layer, out); }},
  };
  const KvLayout many{
      .page_tokens = 1, .pages = std::vector<int32_t>(60'000), .sequences = {{.length = 60'000, .end = 60'000}}};
  const auto allocations = [] { return cuda_emulation::CountLiveObjects().device_allocations; };
  for (const auto& [name, enqueue] : ops) {
    SCOPED_TRACE(name);
    const auto on = device().NewStream("step");
    device().BeginStep(*on);
    std::shared_ptr<const KvTable> table = *device().MakeKvTable(*on, LayoutOf(1, 0));
    ASSERT_TRUE(device().MakeKvTable(*on, many).ok());  // what is behind it has no room where it is
    const int before = allocations();
    ASSERT_TRUE(device().Record(*on).Wait().ok());
    EXPECT_EQ(allocations(), before) << "the table has it";
    const EventSource source;
    device().WaitFor(*on, source.event());
    ASSERT_EQ(enqueue(*on, *table), absl::OkStatus());
    table.reset();
    EXPECT_EQ(allocations(), before);
    device().EndStep(*on);
    const Event done = device().Record(*on);
    EXPECT_EQ(allocations(), before);
    source.Fire(absl::OkStatus());
    ASSERT_TRUE(done.Wait().ok());
    EXPECT_EQ(allocations(), before - 1);
  }
}

}  // namespace
}  // namespace runahead
