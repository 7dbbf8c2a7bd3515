#include "tests/bench/gpu_model.h"

#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "kernels/base/status_macros.h"
#include "tests/bench/random_values.h"

namespace runahead {
namespace {

// Of one column count: enough that no cache line of a matrix is like its neighbours'.
constexpr int64_t kRandomGpuRows = 512;
constexpr size_t kRandomBytes = 4 << 20;

// Makes matrices of a block of random rows for each column count, each beginning elsewhere in its block.
class RandomMatrices {
 public:
  explicit RandomMatrices(Device& device) : device_(device) {}

  absl::StatusOr<std::shared_ptr<const Weights>> Make(int64_t rows, int64_t cols) {
    const DType dtype = device_.compute_dtype();
    std::vector<std::byte>& block = blocks_[cols];
    if (block.empty()) {
      block = RandomValues(dtype, kRandomGpuRows * cols, 1 / std::sqrt(static_cast<float>(cols)), 1);
    }
    WeightSource source{nullptr, cols, {}};
    int64_t at = made_++ * 37 % kRandomGpuRows;
    for (int64_t done = 0; done < rows;) {
      const int64_t take = std::min(rows - done, kRandomGpuRows - at);
      source.runs.push_back({WeightTypeOf(dtype), block.data() + at * cols * DTypeSize(dtype), take});
      done += take;
      at = 0;
    }
    return device_.LoadWeights(source, kUsePrefill | kUseDecode);
  }

 private:
  Device& device_;
  std::map<int64_t, std::vector<std::byte>> blocks_;
  int64_t made_ = 0;
};

absl::StatusOr<Tensor> Upload(Device& device, const std::vector<float>& values, int64_t rows) {
  const size_t bytes = values.size() * sizeof(float);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host, device.Allocate(bytes, MemoryKind::kHost));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device.Allocate(bytes, MemoryKind::kDevice));
  std::memcpy(host->data(), values.data(), bytes);
  const std::unique_ptr<Stream> stream = device.NewStream("load");
  RUNAHEAD_RETURN_IF_ERROR(device.Copy(*stream, BufferRef::Whole(host), BufferRef::Whole(buffer)));
  RUNAHEAD_RETURN_IF_ERROR(device.Record(*stream).Wait());
  return MakeTensor(BufferRef::Whole(buffer), DType::kF32, rows, static_cast<int64_t>(values.size()) / rows);
}

std::vector<float> RotationTable(const ModelConfig& config) {
  const int64_t half = config.head_dim / 2;
  std::vector<float> table(config.context_length * config.head_dim);
  for (int64_t i = 0; i < config.context_length * half; ++i) {
    const float angle = static_cast<float>(i / half) *
                        std::pow(config.rope_base, -static_cast<float>(i % half) / static_cast<float>(half));
    table[i / half * config.head_dim + i % half] = std::cos(angle);
    table[i / half * config.head_dim + half + i % half] = std::sin(angle);
  }
  return table;
}

}  // namespace

WeightType WeightTypeOf(DType dtype) {
  return dtype == DType::kF32 ? WeightType::kF32 : dtype == DType::kBF16 ? WeightType::kBF16 : WeightType::kF16;
}

std::vector<ModelConfig> BenchModels(const Bench& bench) {
  ModelConfig config{.name = "llama-7b",
                     .fingerprint = "random",
                     .layers = bench.layers,
                     .hidden = 4096,
                     .heads = 32,
                     .kv_heads = 32,
                     .head_dim = 128,
                     .ffn = 11008,
                     .vocab = 32000,
                     .context_length = 33000,
                     .norm_eps = 1e-5f,
                     .rope_base = 10000,
                     .rotated = 128,
                     .windows = {}};
  ModelConfig newer = config;
  newer.name = "llama-3-8b";
  newer.kv_heads = 8;
  newer.ffn = 14336;
  newer.vocab = 128256;
  newer.rope_base = 500000;
  if (!bench.tiny) return {config, newer};
  newer.name = "tiny";
  newer.hidden = 128;
  newer.heads = 4;
  newer.kv_heads = 2;
  newer.head_dim = 32;
  newer.ffn = 192;
  newer.vocab = 320;
  newer.context_length = 1024;
  return {newer};
}

