#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "tests/bench/gpu_model.h"
#include "tests/bench/gpu_suites.h"
#include "tests/testing/dense_kv.h"

namespace runahead {
namespace {

constexpr int64_t kBlockTokens = 256;

// Sequences of one length each, whose KV lies in blocks all over the device's memory; a step fills their last row.
class BlockKv {
 public:
  static absl::StatusOr<std::unique_ptr<BlockKv>> Make(Device& device, const AttentionShape& shape, int64_t layers,
                                                       int64_t batch, int64_t length) {
    auto kv = std::unique_ptr<BlockKv>(new BlockKv(batch, length));
    const int64_t blocks = (length + kBlockTokens - 1) / kBlockTokens;
    kv->places_.resize(batch * blocks);
    std::iota(kv->places_.begin(), kv->places_.end(), 0);
    std::shuffle(kv->places_.begin(), kv->places_.end(), std::mt19937(1));
    for (int64_t layer = 0; layer < layers; ++layer) {
      RUNAHEAD_ASSIGN_OR_RETURN(kv->layers_.emplace_back(),
                                RandomMemory(device, batch * blocks * kBlockTokens * shape.kv_row_bytes()));
    }
    return kv;
  }

  KvLayout Layout() const {
    KvLayout layout{kBlockTokens, places_, {}};
    const auto blocks = static_cast<int64_t>(places_.size()) / batch_;
    for (int64_t row = 0; row < batch_; ++row) {
      layout.sequences.push_back({.length = length_, .first_page = row * blocks, .end = length_});
    }
    return layout;
  }
  const BufferRef& layer(int64_t index) const { return layers_[index]; }

 private:
  BlockKv(int64_t batch, int64_t length) : batch_(batch), length_(length) {}

  const int64_t batch_, length_;
  std::vector<int32_t> places_;
  std::vector<BufferRef> layers_;
};

ForwardBatch StepBatch(const ModelConfig& config, int64_t batch) {
  ForwardBatch step;
  step.batch_invariant = true;
  for (int64_t row = 0; row < batch; ++row) {
    step.ids.push_back(static_cast<int32_t>(row * 7919 % config.vocab));
    step.logit_rows.push_back(row);
  }
  return step;
}

// Reads and writes of a large copy inside the device's memory, together.
absl::StatusOr<Timing> CopyTime(const Bench& bench, int64_t bytes) {
  Device& device = *bench.device;
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef from, RandomMemory(device, bytes));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device.Allocate(bytes, MemoryKind::kDevice));
  const BufferRef to = BufferRef::Whole(std::move(buffer));
  const std::unique_ptr<Stream> stream = device.NewStream("bench");
  return TimeAlone(device, *stream, bench.seconds, [&] { return device.Copy(*stream, from, to); });
}

struct Step {
  int64_t batch, length;
  double weight_bytes, layer_weight_bytes, layer_kv_bytes;  // that a step reads: in all, and of a layer
};

void Say(const Bench& bench, const ModelConfig& config, const Step& step, const std::vector<Timing>& timings,
         double bandwidth) {
  const DepthTiming depth{timings[0], timings[4], config.layers};
  const Timing layer = depth.layer();
  const double bytes = step.weight_bytes + step.layer_kv_bytes * static_cast<double>(config.layers);
  const auto say = [&](std::string what, double value, std::string unit, const Timing& timing,
                       std::vector<std::pair<std::string, double>> numbers, std::string note) {
    bench.report.Add({.suite = "decode",
                      .model = config.name,
                      .shape = absl::StrCat("batch=", step.batch, " context=", step.length),
                      .what = std::move(what),
                      .value = value,
                      .unit = std::move(unit),
                      .timing = timing,
                      .numbers = std::move(numbers),
                      .note = std::move(note)});
  };
  say(absl::StrCat("step, ", config.layers, " layers"), timings[0].median_s * 1e3, "ms", timings[0], {{"bytes", bytes}},
      "each step awaited");
  say("step without graphs", timings[1].median_s * 1e3, "ms", timings[1], {}, "each step awaited");
  say("gain of graphs", timings[1].median_s / timings[0].median_s, "ratio", {}, {}, "");
  say("steps queued", timings[2].median_s * 1e3, "ms", timings[2], {}, "none awaited");
  say("steps queued without graphs", timings[3].median_s * 1e3, "ms", timings[3], {}, "none awaited");
  say("share of bandwidth", bytes / timings[0].median_s / bandwidth, "ratio", {}, {{"copy_gbps", bandwidth / 1e9}},
      "(weights + KV) / step / rate of a large copy");
  say("layer", layer.median_s * 1e3, "ms", layer, {{"bytes", step.layer_weight_bytes + step.layer_kv_bytes}}, "");
  say("share of bandwidth, layer", (step.layer_weight_bytes + step.layer_kv_bytes) / layer.median_s / bandwidth,
      "ratio", {}, {}, "");
  say(absl::StrCat("step, ", kWholeLayers, " layers, scaled"), depth.whole_s() * 1e3, "ms", {}, {},
      absl::StrCat("measured + ", kWholeLayers - config.layers, " * layer"));
}

