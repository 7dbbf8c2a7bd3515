// What every request pays for its partition: the table's lookup with rounding. Aim: under 20 us, however it is found.
// One thread; a table of 128 lengths a width, as large as any search would make.
#include <cstdint>
#include <vector>

#include "benchmark/benchmark.h"
#include "scheduler/partition/partition_table.h"

namespace runahead {
namespace {

constexpr int64_t kShortest = 1024;
constexpr int64_t kLengths = 128;
constexpr int64_t kLongest = kShortest * kLengths;

// Parts that fall from head to tail, the more so the longer the prompt, as searched ones do.
PartitionTable TableOf(int width, int64_t block) {
  std::vector<PartitionEntry> entries;
  for (int64_t tokens = kShortest; tokens <= kLongest; tokens += kShortest) {
    PartitionEntry entry{.width = width, .tokens = tokens, .fractions = {}};
    const double slope = 0.5 - 300.0 / static_cast<double>(tokens);
    for (int i = 0; i < width; ++i) {
      entry.fractions.push_back((1 + slope * (width - 1 - 2 * i) / width) / width);
    }
    entries.push_back(std::move(entry));
  }
  return PartitionTable::Create(std::move(entries), block).value();
}

// Arguments: width, block.
void Run(benchmark::State& state, int64_t first, int64_t step, int64_t steps) {
  const int width = static_cast<int>(state.range(0));
  const PartitionTable table = TableOf(width, state.range(1));
  int64_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(table.Lookup(first + i * step, width));
    i = (i + 1) % steps;
  }
}

void Searched(benchmark::State& state) {
  Run(state, kShortest, kShortest, kLengths);
}
void Interpolated(benchmark::State& state) {
  Run(state, kShortest + 1, 777, (kLongest - kShortest) / 777);
}
void Below(benchmark::State& state) {
  Run(state, 16, 7, (kShortest - 16) / 7);
}
void Above(benchmark::State& state) {
  Run(state, kLongest + 1, 777, 1000);
}
BENCHMARK(Searched)->Args({8, 1})->Args({16, 1});
BENCHMARK(Interpolated)->Args({2, 1})->Args({8, 1})->Args({16, 1})->Args({16, 64});
BENCHMARK(Below)->Args({8, 1})->Args({16, 1});
BENCHMARK(Above)->Args({8, 1})->Args({16, 1})->Args({16, 64});

}  // namespace
}  // namespace runahead

BENCHMARK_MAIN();
