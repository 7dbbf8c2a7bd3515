// One worker's prefill, and the share of it that its matrix products alone take, on the same shapes in the same run.
//   prefill MODEL [threads] [dtype[+kv dtype]] [tokens,...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/bench/dtypes.h"
#include "tests/bench/must.h"
#include "tests/testing/dense_kv.h"
#include "worker/format/gguf.h"
#include "worker/model/llama.h"
#include "worker/model/warm_up.h"

namespace runahead {
namespace {

constexpr int kRepetitions = 5;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class PrefillBench {
 public:
  PrefillBench(const std::string& path, int threads, const std::string& dtype) {
    CpuDeviceOptions options{.threads = threads};
    file_ = Must(OpenGguf(path));
    SetDTypes(dtype, MostlyQuantised(*file_), options);
    device_ = Must(NewCpuDevice(options));
    config_ = Must(ReadModelConfig(*file_));
    weights_ = Must(LoadLlamaWeights(TensorLoader(file_, device_, kUsePrefill), config_, [](int, int) {}));
    model_ = std::make_shared<LlamaModel>(config_, device_, weights_);
    Must(WarmUp(*model_, *device_, kUsePrefill));
    stream_ = device_->NewStream("bench");
    scratch_ = std::make_unique<ForwardScratch>(*device_);
    memory_ = std::make_unique<OwnedPassMemory>(*device_);
  }
  ~PrefillBench() { stream_.reset(); }

  const ModelConfig& config() const { return config_; }
  const Device& device() const { return *device_; }

  double Pass(int64_t tokens) {
    DenseKv kv(*device_, *model_, tokens);
    kv.Next(tokens);
    ForwardBatch batch;
    for (int64_t i = 0; i < tokens; ++i) batch.ids.push_back(static_cast<int32_t>(i * 7919 % config_.vocab));
    batch.logit_rows = {tokens - 1};
    const absl::Time begin = absl::Now();
    Must(EnqueuePass(*model_, *device_, *stream_, *memory_, batch, kv).status());
    Must(device_->Record(*stream_).Wait());
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

  // The projections of all layers, nothing else.
  double Products(int64_t tokens) {
    const DType act = device_->compute_dtype();
    const int64_t chunk = std::min(tokens, device_->gemm_rows());
    const int64_t query_dim = config_.heads * config_.head_dim;
    const Tensor wide = Must(scratch_->Get(0, act, chunk, std::max({config_.hidden, query_dim, config_.ffn})));
    std::memset(wide.ref.data(), 0x3c, wide.ref.size);
    const Tensor qkv = Must(scratch_->Get(1, DType::kF32, chunk, query_dim + 2 * config_.kv_dim()));
    const Tensor x = Must(scratch_->Get(2, DType::kF32, chunk, config_.hidden));
    const Tensor gate_up = Must(scratch_->Get(3, act, chunk, 2 * config_.ffn));
    const absl::Time begin = absl::Now();
    for (const LlamaLayer& layer : weights_.layers) {
      for (int64_t row = 0; row < tokens; row += chunk) {
        const int64_t rows = std::min(chunk, tokens - row);
        const auto in = [&](int64_t cols) { return MakeTensor(wide.ref, act, rows, cols); };
        Must(device_->Linear(*stream_, in(config_.hidden), layer.matrices[kLlamaQkv], {}, qkv.Rows(0, rows)));
        Must(device_->Linear(*stream_, in(query_dim), layer.matrices[kLlamaOutput], {.accumulate = true},
                             x.Rows(0, rows)));
        Must(device_->Linear(*stream_, in(config_.hidden), layer.matrices[kLlamaGateUp], {}, gate_up.Rows(0, rows)));
        Must(device_->Linear(*stream_, in(config_.ffn), layer.matrices[kLlamaDown], {.accumulate = true},
                             x.Rows(0, rows)));
      }
    }
    Must(device_->Record(*stream_).Wait());
    return absl::ToDoubleSeconds(absl::Now() - begin);
  }

 private:
  std::shared_ptr<Device> device_;
  std::shared_ptr<const ModelFile> file_;
  ModelConfig config_;
  LlamaWeights weights_;
  std::shared_ptr<LlamaModel> model_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<ForwardScratch> scratch_;  // of Products
  std::unique_ptr<OwnedPassMemory> memory_;
};

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: prefill MODEL [threads] [dtype[+kv dtype]] [tokens,...]\n");
    return 2;
  }
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  std::vector<int64_t> lengths;
  for (const auto part : absl::StrSplit(argc > 4 ? argv[4] : "128,512,1024,2048,4096,8000", ',')) {
    int64_t tokens = 0;
    if (!absl::SimpleAtoi(part, &tokens) || tokens < 1) {
      std::fprintf(stderr, "tokens: '%s' is not a positive number\n", std::string(part).c_str());
      return 2;
    }
    lengths.push_back(tokens);
  }
  PrefillBench bench(argv[1], threads, argc > 3 ? argv[3] : "auto");
  std::printf("%s, cpu, %s, %d threads; medians of %d, pass and products in turn\n", bench.config().name.c_str(),
              std::string(bench.device().numerics()).c_str(), threads, kRepetitions);
  std::printf("%8s %10s %10s %12s %10s %10s\n", "tokens", "pass ms", "min..max", "tokens/s", "gemm ms", "gemm share");
  for (int64_t tokens : lengths) {
    if (tokens > bench.config().context_length) continue;
    std::vector<double> pass, products;
    for (int i = 0; i < kRepetitions; ++i) {
      pass.push_back(bench.Pass(tokens));
      products.push_back(bench.Products(tokens));
    }
    const auto [low, high] = std::minmax_element(pass.begin(), pass.end());
    std::printf("%8ld %10.1f %5.0f..%-5.0f %10.0f %10.1f %10.2f\n", static_cast<long>(tokens), Median(pass) * 1e3,
                *low * 1e3, *high * 1e3, static_cast<double>(tokens) / Median(pass), Median(products) * 1e3,
                Median(products) / Median(pass));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