absl::Status BenchStep(const Bench& bench, const BenchModel& model, Step step, double bandwidth) {
  Device& device = *bench.device;
  const AttentionShape& shape = model.full->attention(0);
  const auto kv = BlockKv::Make(device, shape, model.config.layers, step.batch, step.length);
  if (absl::IsResourceExhausted(kv.status())) {
    bench.report.Missing({.suite = "decode",
                          .model = model.config.name,
                          .shape = absl::StrCat("batch=", step.batch, " context=", step.length),
                          .what = "step",
                          .unit = "ms"},
                         std::string(kv.status().message()));
    return absl::OkStatus();
  }
  RUNAHEAD_RETURN_IF_ERROR(kv.status());
  const ForwardBatch batch = StepBatch(model.config, step.batch);
  const std::unique_ptr<Stream> stream = device.NewStream("bench");
  OwnedPassMemory memory(device);
  const auto run = [&](const LlamaModel& of, bool graphs, bool await) -> absl::Status {
    if (graphs) device.BeginStep(*stream);
    const absl::Status status = EnqueuePass(of, device, *stream, memory, batch, **kv).status();
    if (graphs) device.EndStep(*stream);
    RUNAHEAD_RETURN_IF_ERROR(status);
    return await ? device.Record(*stream).Wait() : absl::OkStatus();
  };
  const std::vector<Work> works = {
      [&] { return run(*model.full, true, true); },  [&] { return run(*model.full, false, true); },
      [&] { return run(*model.full, true, false); }, [&] { return run(*model.full, false, false); },
      [&] { return run(*model.half, true, true); },
  };
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<Timing> timings, TimeInTurn(device, *stream, bench.seconds, works));
  const double size = static_cast<double>(DTypeSize(device.compute_dtype()));
  step.layer_weight_bytes = ProductFlops(model.config, 1) / 2 * size;
  step.weight_bytes = step.layer_weight_bytes * static_cast<double>(model.config.layers) +
                      static_cast<double>(model.config.vocab * model.config.hidden) * size;
  step.layer_kv_bytes = static_cast<double>(step.batch * step.length * shape.kv_row_bytes());
  Say(bench, model.config, step, timings, bandwidth);
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchDecode(const Bench& bench) {
  const int64_t bytes = bench.Size(int64_t{2} << 30);
  RUNAHEAD_ASSIGN_OR_RETURN(const Timing copy, CopyTime(bench, bytes));
  const double bandwidth = 2 * static_cast<double>(bytes) / copy.median_s;
  bench.report.Add({.suite = "decode",
                    .model = "-",
                    .shape = absl::StrCat(bytes >> 20, " MiB"),
                    .what = "copy inside the device's memory",
                    .value = bandwidth / 1e9,
                    .unit = "GB/s",
                    .timing = copy,
                    .note = "read and written bytes"});
  for (const ModelConfig& config : BenchModels(bench)) {
    RUNAHEAD_ASSIGN_OR_RETURN(const BenchModel model, MakeBenchModel(bench, config));
    for (const int64_t context : {1024, 4096}) {
      for (const int64_t batch : {1, 32, 128}) {
        RUNAHEAD_RETURN_IF_ERROR(
            BenchStep(bench, model, {bench.Size(batch, 32), bench.Size(context, 8), 0, 0, 0}, bandwidth));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace runahead
