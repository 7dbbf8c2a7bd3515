// Linear alone on the CPU's device, beside what loops of multiply-adds reach at the same time: GFLOP/s by shape,
// rows and type, in f32 and with activations in 8 bits.
//   products [threads] [rows,...] [shape,...] [type,...]     a shape is out x in, as 1536x576
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/base/weight_type.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/machine_limits.h"
#include "tests/bench/must.h"
#include "tests/kernels/cpu/random_weights.h"

namespace runahead {
namespace {

constexpr int kRounds = 7;

struct Shape {
  int64_t out = 0, in = 0;
};

struct Side {
  const char* name;
  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> stream = device->NewStream(name);
};

// The largest of some rounds of one Linear, long enough to be told apart.
double GflopsOf(Side& side, const std::shared_ptr<const Weights>& weights, int64_t rows) {
  const auto tensor = [&](int64_t cols) {
    const BufferRef ref =
        BufferRef::Whole(Must(side.device->Allocate(rows * cols * sizeof(float), MemoryKind::kDevice)));
    const std::vector<float> values = RandomFloats(rows * cols, 2);
    std::copy(values.begin(), values.end(), reinterpret_cast<float*>(ref.data()));
    return MakeTensor(ref, DType::kF32, rows, cols);
  };
  const Tensor x = tensor(weights->cols()), out = tensor(weights->rows());
  const double flops = 2.0 * static_cast<double>(rows * weights->rows() * weights->cols());
  const int calls = static_cast<int>(std::max(1.0, 2e9 / flops));
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) Must(side.device->Linear(*side.stream, x, weights, {}, out));
    Must(side.device->Record(*side.stream).Wait());
    best = std::max(best, flops * calls / SecondsSince(begin) / 1e9);
  }
  return best;
}

std::vector<std::string> List(int argc, char** argv, int index, const char* otherwise) {
  return absl::StrSplit(argc > index ? argv[index] : otherwise, ',');
}

int Main(int argc, char** argv) {
  int threads = 1;
  if (argc > 1 && (!absl::SimpleAtoi(argv[1], &threads) || threads < 1)) {
    std::fprintf(stderr, "threads: '%s' is not a positive number\n", argv[1]);
    return 2;
  }
  std::vector<Side> sides;
  sides.push_back({"f32", Must(NewCpuDevice({.threads = threads}))});
  sides.push_back({"int8", Must(NewCpuDevice({.threads = threads, .int8 = true}))});
  std::printf("%d threads; GFLOP/s, and the share of what loops of multiply-adds reach just before a shape\n", threads);
  std::printf("%-12s %-6s %6s %10s", "out x in", "type", "rows", "loops");
  for (const Side& side : sides) std::printf(" %10s %7s", side.name, "of it");
  std::printf("\n");
  for (const std::string& shape_name : List(argc, argv, 3, "1536x576,576x1536,8192x2048,4096x14336")) {
    const std::vector<std::string> sizes = absl::StrSplit(shape_name, 'x');
    Shape shape;
    if (sizes.size() != 2 || !absl::SimpleAtoi(sizes[0], &shape.out) || !absl::SimpleAtoi(sizes[1], &shape.in)) {
      std::fprintf(stderr, "'%s' is no shape, as 1536x576\n", shape_name.c_str());
      return 2;
    }
    for (const std::string& type_name : List(argc, argv, 4, "Q4_1,Q5_0,Q8_0")) {
      const auto* const type = std::find_if(std::begin(kWeightBlocks), std::end(kWeightBlocks),
                                            [&](const WeightBlock& block) { return block.name == type_name; });
      if (type == std::end(kWeightBlocks)) {
        std::fprintf(stderr, "'%s' is no type that is read\n", type_name.c_str());
        return 2;
      }
      const double limit = MultiplyAddLimit(threads);
      const RandomWeights source(type->type, shape.out, shape.in, 1);
      std::vector<std::shared_ptr<const Weights>> weights;
      for (Side& side : sides) weights.push_back(Must(side.device->LoadWeights(source.Source(), kUsePrefill)));
      for (const std::string& rows_name : List(argc, argv, 2, "1,8,128,512")) {
        int64_t rows = 0;
        if (!absl::SimpleAtoi(rows_name, &rows) || rows < 1) {
          std::fprintf(stderr, "rows: '%s' is not a positive number\n", rows_name.c_str());
          return 2;
        }
        std::printf("%-12s %-6s %6ld %10.1f", shape_name.c_str(), type_name.c_str(), static_cast<long>(rows), limit);
        for (size_t s = 0; s < sides.size(); ++s) {
          const double gflops = GflopsOf(sides[s], weights[s], rows);
          std::printf(" %10.1f %7.2f", gflops, gflops / limit);
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
