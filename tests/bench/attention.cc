// Attention alone, by ISA, dtype and length: a whole prompt (GFLOP/s, counting 4*head_dim for each visible pair of
// query and key), decode steps (GB/s of KV read), steps with several rows of a sequence (as a multiple of what one row
// takes, and of what as many sequences of one row over the same KV take), and the table of a step (microseconds for all
// layers); `share` is of
// what a loop of f32 multiply-adds, or of reads, reaches beside it. The heads are those of the quick-start model, 9
// over 3 of 64, and of an 8B model, 32 over 8 of 128. One thread. Figures of a shared machine: take the best of several
// repetitions.
#include "kernels/cpu/attention.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "tests/bench/machine_limits.h"

namespace runahead {
namespace {

// Aligned and in large pages as a device's memory is, so that figures do not hang on where malloc put it.
class HeapBuffer : public Buffer {
 public:
  explicit HeapBuffer(size_t bytes) : Buffer(nullptr, bytes) {
    constexpr size_t kHuge = size_t{2} << 20;
    const size_t rounded = bytes < kHuge ? (bytes + 63) / 64 * 64 : (bytes + kHuge - 1) / kHuge * kHuge;
    data_ = static_cast<std::byte*>(std::aligned_alloc(bytes < kHuge ? 64 : kHuge, rounded));
    if (bytes >= kHuge) madvise(data_, rounded, MADV_HUGEPAGE);
  }
  ~HeapBuffer() override { std::free(data_); }
};

std::vector<std::byte> RandomValues(int64_t count, DType dtype) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(count * DTypeSize(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(generator);
    const uint16_t half = dtype == DType::kBF16 ? ToBFloat16(value).bits : ToFloat16(value).bits;
    std::memcpy(bytes.data() + i * DTypeSize(dtype), dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
                DTypeSize(dtype));
  }
  return bytes;
}

BufferRef BytesOf(const std::vector<std::byte>& bytes) {
  auto buffer = std::make_shared<HeapBuffer>(bytes.size());
  std::memcpy(buffer->data(), bytes.data(), bytes.size());
  return BufferRef::Whole(std::move(buffer));
}

// Sequences in blocks of a store, one behind the other without gaps.
KvLayout Blocks(int64_t batch, int64_t length) {
  KvLayout layout{.page_tokens = std::min<int64_t>(256, length), .pages = {}, .sequences = {}};
  const int64_t blocks = (length + layout.page_tokens - 1) / layout.page_tokens;
  layout.pages.resize(batch * blocks);
  std::iota(layout.pages.begin(), layout.pages.end(), 0);
  for (int64_t i = 0; i < batch; ++i) layout.sequences.push_back({1, length, i * blocks, 0, length});
  return layout;
}

struct Problem {
  AttentionShape shape;
  std::shared_ptr<const CpuKvTable> table;
  BufferRef layer;
  Tensor q, out, partials;

  Problem(int64_t heads, int64_t kv_heads, int64_t dim, DType dtype, DType kv_dtype, KvLayout layout)
      : shape{heads, kv_heads, dim, kv_dtype, 1.0f / std::sqrt(static_cast<float>(dim))},
        table(*CpuKvTable::Make(std::move(layout))) {
    const int64_t cols = heads * dim, sums = heads * (dim + 1);
    layer = BytesOf(RandomValues(table->base_rows() * 2 * kv_heads * dim, kv_dtype));
    q = MakeTensor(BytesOf(RandomValues(table->rows() * cols, dtype)), dtype, table->rows(), cols);
    out = MakeTensor(BytesOf(RandomValues(table->rows() * cols, dtype)), dtype, table->rows(), cols);
    partials =
        MakeTensor(BytesOf(RandomValues(table->pieces() * sums, DType::kF32)), DType::kF32, table->pieces(), sums);
  }
};

struct Heads {
  int64_t heads, kv_heads, dim;
};
constexpr Heads kHeads[] = {{9, 3, 64}, {32, 8, 128}, {32, 32, 128}};
constexpr std::pair<int64_t, int64_t> kSteps[] = {{1, 128}, {8, 128}, {32, 128}, {1, 4096}, {8, 4096}, {32, 4096}};

// Reports work / best time of an iteration, as `unit`, and its share of `limit`.
template <typename Body>
void Measure(benchmark::State& state, double work, const char* unit, double limit, const Body& body) {
  double best = 1e9;
  body();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, SecondsSince(start));
  }
  state.counters[unit] = work / best * 1e-9;
  state.counters["share"] = work / best * 1e-9 / limit;
}

