// Attention alone, by ISA, dtype and length: a whole prompt (GFLOP/s, counting 4*head_dim for each visible pair of
// query and key) and decode steps (GB/s of KV read). The heads are those of the quick-start model, 9 over 3 of 64, and
// of an 8B model, 32 over 8 of 128. One thread. Figures of a shared machine: take the best of several repetitions.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

namespace runahead {
namespace {

class HeapBuffer : public Buffer {
 public:
  explicit HeapBuffer(size_t bytes) : Buffer(nullptr, bytes), memory_(bytes) { data_ = memory_.data(); }

 private:
  std::vector<std::byte> memory_;
};

std::vector<std::byte> RandomValues(int64_t count, DType dtype) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(count * DTypeSize(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const float value = normal(generator);
    const BFloat16 half = ToBFloat16(value);
    std::memcpy(bytes.data() + i * DTypeSize(dtype), dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
                DTypeSize(dtype));
  }
  return bytes;
}

struct Problem {
  std::vector<std::byte> q, out;
  std::vector<AttentionSequence> sequences;
  CpuAttentionArgs args;

  Problem(int64_t heads, int64_t kv_heads, int64_t dim, DType dtype, DType kv_dtype, int64_t batch, int64_t queries,
          int64_t length) {
    args.shape = {heads, kv_heads, dim, kv_dtype, 1.0f / std::sqrt(static_cast<float>(dim))};
    q = RandomValues(batch * queries * heads * dim, dtype);
    out.resize(q.size());
    const std::vector<std::byte> rows = RandomValues(length * 2 * kv_heads * dim, kv_dtype);
    for (int64_t i = 0; i < batch; ++i) {
      auto buffer = std::make_shared<HeapBuffer>(rows.size());
      std::memcpy(buffer->data(), rows.data(), rows.size());
      sequences.push_back({i * queries, queries, length, {{BufferRef::Whole(std::move(buffer)), length}}});
    }
    args.q = q.data();
    args.out = out.data();
    args.q_dtype = args.out_dtype = dtype;
    args.q_stride = args.out_stride = heads * dim;
    args.sequences = sequences;
  }
};

struct Heads {
  int64_t heads, kv_heads, dim;
};
constexpr Heads kHeads[] = {{9, 3, 64}, {32, 8, 128}};

// Reports work / best time of an iteration, as `unit`.
template <typename Body>
void Measure(benchmark::State& state, double work, const char* unit, const Body& body) {
  double best = 1e9;
  body();
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    body();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.counters[unit] = work / best * 1e-9;
}

void Prefill(benchmark::State& state, CpuIsa isa, DType dtype, Heads heads, int64_t queries, int64_t length) {
  ThreadPool pool(1);
  const Problem problem(heads.heads, heads.kv_heads, heads.dim, dtype, dtype, 1, queries, length);
  const double pairs = 0.5 * static_cast<double>(queries) * static_cast<double>(2 * length - queries + 1);
  Measure(state, pairs * 4 * static_cast<double>(heads.dim * heads.heads), "GFLOP/s",
          [&] { RunCpuAttention(pool, isa, problem.args); });
}

void DecodeStep(benchmark::State& state, CpuIsa isa, DType kv_dtype, Heads heads, int64_t batch, int64_t length) {
  ThreadPool pool(1);
  const Problem problem(heads.heads, heads.kv_heads, heads.dim, DType::kF32, kv_dtype, batch, 1, length);
  Measure(state, static_cast<double>(batch * length * problem.args.shape.kv_row_bytes()), "GB/s",
          [&] { RunCpuAttention(pool, isa, problem.args); });
}

void Register() {
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (isa > DetectCpuIsa()) continue;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const Heads heads : kHeads) {
        const std::string tail = std::string(CpuIsaName(isa)) + "/" + std::string(DTypeName(dtype)) + "/" +
                                 std::to_string(heads.heads) + "x" + std::to_string(heads.kv_heads) + "x" +
                                 std::to_string(heads.dim);
        for (const int64_t length : {128, 512, 2048, 4096}) {
          benchmark::RegisterBenchmark(("prefill/" + tail + "/" + std::to_string(length)).c_str(), Prefill, isa, dtype,
                                       heads, length, length);
        }
        benchmark::RegisterBenchmark(("part/" + tail + "/256of4096").c_str(), Prefill, isa, dtype, heads, 256, 4096);
        for (const auto& [batch, length] : {std::pair(1, 128), std::pair(1, 4096), std::pair(8, 4096)}) {
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
