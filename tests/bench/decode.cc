// Decode steps of a real model on a CPU: the engine over a store whose KV is made up, for batches and contexts.
//   decode MODEL [threads] [dtype[+kv dtype]] [batch,...] [context,...] [steps]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/base/mutex.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/dtypes.h"
#include "tests/bench/must.h"
#include "worker/decode/engine.h"
#include "worker/format/gguf.h"
#include "worker/model/model.h"
#include "worker/model/warm_up.h"

namespace runahead {
namespace {

// Awaits the ends of all sequences.
class EndCounter final : public DecodeSink {
 public:
  void OnToken(Sampled) override {}
  void OnEnd(absl::Status status) override {
    Must(status);
    MutexLock lock(mu_);
    ++ended_;
    changed_.NotifyAll();
  }
  void Await(int64_t count) {
    MutexLock lock(mu_);
    while (ended_ < count) changed_.Wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t ended_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

DecodeSequence MakeSequence(KvStore& store, const ModelConfig& config, int64_t index, int64_t context, int64_t steps) {
  DecodeSequence sequence;
  for (int64_t i = 0; i < context; ++i) {
    sequence.prompt_ids.push_back(static_cast<int32_t>((i * 7919 + index * 104729) % config.vocab));
  }
  sequence.output_ids = {0};
  sequence.max_tokens = steps;
  sequence.lease = Must(store.Reserve({.prompt_tokens = context, .total_tokens = context + steps}));
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    auto write = Must(store.BeginWrite(sequence.lease, layer, 0, context));
    for (const BufferRef& to : write.destination()) std::memset(to.data(), 0x3c, to.size);
    Must(write.Commit().Wait());
  }
  return sequence;
}

// Seconds of a step of `batch` sequences at `context` and more tokens: the median.
double MedianStep(const std::shared_ptr<Device>& device, const std::shared_ptr<const Model>& model, int64_t batch,
                  int64_t context, int64_t steps) {
  std::vector<double> took;
  DecodeEngineOptions options;
  options.max_batch = batch;
  options.on_step = [&](const DecodeStep& step) {
    if (step.batch_size == batch) took.push_back(absl::ToDoubleSeconds(step.took));
  };
  const ModelConfig& config = model->config();
  const int64_t blocks = (context + steps) / kKvBlockTokens + 1;
  const auto store = Must(KvStore::Create(
      {.layers = config.layers, .row_bytes = model->kv_row_bytes(), .capacity_tokens = batch * blocks * kKvBlockTokens},
      *device, RealClock()));
  const auto ends = std::make_shared<EndCounter>();
  auto engine = Must(DecodeEngine::Create(*device, model, *store, std::move(options)));
  std::vector<DecodeSequence> sequences;
  for (int64_t i = 0; i < batch; ++i) sequences.push_back(MakeSequence(*store, config, i, context, steps));
  for (DecodeSequence& sequence : sequences) Must(engine->Add(std::move(sequence), ends).status());
  ends->Await(batch);
  engine = nullptr;
  std::sort(took.begin(), took.end());
  return took.empty() ? 0 : took[took.size() / 2];
}

std::vector<int64_t> Numbers(const std::string& list) {
  std::vector<int64_t> numbers;
  for (const auto& part : absl::StrSplit(list, ',')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back())) Must(absl::InvalidArgumentError("not a number: " + list));
  }
  return numbers;
}

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: decode MODEL [threads] [dtype[+kv dtype]] [batch,...] [context,...] [steps]\n");
    return 2;
  }
  const auto argument = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  CpuDeviceOptions options{.threads = static_cast<int>(Numbers(argument(2, "1")).front())};
  const auto file = Must(OpenGguf(argv[1]));
  SetDTypes(argument(3, "auto"), MostlyQuantised(*file), options);
  const auto device = Must(NewCpuDevice(options));
  const auto model = Must(LoadModel(file, device, kUseDecode, [](int, int) {}));
  Must(WarmUp(*model, *device, kUseDecode));
  const int64_t steps = Numbers(argument(6, "40")).front();
  for (const int64_t context : Numbers(argument(5, "128,4096"))) {
    for (const int64_t batch : Numbers(argument(4, "1,8,32"))) {
      std::printf("batch %ld context %ld: %.3f ms a step\n", static_cast<long>(batch), static_cast<long>(context),
                  1e3 * MedianStep(device, model, batch, context, steps));
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
