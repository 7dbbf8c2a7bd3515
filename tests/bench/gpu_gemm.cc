#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/gpu_products.h"
#include "tests/bench/gpu_suites.h"

namespace runahead {
namespace {

absl::Status BenchRows(const Bench& bench, const BenchModel& model, int64_t rows, LayerProducts::Form form) {
  RUNAHEAD_ASSIGN_OR_RETURN(LayerProducts products, LayerProducts::Make(*bench.device, model, rows, form));
  const std::unique_ptr<Stream> stream = bench.device->NewStream("bench");
  std::vector<Work> works;
  for (int i = 0; i < 4; ++i) works.push_back([&, i] { return products.Enqueue(*stream, i); });
  works.push_back([&] { return products.EnqueueAll(*stream); });
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<Timing> timings,
                            TimeInTurn(*bench.device, *stream, bench.seconds, works));
  const std::string how = form == LayerProducts::Form::kPlain ? "" : ", as in the pass";
  double flops = 0;
  for (int i = 0; i < 4; ++i) {
    flops += products.flops(i);
    bench.report.Add({.suite = "gemm",
                      .model = model.config.name,
                      .shape = absl::StrCat("m=", rows),
                      .what = absl::StrCat(LayerProducts::kNames[i], how),
                      .value = products.flops(i) / timings[i].median_s / 1e12,
                      .unit = "TFLOP/s",
                      .timing = timings[i]});
  }
  bench.report.Add({.suite = "gemm",
                    .model = model.config.name,
                    .shape = absl::StrCat("m=", rows),
                    .what = absl::StrCat("all four", how),
                    .value = flops / timings[4].median_s / 1e12,
                    .unit = "TFLOP/s",
                    .timing = timings[4]});
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchGemm(const Bench& bench) {
  for (const ModelConfig& config : BenchModels(bench)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const BenchModel model, MakeBenchModel(bench, config));
    for (const int64_t rows : {2048, 4096, 8192}) {
      for (const auto form : {LayerProducts::Form::kPlain, LayerProducts::Form::kAsInThePass}) {
        RUNAHEAD_RETURN_IF_ERROR(BenchRows(bench, model, bench.Size(rows), form));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
