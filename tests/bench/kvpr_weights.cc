// Schedules of decode with weights in host memory, side by side on the CPU's device with an emulated link: column by
// column (a layer's weights for all sequences of one step), row by row (a quarter of the sequences after the other,
// each to its end, with weights streamed for each), and weights on the device.
//   kvpr_weights [batch] [length] [link in Gbit/s] [rounds] [steps]
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/must.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/decode/kvpr/weight_stream.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr int64_t kGroups = 4;  // of row by row
constexpr int64_t kWarmSteps = 2;

struct Question {
  int64_t batch = 32, length = 64;
  double link_gbps = 10;
  int64_t rounds = 3, steps = 8;
};

std::string WriteModel() {
  SyntheticModel model;
  model.layers = 4;
  model.hidden = 512;
  model.heads = model.kv_heads = 8;
  model.ffn = 1376;
  const std::string path = absl::StrCat("/tmp/runahead_bench_kvpr_weights_", getpid(), ".gguf");
  Must(WriteSyntheticGguf(model, path));
  return path;
}

// Equal sequences in a store of one device, and a loop that decodes them from the same position on, again and again.
class Bench {
 public:
  Bench(const std::string& path, unsigned uses, const Question& question) : question_(question) {
    device_ =
        Must(NewCpuDevice({.threads = 1, .emulated_link = Must(EmulatedLink::Create({.gbps = question.link_gbps}))}));
    model_ = Must(LoadModel(Must(OpenGguf(path)), device_, uses, [](int, int) {}));
    stream_ = device_->NewStream("decode");
    const int64_t total = question.length + kWarmSteps + question.steps + 1;
    store_ = Must(KvStore::Create({.layers = model_->config().layers,
                                   .row_bytes = model_->kv_row_bytes(),
                                   .capacity_tokens = KvBlocksFor(total) * kKvBlockTokens * question.batch},
                                  *device_, RealClock()));
    for (int64_t i = 0; i < question.batch; ++i) sequences_.push_back(Fill(total));
    loop_ = Must(KvprLoop::Create(*model_, *device_, *store_, *stream_,
                                  std::make_unique<FixedSplit>(0, LaneCosts{.link_bytes_per_s = 1}),
                                  {.max_rows = question.batch}));
  }

  // Tokens a second of all sequences, `rows` of them at a time, after some steps that are not counted.
  double TokensPerSecond(int64_t rows) {
    double seconds = 0;
    for (int64_t first = 0; first < question_.batch; first += rows) {
      const auto group = absl::MakeConstSpan(sequences_).subspan(first, rows);
      absl::Time begin;
      for (int64_t step = 0; step < kWarmSteps + question_.steps; ++step) {
        if (step == kWarmSteps) begin = MonotonicNow();
        std::vector<DecodeRow> of_step;
        for (const KvStore::Sequence& one : group) of_step.push_back({&one, 7, question_.length + step});
        Must(loop_->Step(of_step).status());
        Must(device_->Record(*stream_).Wait());
      }
      seconds += absl::ToDoubleSeconds(MonotonicNow() - begin);
      for (const KvStore::Sequence& one : group) loop_->Leave(one);
    }
    return static_cast<double>(question_.batch * question_.steps) / seconds;
  }

  const Model& model() const { return *model_; }

 private:
  KvStore::Sequence Fill(int64_t total) {
    const LeaseId lease = Must(store_->Reserve({.prompt_tokens = question_.length, .total_tokens = total}));
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      auto write = Must(store_->BeginWrite(lease, layer, 0, question_.length, SliceKind::kKv));
      for (const BufferRef& to : write.destination()) std::memset(to.data(), 0, to.size);
      Must(write.Commit().Wait());
    }
    return Must(store_->Open(lease));
  }

  const Question question_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvStore> store_;
  std::vector<KvStore::Sequence> sequences_;
  std::unique_ptr<KvprLoop> loop_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(const std::string& path, const Question& question) {
  Bench streamed(path, kUseDecode | kUseStreamed, question), resident(path, kUseDecode, question);
  std::vector<double> columns, rows, on_device;
  for (int64_t round = 0; round < question.rounds; ++round) {
    columns.push_back(streamed.TokensPerSecond(question.batch));
    rows.push_back(streamed.TokensPerSecond(question.batch / kGroups));
    on_device.push_back(resident.TokensPerSecond(question.batch));
  }
  const double weights_s = StreamedLayerBytes(streamed.model()) / (question.link_gbps / 8 * 1e9);
  const double kv_s = static_cast<double>(question.batch * question.length * streamed.model().kv_row_bytes()) /
                      (question.link_gbps / 8 * 1e9);
  std::printf("batch %ld, length %ld, link %.1f Gbit/s: a layer's weights take %.2f ms there, its KV %.2f ms\n",
              static_cast<long>(question.batch), static_cast<long>(question.length), question.link_gbps,
              1e3 * weights_s, 1e3 * kv_s);
  const double reference = Median(rows);
  const auto print = [&](const char* name, const std::vector<double>& of) {
    std::printf("  %-36s %8.1f tokens/s, %.2f x row by row\n", name, Median(of), Median(of) / reference);
  };
  print("throughput (column by column)", columns);
  print("row by row, weights streamed", rows);
  print("weights on the device", on_device);
}

int Main(int argc, char** argv) {
  const auto number = [&](int index, double otherwise) { return NumberAt(argc, argv, index, otherwise); };
  Question question;
  question.batch = std::max(kGroups, static_cast<int64_t>(number(1, 32)) / kGroups * kGroups);
  question.length = static_cast<int64_t>(number(2, 64));
  question.link_gbps = number(3, 10);
  question.rounds = static_cast<int64_t>(number(4, 3));
  question.steps = static_cast<int64_t>(number(5, 8));
  const std::string path = WriteModel();
  Compare(path, question);
  unlink(path.c_str());
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
