// Decode steps over static windows beside plain decode over the store, on a CPU and in one run.
//   static_window [threads] [batch:length,...] [rounds] [steps]
// Ratios are of time on the clock, and of CPU time, which means more where the machine has other work.
// First for contexts up to S, for which nothing is copied; then for a model whose attention sees S positions, over
// several copies of the window.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/must.h"
#include "tests/testing/synthetic_gguf.h"
#include "tests/testing/windowed_model.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/static_window_loop.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr int64_t kWarmSteps = 2;

std::string WriteModel() {
  SyntheticModel model;
  model.layers = 4;
  model.hidden = 512;
  model.heads = 8;
  model.kv_heads = 8;
  model.ffn = 1376;
  model.context_length = 16384;
  const std::string path = absl::StrCat("/tmp/runahead_bench_static_window_", getpid(), ".gguf");
  Must(WriteSyntheticGguf(model, path));
  return path;
}

// Of all threads of this process.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct StepTime {
  double wall_s = 0, cpu_s = 0;
};

// Equal sequences in a store, which loops decode by turns from the same positions on.
class Batch {
 public:
  Batch(std::shared_ptr<Device> device, std::shared_ptr<const Model> model, int64_t batch, int64_t length,
        int64_t steps)
      : device_(std::move(device)), model_(std::move(model)), length_(length), stream_(device_->NewStream("decode")) {
    const int64_t blocks = KvBlocksFor(length + steps) * batch;
    store_ = Must(KvStore::Create({.layers = model_->config().layers,
                                   .row_bytes = model_->kv_row_bytes(),
                                   .capacity_tokens = blocks * kKvBlockTokens},
                                  *device_, RealClock()));
    for (int64_t i = 0; i < batch; ++i) sequences_.push_back(Fill(length, length + steps));
  }

  std::unique_ptr<StepLoop> PlainLoop() { return std::make_unique<DecodeLoop>(*model_, *device_, *store_, *stream_); }
  std::unique_ptr<StepLoop> WindowLoop(const StaticWindowSize& size) {
    return Must(StaticWindowLoop::Create(*model_, *device_, *store_, *stream_,
                                         {size, static_cast<int64_t>(sequences_.size())}));
  }

  // Of a step, the mean of `steps` after some in which windows are filled.
  StepTime TimeOfStep(StepLoop& loop, int64_t steps) {
    absl::Time begin;
    double cpu_begin = 0;
    for (int64_t step = 0; step < kWarmSteps + steps; ++step) {
      if (step == kWarmSteps) begin = MonotonicNow(), cpu_begin = CpuSeconds();
      std::vector<DecodeRow> rows;
      for (const KvStore::Sequence& sequence : sequences_) rows.push_back({&sequence, 7, length_ + step});
      Must(loop.Step(rows).status());
      Must(device_->Record(*stream_).Wait());
    }
    const double wall_s = absl::ToDoubleSeconds(MonotonicNow() - begin), cpu_s = CpuSeconds() - cpu_begin;
    for (const KvStore::Sequence& sequence : sequences_) loop.Leave(sequence);
    return {wall_s / static_cast<double>(steps), cpu_s / static_cast<double>(steps)};
  }

 private:
  KvStore::Sequence Fill(int64_t prompt, int64_t total) {
    const LeaseId lease = Must(store_->Reserve({.prompt_tokens = prompt, .total_tokens = total}));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> row(4096);
    for (float& value : row) value = normal(random);
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      auto write = Must(store_->BeginWrite(lease, layer, 0, prompt));
      for (const BufferRef& to : write.destination()) {
        for (size_t at = 0; at < to.size; at += row.size() * sizeof(float)) {
          std::memcpy(to.data() + at, row.data(), std::min(row.size() * sizeof(float), to.size - at));
        }
      }
      Must(write.Commit().Wait());
    }
    return Must(store_->Open(lease));
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const Model> model_;
  const int64_t length_;
  const std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;
};

