#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "worker/model/llama.h"
#include "worker/model/llama_config.h"

namespace runahead {
namespace {

// Reads tensors of one file by name and shape. Thread-safe.
class Loader {
 public:
  Loader(std::shared_ptr<const GgufFile> file, Device& device)
      : file_(std::move(file)), device_(device), stream_(device.NewStream("load")) {}

  // Appends tensor `name`, which must be [rows, cols], to `source`.
  absl::Status Append(const std::string& name, int64_t rows, int64_t cols, WeightSource& source) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {cols, rows}));
    source.owner = file_;
    source.cols = cols;
    source.runs.push_back({tensor->type, tensor->data.data(), rows});
    return absl::OkStatus();
  }

  // The same for Q and K: row 2i+j of a head is row j*head_dim/2 + i of the rotate-half form.
  absl::Status AppendUnpermuted(const std::string& name, int64_t heads, int64_t head_dim, int64_t cols,
                                WeightSource& source) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {cols, heads * head_dim}));
    const WeightType type = tensor->type;
    const size_t row_bytes = WeightRowBytes(type, cols);
    source.owner = file_;
    source.cols = cols;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < head_dim; ++row) {
        const int64_t stored = head * head_dim + 2 * (row % (head_dim / 2)) + row / (head_dim / 2);
        source.runs.push_back({type, tensor->data.data() + stored * row_bytes, 1});
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Tensor> Vector(const std::string& name, int64_t size) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const GgufTensor* tensor, Find(name, {size}));
    if (tensor->type != WeightType::kF32) {
      return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", name, " is not f32"));
    }
    return Upload(reinterpret_cast<const float*>(tensor->data.data()), 1, size);
  }

  absl::StatusOr<Tensor> Upload(const float* values, int64_t rows, int64_t cols) const {
    const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host, device_.Allocate(bytes, MemoryKind::kHost));
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device_.Allocate(bytes, MemoryKind::kDevice));
    std::memcpy(host->data(), values, bytes);
    RUNAHEAD_RETURN_IF_ERROR(CopyNow(BufferRef::Whole(host), BufferRef::Whole(buffer)));
    return MakeTensor(BufferRef::Whole(buffer), DType::kF32, rows, cols);
  }

  Device& device() const { return device_; }
  const GgufFile& file() const { return *file_; }

 private:
  absl::StatusOr<const GgufTensor*> Find(const std::string& name, const std::vector<int64_t>& dims) const {
    RUNAHEAD_ASSIGN_OR_RETURN(const GgufTensor* tensor, file_->FindTensor(name));
    if (tensor->dims != dims) {
      return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", name, " is [",
                                                     absl::StrJoin(tensor->dims, ", "), "], the model's keys say [",
                                                     absl::StrJoin(dims, ", "), "]"));
    }
    return tensor;
  }

  absl::Status CopyNow(const BufferRef& from, const BufferRef& to) const RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    RUNAHEAD_RETURN_IF_ERROR(device_.Copy(*stream_, from, to));
    return device_.Record(*stream_).Wait();
  }

  const std::shared_ptr<const GgufFile> file_;
  Device& device_;
  mutable Mutex mu_;
  const std::unique_ptr<Stream> stream_ RUNAHEAD_PT_GUARDED_BY(mu_);
};

absl::Status LoadLayer(const Loader& loader, const ModelConfig& config, unsigned uses, int64_t index,
                       LlamaLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t query_dim = config.heads * config.head_dim;
  WeightSource qkv, output, gate_up, down;
  RUNAHEAD_RETURN_IF_ERROR(
      loader.AppendUnpermuted(prefix + "attn_q.weight", config.heads, config.head_dim, config.hidden, qkv));
  RUNAHEAD_RETURN_IF_ERROR(
      loader.AppendUnpermuted(prefix + "attn_k.weight", config.kv_heads, config.head_dim, config.hidden, qkv));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "attn_v.weight", config.kv_dim(), config.hidden, qkv));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "attn_output.weight", config.hidden, query_dim, output));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_gate.weight", config.ffn, config.hidden, gate_up));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_up.weight", config.ffn, config.hidden, gate_up));
  RUNAHEAD_RETURN_IF_ERROR(loader.Append(prefix + "ffn_down.weight", config.hidden, config.ffn, down));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.attention_norm, loader.Vector(prefix + "attn_norm.weight", config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.ffn_norm, loader.Vector(prefix + "ffn_norm.weight", config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.qkv, loader.device().LoadWeights(qkv, uses));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.output, loader.device().LoadWeights(output, uses));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.gate_up, loader.device().LoadWeights(gate_up, uses));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.down, loader.device().LoadWeights(down, uses));
  return absl::OkStatus();
}

// Everything that is not a layer. The head is only ever applied to a few rows, and rows are looked up in the embedding:
// both stay as stored.
absl::Status LoadEnds(const Loader& loader, const ModelConfig& config, LlamaWeights& weights) {
  WeightSource embedding, head;
  RUNAHEAD_RETURN_IF_ERROR(loader.Append("token_embd.weight", config.vocab, config.hidden, embedding));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.embedding, loader.device().LoadWeights(embedding, kUseDecode));
  weights.head = weights.embedding;
  if (loader.file().FindTensor("output.weight").ok()) {
    RUNAHEAD_RETURN_IF_ERROR(loader.Append("output.weight", config.vocab, config.hidden, head));
    RUNAHEAD_ASSIGN_OR_RETURN(weights.head, loader.device().LoadWeights(head, kUseDecode));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector("output_norm.weight", config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> rotation, LlamaRotation(loader.file(), config));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.rotation, loader.Upload(rotation.data(), config.context_length, config.head_dim));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LlamaWeights> LoadLlamaWeights(std::shared_ptr<const GgufFile> file, const ModelConfig& config,
                                              Device& device, unsigned uses,
                                              const std::function<void(int, int)>& progress) {
  const Loader loader(std::move(file), device);
  LlamaWeights weights;
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadEnds(loader, config, weights));

  const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::atomic<int64_t> next{0};
  std::atomic<int> done{0};
  Mutex mu;
  absl::Status first_error;
  auto load_layers = [&] {
    for (int64_t index = next++; index < config.layers; index = next++) {
      const absl::Status status = LoadLayer(loader, config, uses, index, weights.layers[index]);
      MutexLock lock(mu);
      if (!status.ok()) {
        if (first_error.ok()) first_error = status;
        next = config.layers;
      }
      progress(++done, static_cast<int>(config.layers));
    }
  };
  std::vector<std::thread> team;
  for (int i = 1; i < threads; ++i) team.emplace_back(load_layers);
  load_layers();
  for (std::thread& thread : team) thread.join();
  RUNAHEAD_RETURN_IF_ERROR(first_error);
  return weights;
}

}  // namespace runahead