void Prefill(benchmark::State& state, CpuIsa isa, DType kv_dtype, Heads heads, int64_t queries, int64_t length) {
  ThreadPool pool(1);
  const DType dtype = kv_dtype == DType::kF16 ? DType::kF32 : kv_dtype;
  const Problem on(heads.heads, heads.kv_heads, heads.dim, dtype, kv_dtype, KvLayout::OnePage(queries, length));
  const double pairs = 0.5 * static_cast<double>(queries) * static_cast<double>(2 * length - queries + 1);
  Measure(state, pairs * 4 * static_cast<double>(heads.dim * heads.heads), "GFLOP/s", MultiplyAddLimit(1), [&] {
    RunCpuAttention(pool, isa, {on.q, on.shape, *on.table, on.layer, on.out});
  });
}

void DecodeStep(benchmark::State& state, CpuIsa isa, DType kv_dtype, Heads heads, int64_t batch, int64_t length) {
  ThreadPool pool(1);
  const Problem on(heads.heads, heads.kv_heads, heads.dim, DType::kF32, kv_dtype, Blocks(batch, length));
  Measure(state, static_cast<double>(batch * length * on.shape.kv_row_bytes()), "GB/s", ReadLimit(), [&] {
    AttendCpuPieces(pool, isa, {on.q, on.shape, *on.table, on.layer, on.partials});
    MergeCpuPieces(pool, on.partials, on.shape, *on.table, on.out);
  });
}

// A step of `rows` rows of one sequence, beside one row of it and beside as many sequences of one row each whose pages
// are the same, by turns. Of CPU time: other work of the machine stops one or the other.
void RowsStep(benchmark::State& state, CpuIsa isa, DType kv_dtype, Heads heads, int64_t rows, int64_t length) {
  ThreadPool pool(1);
  KvLayout together = Blocks(1, length), apart = together;
  together.by_pieces = true;
  together.sequences[0].queries = rows;
  apart.sequences.clear();
  for (int64_t row = 1; row <= rows; ++row) {
    const int64_t own = length - rows + row;
    apart.sequences.push_back({.queries = 1, .length = own, .end = own});
  }
  const auto problem = [&](KvLayout layout) {
    return Problem(heads.heads, heads.kv_heads, heads.dim, DType::kF32, kv_dtype, std::move(layout));
  };
  const Problem all[] = {problem(Blocks(1, length)), problem(together), problem(apart)};
  std::vector<double> seconds[3];
  const auto attend = [&](const Problem& on) {
    const std::clock_t start = std::clock();
    AttendCpuPieces(pool, isa, {on.q, on.shape, *on.table, on.layer, on.partials});
    MergeCpuPieces(pool, on.partials, on.shape, *on.table, on.out);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  for (const Problem& on : all) attend(on);
  for (auto _ : state) {
    for (int i = 0; i < 3; ++i) seconds[i].push_back(attend(all[i]));
  }
  for (std::vector<double>& of : seconds) std::sort(of.begin(), of.end());
  const auto median = [&](int i) { return seconds[i][seconds[i].size() / 2]; };
  state.counters["one_ms"] = 1e3 * median(0);
  state.counters["of_one"] = median(1) / median(0);
  state.counters["of_apart"] = median(1) / median(2);
}

void PlanStep(benchmark::State& state, int64_t batch, int64_t length) {
  for (auto _ : state) benchmark::DoNotOptimize(CpuKvTable::Make(Blocks(batch, length)));
}

void Register() {
  for (const auto& [batch, length] : kSteps) {
    const std::string name = "plan/" + std::to_string(batch) + "x" + std::to_string(length);
    benchmark::RegisterBenchmark(name.c_str(), PlanStep, batch, length)->Unit(benchmark::kMicrosecond);
  }
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa > DetectCpuIsa()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Heads heads : kHeads) {
        const std::string tail = std::string(CpuIsaName(isa)) + "/" + std::string(DTypeName(dtype)) + "/" +
                                 std::to_string(heads.heads) + "x" + std::to_string(heads.kv_heads) + "x" +
                                 std::to_string(heads.dim);
        for (const int64_t length : {128, 512, 2048, 4096}) {
          benchmark::RegisterBenchmark(("prefill/" + tail + "/" + std::to_string(length)).c_str(), Prefill, isa, dtype,
                                       heads, length, length);
        }
        benchmark::RegisterBenchmark(("part/" + tail + "/256of4096").c_str(), Prefill, isa, dtype, heads, 256, 4096);
        for (const int64_t rows : {2, 4, 16}) {
          const std::string name = "rows/" + tail + "/" + std::to_string(rows) + "of8192";
          benchmark::RegisterBenchmark(name.c_str(), RowsStep, isa, dtype, heads, rows, 8192);
        }
        for (const auto& [batch, length] : kSteps) {
          benchmark::RegisterBenchmark(
              ("decode/" + tail + "/" + std::to_string(batch) + "x" + std::to_string(length)).c_str(), DecodeStep, isa,
              dtype, heads, batch, length);
        }
      }
    }
  }
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  runahead::Register();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
