// Rows of prompts that a decode worker computes, of a real model on a CPU: by turns a step of one sequence, passes of
// some rows behind a known beginning, and a prefill of as many tokens behind none.
//   prompt_rows MODEL [threads] [dtype[+kv dtype]] [known tokens] [rows,...] [rounds]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "kernels/base/monotonic.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/dtypes.h"
#include "tests/bench/must.h"
#include "worker/decode/decode_loop.h"
#include "worker/format/gguf.h"
#include "worker/model/warm_up.h"

namespace runahead {
namespace {

// The fastest run: others use the machine, too.
double Least(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

// One sequence whose KV is made up, and a loop of each kind over it.
class Bench {
 public:
  Bench(const Model& model, Device& device, int64_t known, int64_t most)
      : device_(device),
        known_(known),
        store_(MakeStore(model, device, known + most)),
        stream_(device.NewStream("bench")),
        sequence_(Fill(known, most)),
        output_(model, device, *store_, *stream_),
        prompt_(model, device, *store_, *stream_, RowKind::kPrompt) {}

  double Seconds(RowKind kind, int64_t count) {
    std::vector<DecodeRow> rows;
    for (int64_t i = 0; i < count; ++i) {
      rows.push_back({.sequence = &sequence_, .token = 7, .position = known_ + i, .wants_logits = i + 1 == count});
    }
    const absl::Time begin = MonotonicNow();
    Must((kind == RowKind::kPrompt ? prompt_ : output_).Step(rows));
    Must(device_.Record(*stream_).Wait());
    return absl::ToDoubleSeconds(MonotonicNow() - begin);
  }

 private:
  static std::unique_ptr<KvStore> MakeStore(const Model& model, Device& device, int64_t tokens) {
    return Must(KvStore::Create({.layers = model.config().layers,
                                 .row_bytes = model.kv_row_bytes(),
                                 .capacity_tokens = KvBlocksFor(tokens) * kKvBlockTokens},
                                device, RealClock()));
  }
  KvStore::Sequence Fill(int64_t known, int64_t most) {
    const LeaseId lease = Must(store_->Reserve({.prompt_tokens = known, .total_tokens = known + most}));
    for (int64_t layer = 0; layer < store_->options().layers; ++layer) {
      auto write = Must(store_->BeginWrite(lease, layer, 0, known));
      for (const BufferRef& to : write.destination()) std::memset(to.data(), 0x3c, to.size);
      Must(write.Commit().Wait());
    }
    return Must(store_->Open(lease));
  }

  Device& device_;
  const int64_t known_;
  const std::unique_ptr<KvStore> store_;
  const std::unique_ptr<Stream> stream_;
  const KvStore::Sequence sequence_;
  DecodeLoop output_, prompt_;
};

int Main(int argc, char** argv) {
  const auto argument = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  CpuDeviceOptions options{.threads = static_cast<int>(Number(argument(2, "2")))};
  const auto file = Must(OpenGguf(argv[1]));
  SetDTypes(argument(3, "auto"), MostlyQuantised(*file), options);
  const auto known = static_cast<int64_t>(Number(argument(4, "256"))),
             rounds = static_cast<int64_t>(Number(argument(6, "9")));
  std::vector<int64_t> counts;
  for (const auto& count : absl::StrSplit(argument(5, "1,8,16,32,64,128,256"), ',')) {
    counts.push_back(static_cast<int64_t>(Number(std::string(count))));
  }
  const std::shared_ptr<Device> device = Must(NewCpuDevice(options));
  const auto model = Must(LoadModel(file, device, kUsePrefill | kUseDecode, [](int, int) {}));
  Bench bench(*model, *device, known, *std::max_element(counts.begin(), counts.end()));
  std::vector<double> step;
  std::vector<std::vector<double>> passes(counts.size()), prefills(counts.size());
  for (int64_t round = 0; round <= rounds; ++round) {
    const double one = bench.Seconds(RowKind::kOutput, 1);
    if (round > 0) step.push_back(one);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double pass = bench.Seconds(RowKind::kPrompt, counts[i]);
      if (round == 0) continue;  // what is made at first
      passes[i].push_back(pass);
      prefills[i].push_back(absl::ToDoubleSeconds(Must(TimePrompt(*model, *device, counts[i]))));
    }
  }
  std::printf("a step of one sequence of %ld: %.2f ms\n", static_cast<long>(known), 1e3 * Least(step));
  for (size_t i = 0; i < counts.size(); ++i) {
    const double pass = Least(passes[i]), prefill = Least(prefills[i]);
    std::printf("%4ld rows: %8.2f ms, %.2f steps, %.0f tokens/s; a prefill of as many: %8.2f ms, %.2f x\n",
                static_cast<long>(counts[i]), 1e3 * pass, pass / Least(step), static_cast<double>(counts[i]) / pass,
                1e3 * prefill, pass / prefill);
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "prompt_rows MODEL [threads] [dtype[+kv dtype]] [known tokens] [rows,...] [rounds]\n");
    return 2;
  }
  return runahead::Main(argc, argv);
}
