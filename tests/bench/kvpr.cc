// KVPR against all KV streamed, all KV resident, and a sweep of l, side by side on the CPU's device with an emulated
// link.
//   kvpr [mha|gqa] [rho,...] [batch:length,...] [rounds] [steps] [budget in MiB]
// The 'device' is one thread. rho says how long recomputation takes of what copying KV takes; the link's rate follows.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/must.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/profile.h"

namespace runahead {
namespace {

constexpr int64_t kWarmSteps = 3, kAdaptSteps = 12;

struct BenchModel {
  std::shared_ptr<Device> device;
  std::shared_ptr<const Model> model;
  int64_t x_row_bytes() const {
    return model->config().hidden * static_cast<int64_t>(DTypeSize(device->compute_dtype()));
  }
};

std::string WriteModel(bool gqa) {
  SyntheticModel model;
  model.layers = 4;
  model.hidden = 512;
  model.heads = 8;
  model.kv_heads = gqa ? 2 : 8;
  model.ffn = 1376;
  model.context_length = 8192;
  const std::string path = absl::StrCat("/tmp/runahead_bench_kvpr_", getpid(), ".gguf");
  Must(WriteSyntheticGguf(model, path));
  return path;
}

BenchModel Load(const std::string& path, double link_gbps) {
  BenchModel loaded;
  CpuDeviceOptions options{.threads = 1};
  if (link_gbps > 0) options.emulated_link = Must(EmulatedLink::Create({.gbps = link_gbps}));
  loaded.device = Must(NewCpuDevice(options));
  loaded.model =
      Must(LoadModel(Must(GgufFile::Open(path)), loaded.device, kUseDecode | kUseRecompute, [](int, int) {}));
  return loaded;
}

LaneProfile Profile(const BenchModel& of, int64_t batch) {
  return Must(
      MeasureLanes(*of.model, *of.device,
                   {.rows = batch, .stored_row_bytes = of.model->kv_row_bytes(), .x_row_bytes = of.x_row_bytes()}));
}

// A batch of equal sequences, in a store of one tier, that loops decode by turns from the same positions on.
class Batch {
 public:
  Batch(const BenchModel& of, MemoryKind tier, int64_t batch, int64_t length, int64_t steps)
      : of_(of), length_(length), stream_(of.device->NewStream("decode")) {
    const ModelConfig& config = of.model->config();
    const int64_t blocks = KvBlocksFor(length + steps) * batch;
    const bool with_x = tier == MemoryKind::kHost;
    store_ = Must(KvStore::Create({.layers = config.layers,
                                   .row_bytes = of.model->kv_row_bytes(),
                                   .capacity_tokens = blocks * kKvBlockTokens,
                                   .tier = tier,
                                   .x_row_bytes = with_x ? of.x_row_bytes() : 0},
                                  *of.device, RealClock()));
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(Fill(length, length + steps, with_x));
  }

  KvStore& store() { return *store_; }
  Stream& stream() { return *stream_; }

  // Seconds of a step, the mean of `steps` after some that are not counted.
  double StepSeconds(StepLoop& loop, int64_t warm, int64_t steps) {
    absl::Time begin;
    for (int64_t step = 0; step < warm + steps; ++step) {
      if (step == warm) begin = MonotonicNow();
      std::vector<DecodeRow> rows;
      for (const KvStore::Sequence& sequence : sequences_) rows.push_back({&sequence, 7, length_ + step});
      Must(loop.Step(rows).status());
      Must(of_.device->Record(*stream_).Wait());
    }
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begin) / static_cast<double>(steps);
    for (const KvStore::Sequence& sequence : sequences_) loop.Leave(sequence);
    return seconds;
  }

 private:
  KvStore::Sequence Fill(int64_t prompt, int64_t total, bool with_x) {
    const LeaseId lease = Must(store_->Reserve(prompt, total, {}, with_x));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(4096);
    for (float& value : row) value = normal(random);
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      for (const SliceKind kind : {SliceKind::kKv, SliceKind::kX}) {
        if (kind == SliceKind::kX && !with_x) continue;
        auto write = Must(store_->BeginWrite(lease, layer, 0, prompt, kind));
        for (const BufferRef& to : write.destination()) {
          for (size_t at = 0; at < to.size; at += row.size() * 4) {
            std::memcpy(to.data() + at, row.data(), std::min(row.size() * 4, to.size - at));
          }
        }
        Must(write.Commit().Wait());
      }
    }
    return Must(store_->Open(lease));
  }

  const BenchModel& of_;
  const int64_t length_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;
};

