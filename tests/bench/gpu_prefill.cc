#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/gpu_products.h"
#include "tests/bench/gpu_suites.h"
#include "tests/testing/dense_kv.h"

namespace runahead {
namespace {

constexpr int64_t kPeakRows[] = {2048, 4096, 8192};

// The products of a layer for `tokens` rows, in the pieces that the pass takes, which divide them.
absl::Status EnqueuePieces(Stream& stream, LayerProducts& pieces, int64_t tokens) {
  for (int64_t begin = 0; begin < tokens; begin += pieces.rows()) {
    RUNAHEAD_RETURN_IF_ERROR(pieces.EnqueueAll(stream));
  }
  return absl::OkStatus();
}

// What a prompt's length is compared with: its attention alone, its products alone, and the peak of the products.
struct Yardsticks {
  Tensor q, attended;
  std::vector<LayerProducts> peaks;
  std::vector<LayerProducts> pieces;  // one
};

absl::StatusOr<Yardsticks> MakeYardsticks(const Bench& bench, const BenchModel& model, int64_t tokens) {
  using Form = LayerProducts::Form;
  Device& device = *bench.device;
  const int64_t cols = model.config.heads * model.config.head_dim;
  Yardsticks made;
  RUNAHEAD_ASSIGN_OR_RETURN(made.q, RandomTensor(device, tokens, cols));
  RUNAHEAD_ASSIGN_OR_RETURN(made.attended, EmptyTensor(device, device.compute_dtype(), tokens, cols));
  for (const int64_t rows : kPeakRows) {
    if (bench.Size(rows) > tokens) break;
    RUNAHEAD_ASSIGN_OR_RETURN(LayerProducts peak, LayerProducts::Make(device, model, bench.Size(rows), Form::kPlain));
    made.peaks.push_back(std::move(peak));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(
      LayerProducts pieces,
      LayerProducts::Make(device, model, std::min(tokens, device.gemm_rows()), Form::kAsInThePass));
  made.pieces.push_back(std::move(pieces));
  return made;
}

struct Measured {
  DepthTiming pass;
  Timing attention, products;  // of a layer, alone
  double peak = 0;             // operations per second
};

void Say(const Bench& bench, const ModelConfig& config, int64_t tokens, const Measured& measured) {
  const Timing layer = measured.pass.layer();
  const double products = ProductFlops(config, tokens);
  const double attention = AttentionFlops(config.heads, config.head_dim, tokens, tokens);
  const double whole = measured.pass.whole_s();
  const auto figure = [&](std::string what, double value, std::string unit, const Timing& timing) {
    return Figure{.suite = "prefill",
                  .model = config.name,
                  .shape = absl::StrCat("tokens=", tokens),
                  .what = std::move(what),
                  .value = value,
                  .unit = std::move(unit),
                  .timing = timing};
  };
  const double count = static_cast<double>(tokens);
  bench.report.Add(figure(absl::StrCat(config.layers, " layers, measured"), count / measured.pass.full.median_s,
                          "tokens/s", measured.pass.full));
  Figure scaled = figure(absl::StrCat(kWholeLayers, " layers, scaled"), count / whole, "tokens/s", {});
  scaled.note = absl::StrCat("tokens / (measured + ", kWholeLayers - config.layers, " * layer)");
  bench.report.Add(scaled);
  Figure one = figure("layer", layer.median_s * 1e3, "ms", layer);
  one.note = absl::StrCat("(T(", config.layers, " layers) - T(", config.layers / 2, ")) / ",
                          config.layers - config.layers / 2);
  bench.report.Add(one);
  bench.report.Add(figure("products of a layer alone", measured.products.median_s * 1e3, "ms", measured.products));
  Figure attend = figure("attention of a layer alone", measured.attention.median_s * 1e3, "ms", measured.attention);
  attend.numbers = {{"tflops", attention / measured.attention.median_s / 1e12}};
  bench.report.Add(attend);
  Figure share = figure("share of the GEMM peak", (products + attention) / layer.median_s / measured.peak, "ratio", {});
  share.numbers = {{"gemm_flops", products}, {"attention_flops", attention}, {"peak_tflops", measured.peak / 1e12}};
  share.note = "(GEMM + causal attention operations of a layer) / layer time / best rate of its four products alone";
  bench.report.Add(share);
}

absl::Status BenchPrompt(const Bench& bench, const BenchModel& model, int64_t tokens) {
  Device& device = *bench.device;
  const AttentionShape& shape = model.full->attention(0);
  DenseKv kv(device, *model.full, tokens);
  kv.Next(tokens);
  OwnedPassMemory memory(device);
  const ForwardBatch batch = PromptBatch(model.config, tokens);
  RUNAHEAD_ASSIGN_OR_RETURN(Yardsticks sticks, MakeYardsticks(bench, model, tokens));
  const std::unique_ptr<Stream> stream = device.NewStream("bench");
  RUNAHEAD_ASSIGN_OR_RETURN(const std::shared_ptr<const KvTable> table, device.MakeKvTable(*stream, kv.Layout()));
  std::vector<Work> works = {
      [&] { return EnqueuePass(*model.full, device, *stream, memory, batch, kv).status(); },
      [&] { return EnqueuePass(*model.half, device, *stream, memory, batch, kv).status(); },
      [&] { return device.Attention(*stream, sticks.q, shape, *table, kv.layer(0), sticks.attended); },
      [&] { return EnqueuePieces(*stream, sticks.pieces[0], tokens); },
  };
  const size_t first_peak = works.size();
  for (LayerProducts& peak : sticks.peaks) works.push_back([&] { return peak.EnqueueAll(*stream); });
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<Timing> timings, TimeInTurn(device, *stream, bench.seconds, works));
  Measured measured{{timings[0], timings[1], model.config.layers}, timings[2], timings[3], 0};
  for (size_t i = 0; i < sticks.peaks.size(); ++i) {
    measured.peak =
        std::max(measured.peak, ProductFlops(model.config, sticks.peaks[i].rows()) / timings[first_peak + i].median_s);
  }
  Say(bench, model.config, tokens, measured);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchPrefill(const Bench& bench) {
  for (const ModelConfig& config : BenchModels(bench)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const BenchModel model, MakeBenchModel(bench, config));
    for (const int64_t tokens : {2048, 8192, 32768}) {
      RUNAHEAD_RETURN_IF_ERROR(BenchPrompt(bench, model, bench.Size(tokens)));
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