struct Case {
  std::string name;
  std::unique_ptr<StepLoop> loop;
  std::vector<StepTime> times = {};
};

// The middle one, and the outer ones behind it.
std::string Spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return absl::StrFormat("%.3f (%.3f to %.3f)", values[values.size() / 2], values.front(), values.back());
}

// By turns, so that what else the machine does falls on all. A ratio is of tokens a second within one round.
void Compare(Batch& batch, int64_t rows, std::vector<Case> cases, int64_t rounds, int64_t steps) {
  for (int64_t round = 0; round < rounds; ++round) {
    for (Case& one : cases) one.times.push_back(batch.TimeOfStep(*one.loop, steps));
  }
  const std::vector<StepTime>& plain = cases.front().times;
  for (const Case& one : cases) {
    std::vector<double> rates, wall, cpu;
    for (int64_t round = 0; round < rounds; ++round) {
      const StepTime& time = one.times[round];
      rates.push_back(static_cast<double>(rows) / time.wall_s);
      wall.push_back(plain[round].wall_s / time.wall_s);
      cpu.push_back(plain[round].cpu_s / time.cpu_s);
    }
    std::printf("  %-20s %s tokens/s; beside plain %s, by CPU time %s\n", one.name.c_str(), Spread(rates).c_str(),
                Spread(wall).c_str(), Spread(cpu).c_str());
  }
  std::fflush(stdout);
}

// Plain decode first, then windows for contexts of S with a full reserve, half of that beside the window, and `least`
// rows beside it.
std::vector<Case> CasesFor(Batch& batch, int64_t context, int64_t least) {
  const int64_t past = context - 1;
  std::vector<Case> cases;
  cases.push_back({"plain", batch.PlainLoop()});
  for (const int64_t reserve : {2 * past, past + past / 2, past + least}) {
    cases.push_back(
        {absl::StrCat("window in ", reserve, " rows"), batch.WindowLoop(Must(MakeStaticWindowSize(context, reserve)))});
  }
  return cases;
}

int64_t Number(const std::string& text) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) Must(absl::InvalidArgumentError("not a number: " + text));
  return number;
}

int Main(int argc, char** argv) {
  const auto argument = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  const std::string path = WriteModel();
  const auto device = Must(NewCpuDevice({.threads = static_cast<int>(Number(argument(1, "1")))}));
  const auto model = Must(LoadModel(Must(OpenGguf(path)), device, kUseDecode, [](int, int) {}));
  unlink(path.c_str());
  const int64_t rounds = Number(argument(3, "5")), steps = Number(argument(4, "32"));
  for (const auto& pair : absl::StrSplit(argument(2, "1:512,1:2048,8:512,8:2048"), ',')) {
    const std::vector<std::string> parts = absl::StrSplit(pair, ':');
    const int64_t rows = Number(parts.at(0)), length = Number(parts.at(1)), room = kWarmSteps + steps;
    const int64_t context = length + room;
    Batch batch(device, model, rows, length, room);
    std::printf("batch %ld, %ld tokens and %ld more, S %ld:\n", static_cast<long>(rows), static_cast<long>(length),
                static_cast<long>(room), static_cast<long>(context));
    // As many rows beside the window as steps: nothing is copied in any of them.
    Compare(batch, rows, CasesFor(batch, context, room), rounds, steps);
  }
  constexpr int64_t kWindow = 128, kLength = 1024;
  const int64_t window_steps = 4 * kWindow;
  for (const int64_t rows : {1, 8}) {
    Batch batch(device, std::make_shared<WindowedModel>(model, kWindow), rows, kLength, kWarmSteps + window_steps);
    std::printf("batch %ld, %ld tokens and %ld more, attention to %ld, S %ld:\n", static_cast<long>(rows),
                static_cast<long>(kLength), static_cast<long>(window_steps), static_cast<long>(kWindow),
                static_cast<long>(kWindow));
    Compare(batch, rows, CasesFor(batch, kWindow, 1), rounds, window_steps);
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