struct Case {
  std::string name;
  Batch* batch = nullptr;
  std::unique_ptr<StepLoop> loop;
  int64_t warm = kWarmSteps;
  std::vector<double> seconds = {};
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

struct Question {
  int64_t batch = 1, length = 512, rounds = 3, steps = 8, device_bytes = 0;
};

std::unique_ptr<StepLoop> MakeLoop(const BenchModel& of, Batch& batch, const Question& question,
                                   std::unique_ptr<SplitSource> split,
                                   const std::function<void(const KvprStep&)>& on_step = {}) {
  return Must(
      KvprLoop::Create(*of.model, *of.device, batch.store(), batch.stream(), std::move(split),
                       {.max_rows = question.batch, .device_bytes = question.device_bytes, .on_step = on_step}));
}

void Compare(const BenchModel& of, const Question& question) {
  const LaneProfile profile = Profile(of, question.batch);
  const int64_t room = kAdaptSteps + question.steps + 2;
  Batch host(of, MemoryKind::kHost, question.batch, question.length, room);
  Batch resident(of, MemoryKind::kDevice, question.batch, question.length, room);
  LanePlan last;
  double overlap = 0;
  std::vector<Case> cases;
  cases.push_back({"l = 0", &host, MakeLoop(of, host, question, std::make_unique<FixedSplit>(0, profile.costs))});
  auto controller = Must(SplitController::Create(SplitObjective::kStep, profile.costs));
  cases.push_back({"solver", &host,
                   MakeLoop(of, host, question, std::make_unique<ControlledSplit>(std::move(controller)),
                            [&](const KvprStep& step) {
                              last = step.plan;
                              overlap = step.times->OverlapRatio();
                            }),
                   kAdaptSteps});
  cases.push_back({"resident", &resident,
                   std::make_unique<DecodeLoop>(*of.model, *of.device, resident.store(), resident.stream())});
  // The sweep's best, found first and then measured beside the others.
  int64_t best_l = 0;
  double best_s = 1e9;
  for (int64_t part = 0; part <= 8; ++part) {
    const int64_t l = question.length * part / 8 / kSplitTile * kSplitTile;
    const auto loop = MakeLoop(of, host, question, std::make_unique<FixedSplit>(l, profile.costs));
    const double seconds = host.StepSeconds(*loop, 1, std::max<int64_t>(2, question.steps / 2));
    if (seconds < best_s) best_s = seconds, best_l = l;
  }
  cases.push_back({absl::StrCat("best of sweep, l = ", best_l), &host,
                   MakeLoop(of, host, question, std::make_unique<FixedSplit>(best_l, profile.costs))});
  for (int64_t round = 0; round < question.rounds; ++round) {
    for (Case& one : cases) one.seconds.push_back(one.batch->StepSeconds(*one.loop, one.warm, question.steps));
  }
  const LaneCosts& costs = profile.costs;
  const double streamed_s = costs.kv_bytes * static_cast<double>(question.batch * question.length) *
                            static_cast<double>(of.model->config().layers) / costs.link_bytes_per_s;
  const double plain = cases[0].Median();
  std::printf("batch %ld length %ld: link %.0f MB/s, rho %.2f, p %.2f ms a layer\n", static_cast<long>(question.batch),
              static_cast<long>(question.length), costs.link_bytes_per_s / 1e6,
              costs.recompute_s * costs.link_bytes_per_s / costs.kv_bytes, 1e3 * costs.project_s);
  for (const Case& one : cases) {
    std::printf("  %-26s %8.2f ms a step, %8.1f tokens/s, %.3f x l = 0 (%.3f to %.3f)\n", one.name.c_str(),
                1e3 * one.Median(), static_cast<double>(question.batch) / one.Median(), plain / one.Median(),
                plain / *std::max_element(one.seconds.begin(), one.seconds.end()),
                plain / *std::min_element(one.seconds.begin(), one.seconds.end()));
  }
  LanePlan smallest;
  smallest.rows = last.rows;
  smallest.rows.streamed += smallest.rows.recomputed;
  smallest.rows.recomputed = smallest.rows.computed = smallest.rows.x_streamed = 0;
  const double predicted = TimesOfLanes(SplitObjective::kStep, costs, smallest.rows).layer_s /
                           TimesOfLanes(SplitObjective::kStep, costs, last.rows).layer_s;
  std::printf(
      "  bytes over bandwidth is %.1f%% of l = 0; solver: l %.0f a sequence, predicted gain %.3f, overlap %.2f\n\n",
      100 * streamed_s / plain, static_cast<double>(last.rows.recomputed) / static_cast<double>(question.batch),
      predicted, overlap);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const auto argument = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  const auto number = [](const std::string& text) {
    double value = 0;
    if (!absl::SimpleAtod(text, &value)) Must(absl::InvalidArgumentError("not a number: " + text));
    return value;
  };
  const std::string path = WriteModel(argument(1, "mha") == "gqa");
  const BenchModel unpaced = Load(path, 0);
  const LaneCosts free = Profile(unpaced, 1).costs;
  for (const auto& rho : absl::StrSplit(argument(2, "0.5,1,2"), ',')) {
    const double bytes_per_s = number(std::string(rho)) * free.kv_bytes / free.recompute_s;
    const BenchModel paced = Load(path, bytes_per_s * 8 / 1e9);
    for (const auto& pair : absl::StrSplit(argument(3, "1:512,1:4096,8:512,8:4096,32:512"), ',')) {
      const std::vector<std::string> parts = absl::StrSplit(pair, ':');
      Question question;
      question.batch = static_cast<int64_t>(number(parts.at(0)));
      question.length = static_cast<int64_t>(number(parts.at(1)));
      question.rounds = static_cast<int64_t>(number(argument(4, "3")));
      question.steps = static_cast<int64_t>(number(argument(5, "8")));
      question.device_bytes = static_cast<int64_t>(number(argument(6, "0")) * (1 << 20));
      std::printf("rho %s wanted; ", std::string(rho).c_str());
      Compare(paced, question);
    }
  }
  unlink(path.c_str());
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
