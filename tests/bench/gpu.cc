// What the device itself reaches, by the product's own path (Device and LlamaModel) on the shapes of Llama-7B and
// Llama-3-8B with random weights. tests/gpu/torch_side.py measures the same in PyTorch and prints the same lines.
//   gpu [--dtype bf16|f16|f32] [--seconds S] [--layers N] [--tiny] [--json] SUITE...
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/bench/gpu_device.h"
#include "tests/bench/gpu_report.h"
#include "tests/bench/gpu_suites.h"

namespace runahead {
namespace {

struct NamedSuite {
  const char* name;
  absl::Status (*run)(const Bench& bench);
};

constexpr NamedSuite kSuites[] = {{"gemm", BenchGemm},     {"attention", BenchAttention}, {"prefill", BenchPrefill},
                                  {"decode", BenchDecode}, {"parts", BenchParts},         {"handoff", BenchHandoff},
                                  {"kvpr", BenchKvpr}};

struct Flags {
  std::string dtype = "bf16";
  double seconds = 0.5;
  int64_t layers = 4;
  bool tiny = false;
  bool json = false;
  std::vector<std::string> suites;
};

// Runs what was asked for; a suite that fails does not keep the others from running.
int Run(const Flags& flags) {
  const DType dtype = flags.dtype == "f32" ? DType::kF32 : flags.dtype == "f16" ? DType::kF16 : DType::kBF16;
  const absl::StatusOr<BenchDevice> opened = OpenBenchDevice(dtype);
  if (!opened.ok()) {
    std::fprintf(stderr, "gpu: %s\n", opened.status().ToString().c_str());
    return 1;
  }
  const Report report(flags.json, flags.dtype);
  report.Begin(absl::StrCat(std::string(opened->device->name()), ": ", opened->description), flags.layers,
               flags.seconds);
  const Bench bench{opened->device, report, flags.seconds, flags.layers, flags.tiny};
  int result = 0;
  for (const NamedSuite& suite : kSuites) {
    bool wanted = false;
    for (const std::string& name : flags.suites) wanted |= name == suite.name || name == "all";
    if (!wanted) continue;
    if (const absl::Status status = suite.run(bench); !status.ok()) {
      std::fprintf(stderr, "gpu: %s: %s\n", suite.name, status.ToString().c_str());
      result = 1;
    }
  }
  return result;
}

int Main(int argc, char** argv) {
  Flags flags;
  std::vector<std::string> names = {"all"};
  for (const NamedSuite& suite : kSuites) names.push_back(suite.name);
  CLI::App app("Measures the device: medians, with the spread of the runs");
  app.add_option("--dtype", flags.dtype, "What is computed in")->check(CLI::IsMember({"bf16", "f16", "f32"}));
  app.add_option("--seconds", flags.seconds, "Seconds of measuring for each figure")->check(CLI::PositiveNumber);
  app.add_option("--layers", flags.layers, "Layers of the models, of which half are run too")
      ->check(CLI::Range(int64_t{2}, int64_t{32}));
  app.add_flag("--tiny", flags.tiny, "Sizes that any machine computes at once: figures mean nothing");
  app.add_flag("--json", flags.json, "A JSON object a line");
  app.add_option("suites", flags.suites, "What to measure")->required()->check(CLI::IsMember(names));
  CLI11_PARSE(app, argc, argv);
  return Run(flags);
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);  // as the worker's main does, before CUDA reads it
  return runahead::Main(argc, argv);
}