absl::StatusOr<BenchModel> MakeBenchModel(const Bench& bench, const ModelConfig& config) {
  Device& device = *bench.device;
  RandomMatrices matrices(device);
  const int64_t query_dim = config.heads * config.head_dim;
  BenchModel made;
  made.config = config;
  RUNAHEAD_ASSIGN_OR_RETURN(made.weights.tables.embedding, matrices.Make(config.vocab, config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(made.weights.tables.head, matrices.Make(config.vocab, config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(const Tensor norm, Upload(device, std::vector<float>(config.hidden, 1), 1));
  RUNAHEAD_ASSIGN_OR_RETURN(made.weights.rotation, Upload(device, RotationTable(config), config.context_length));
  made.weights.output_norm = norm;
  for (int64_t i = 0; i < config.layers; ++i) {
    LlamaLayer layer;
    layer.attention_norm = layer.ffn_norm = norm;
    RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaQkv], matrices.Make(query_dim + 2 * config.kv_dim(), config.hidden));
    RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaOutput], matrices.Make(config.hidden, query_dim));
    RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaGateUp], matrices.Make(2 * config.ffn, config.hidden));
    RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kLlamaDown], matrices.Make(config.hidden, config.ffn));
    made.weights.layers.push_back(std::move(layer));
  }
  made.full = std::make_shared<const LlamaModel>(config, bench.device, made.weights);
  ModelConfig half = config;
  half.layers = config.layers / 2;
  LlamaWeights fewer = made.weights;
  fewer.layers.resize(half.layers);
  made.half = std::make_shared<const LlamaModel>(std::move(half), bench.device, std::move(fewer));
  return made;
}

absl::StatusOr<BufferRef> RandomMemory(Device& device, size_t bytes) {
  const size_t first = std::min(bytes, kRandomBytes);
  const size_t size = DTypeSize(device.compute_dtype());
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device.Allocate(bytes, MemoryKind::kDevice));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host, device.Allocate(first, MemoryKind::kHost));
  const std::vector<std::byte> values =
      RandomValues(device.compute_dtype(), static_cast<int64_t>((first + size - 1) / size), 1, 2);
  std::memcpy(host->data(), values.data(), first);
  const BufferRef whole = BufferRef::Whole(std::move(buffer));
  const std::unique_ptr<Stream> stream = device.NewStream("fill");
  RUNAHEAD_RETURN_IF_ERROR(device.Copy(*stream, BufferRef::Whole(host), whole.Slice(0, first)));
  for (size_t done = first; done < bytes;) {
    const size_t more = std::min(done, bytes - done);
    RUNAHEAD_RETURN_IF_ERROR(device.Copy(*stream, whole.Slice(0, more), whole.Slice(done, more)));
    done += more;
  }
  RUNAHEAD_RETURN_IF_ERROR(device.Record(*stream).Wait());
  return whole;
}

absl::StatusOr<Tensor> RandomTensor(Device& device, int64_t rows, int64_t cols) {
  const DType dtype = device.compute_dtype();
  RUNAHEAD_ASSIGN_OR_RETURN(const BufferRef memory, RandomMemory(device, rows * cols * DTypeSize(dtype)));
  return MakeTensor(memory, dtype, rows, cols);
}

absl::StatusOr<Tensor> EmptyTensor(Device& device, DType dtype, int64_t rows, int64_t cols) {
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer,
                            device.Allocate(rows * cols * DTypeSize(dtype), MemoryKind::kDevice));
  return MakeTensor(BufferRef::Whole(std::move(buffer)), dtype, rows, cols);
}

ForwardBatch PromptBatch(const ModelConfig& config, int64_t tokens) {
  ForwardBatch batch;
  for (int64_t i = 0; i < tokens; ++i) batch.ids.push_back(static_cast<int32_t>(i * 7919 % config.vocab));
  batch.logit_rows = {tokens - 1};
  return batch;
}

Timing DepthTiming::layer() const {
  const double more = static_cast<double>(layers - layers / 2);
  Timing timing = full;
  timing.median_s = (full.median_s - half.median_s) / more;
  timing.spread_s = (full.spread_s + half.spread_s) / more;
  if (timing.median_s <= 0) timing.median_s = full.median_s / static_cast<double>(layers);
  return timing;
}

double DepthTiming::whole_s() const {
  return full.median_s + static_cast<double>(kWholeLayers - layers) * layer().median_s;
}

double ProductFlops(const ModelConfig& config, int64_t tokens) {
  const int64_t query_dim = config.heads * config.head_dim;
  const int64_t weights =
      config.hidden * (query_dim + 2 * config.kv_dim()) + query_dim * config.hidden + 3 * config.hidden * config.ffn;
  return 2.0 * static_cast<double>(weights) * static_cast<double>(tokens);
}

double AttentionFlops(int64_t heads, int64_t head_dim, int64_t queries, int64_t length) {
  const double pairs = static_cast<double>(queries) * static_cast<double>(length) -
                       static_cast<double>(queries) * static_cast<double>(queries - 1) / 2;
  return 4.0 * static_cast<double>(heads * head_dim) * pairs;
}

}  // namespace runahead
