#include "worker/model/opt.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/projection_scratch.h"
#include "worker/model/recomputed_kv.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/token_tables.h"

namespace runahead {
namespace {

// The position table's first rows stand for padding.
constexpr int32_t kFirstPosition = 2;

// A layer's matrices, in the order of Model::Matrices.
enum OptMatrix {
  kQkvMatrix,     // [3*hidden, hidden]: Q over K over V
  kOutputMatrix,  // [hidden, hidden]
  kUpMatrix,      // [ffn, hidden]
  kDownMatrix,    // [hidden, ffn]
};

struct OptLayer {
  Tensor attention_norm, attention_norm_bias;  // f32 [1, hidden]
  Tensor qkv_bias;                             // f32 [1, 3*hidden]
  Tensor output_bias;                          // f32 [1, hidden]
  Tensor ffn_norm, ffn_norm_bias;              // f32 [1, hidden]
  Tensor up_bias;                              // f32 [1, ffn]
  Tensor down_bias;                            // f32 [1, hidden]
  std::array<std::shared_ptr<const Weights>, 4> matrices;
};

struct OptWeights {
  TokenTables tables;
  std::shared_ptr<const Weights> positions;  // [kFirstPosition + context_length, hidden]
  std::vector<OptLayer> layers;
  Tensor output_norm, output_norm_bias;  // f32 [1, hidden]
};

// Slots of the sections' scratch.
enum OptSlot { kOptNormed, kOptQkv, kOptFfn };

class OptModel final : public Model {
 public:
  OptModel(ModelConfig config, std::shared_ptr<Device> device, OptWeights weights)
      : config_(std::move(config)), device_(std::move(device)), weights_(std::move(weights)) {
    shape_.heads = shape_.kv_heads = config_.heads;
    shape_.head_dim = config_.head_dim;
    shape_.kv_dtype = device_->kv_dtype();
    shape_.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  }
  const ModelConfig& config() const override { return config_; }
  const AttentionShape& attention(int64_t) const override { return shape_; }
  LayerMatrices Matrices(int64_t layer) const override { return weights_.layers[layer].matrices; }
  std::vector<std::shared_ptr<const Weights>> Tables() const override {
    std::vector<std::shared_ptr<const Weights>> tables = weights_.tables.All();
    tables.push_back(weights_.positions);
    return tables;
  }

  // x = Wtoken[id] + Wposition[position].
  absl::Status Embed(const SectionRows& rows, absl::Span<const int32_t> ids, const MutTensor& x) const override {
    std::vector<int32_t> positions(rows.positions().begin(), rows.positions().end());
    for (int32_t& position : positions) position += kFirstPosition;
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Embed(rows.stream, *weights_.tables.embedding, {ids.begin(), ids.end()}, false, x));
    return device_->Embed(rows.stream, *weights_.positions, std::move(positions), true, x);
  }

  // Q, K, V = norm(x) * Wqkv + bqkv.
  absl::Status Project(const SectionRows& rows, int64_t index, const ConstTensor& x,
                       const Projection& to) const override {
    const OptLayer& layer = weights_.layers[index];
    const int64_t hidden = config_.hidden;
    RUNAHEAD_ASSIGN_OR_RETURN(const ProjectionScratch scratch,
                              ScratchOf(*device_, rows, to, {kOptNormed, kOptQkv}, hidden, hidden, hidden));
    const auto norm = [&](const Tensor& out) {
      return device_->LayerNorm(rows.stream, x, layer.attention_norm, layer.attention_norm_bias, config_.norm_eps, out);
    };
    RUNAHEAD_RETURN_IF_ERROR(norm(scratch.normed));
    if (scratch.other_normed) RUNAHEAD_RETURN_IF_ERROR(norm(to.normed));
    RUNAHEAD_RETURN_IF_ERROR(device_->Linear(rows.stream, scratch.normed, rows.Matrix(layer.matrices, kQkvMatrix),
                                             {.batch_invariant = rows.batch_invariant, .bias = layer.qkv_bias},
                                             scratch.qkv));
    if (to.qkv.ref.buffer != nullptr) return absl::OkStatus();
    return device_->StoreQkv(rows.stream, scratch.qkv, shape_, to.q, rows.table, rows.first, to.kv);
  }

  // K, V = X * Wkv + bkv.
  absl::Status Recompute(const SectionRows& rows, int64_t index, const ConstTensor& normed,
                         const BufferRef& kv) const override {
    const OptLayer& layer = weights_.layers[index];
    const std::shared_ptr<const Weights>& matrix = rows.Matrix(layer.matrices, kQkvMatrix);
    if (WritesKv(*device_, rows, shape_)) {
      return device_->Linear(rows.stream, normed, matrix, KvProduct(rows, shape_, layer.qkv_bias),
                             RowsOfKv(rows, shape_, kv));
    }
    return InPieces(*device_, rows, normed, [&](const SectionRows& piece, const ConstTensor& x) -> absl::Status {
      RUNAHEAD_ASSIGN_OR_RETURN(const Tensor k_and_v,
                                rows.scratch.Get(kOptQkv, DType::kF32, piece.count, 2 * config_.hidden));
      RUNAHEAD_RETURN_IF_ERROR(
          device_->Linear(rows.stream, x, matrix, KvProduct(piece, shape_, layer.qkv_bias), k_and_v));
      return device_->StoreQkv(rows.stream, k_and_v, shape_, {}, rows.table, piece.first, kv);
    });
  }

  // x += attended * Wo + bo;  x += relu(norm(x) * Wup + bup) * Wdown + bdown.
  absl::Status Finish(const SectionRows& rows, int64_t index, const ConstTensor& attended,
                      const MutTensor& x) const override {
    const OptLayer& layer = weights_.layers[index];
    const auto add = [&](const Tensor& bias) {
      return LinearOptions{.accumulate = true, .batch_invariant = rows.batch_invariant, .bias = bias};
    };
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kOptNormed, attended.dtype, x.rows, config_.hidden));
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor ffn, rows.scratch.Get(kOptFfn, attended.dtype, x.rows, config_.ffn));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->Linear(rows.stream, attended, rows.Matrix(layer.matrices, kOutputMatrix), add(layer.output_bias), x));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->LayerNorm(rows.stream, x, layer.ffn_norm, layer.ffn_norm_bias, config_.norm_eps, normed));
    RUNAHEAD_RETURN_IF_ERROR(device_->Linear(
        rows.stream, normed, rows.Matrix(layer.matrices, kUpMatrix),
        {.batch_invariant = rows.batch_invariant, .bias = layer.up_bias, .activation = Activation::kRelu}, ffn));
    return device_->Linear(rows.stream, ffn, rows.Matrix(layer.matrices, kDownMatrix), add(layer.down_bias), x);
  }

  // norm(x) * Wtoken.
  absl::Status Logits(const SectionRows& rows, const ConstTensor& x, const MutTensor& logits) const override {
    RUNAHEAD_ASSIGN_OR_RETURN(const Tensor normed,
                              rows.scratch.Get(kOptNormed, device_->invariant_dtype(), x.rows, config_.hidden));
    RUNAHEAD_RETURN_IF_ERROR(
        device_->LayerNorm(rows.stream, x, weights_.output_norm, weights_.output_norm_bias, config_.norm_eps, normed));
    return device_->Linear(rows.stream, normed, weights_.tables.head, {.batch_invariant = true}, logits);
  }

 private:
  const ModelConfig config_;
  const std::shared_ptr<Device> device_;
  const OptWeights weights_;
  AttentionShape shape_;
};

absl::Status LoadOptLayer(const TensorLoader& loader, const ModelConfig& config, int64_t index, OptLayer& layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t hidden = config.hidden;
  WeightSource qkv;
  std::vector<TensorLoader::VectorPart> qkv_bias;
  for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
    RUNAHEAD_RETURN_IF_ERROR(loader.Append(absl::StrCat(prefix, name, ".weight"), hidden, hidden, qkv));
    qkv_bias.push_back({absl::StrCat(prefix, name, ".bias"), hidden});
  }
  qkv.cuts = {hidden};  // K and V alone
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kQkvMatrix], loader.LoadForRecompute(qkv));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.qkv_bias, loader.Vector(qkv_bias));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kOutputMatrix],
                            loader.Matrix(prefix + "attn_output.weight", hidden, hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kUpMatrix], loader.Matrix(prefix + "ffn_up.weight", config.ffn, hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(layer.matrices[kDownMatrix], loader.Matrix(prefix + "ffn_down.weight", hidden, config.ffn));
  const struct {
    const char* name;
    int64_t size;
    Tensor& to;
  } vectors[] = {
      {"attn_norm.weight", hidden, layer.attention_norm}, {"attn_norm.bias", hidden, layer.attention_norm_bias},
      {"attn_output.bias", hidden, layer.output_bias},    {"ffn_norm.weight", hidden, layer.ffn_norm},
      {"ffn_norm.bias", hidden, layer.ffn_norm_bias},     {"ffn_up.bias", config.ffn, layer.up_bias},
      {"ffn_down.bias", hidden, layer.down_bias}};
  for (const auto& [name, size, to] : vectors) {
    RUNAHEAD_ASSIGN_OR_RETURN(to, loader.Vector({{prefix + name, size}}));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ReadOptConfig(const ConfigKeys& keys) {
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, keys.Common());
  RUNAHEAD_ASSIGN_OR_RETURN(config.norm_eps, keys.NotNegative("attention.layer_norm_epsilon"));
  if (config.hidden % config.heads != 0) {
    return keys.Refuse("attention.head_count",
                       absl::StrCat(config.heads, " heads do not divide a hidden size of ", config.hidden));
  }
  config.head_dim = config.hidden / config.heads;
  return config;
}

absl::StatusOr<std::shared_ptr<const Model>> LoadOpt(const TensorLoader& loader, ModelConfig config,
                                                     const std::function<void(int, int)>& progress) {
  OptWeights weights;
  RUNAHEAD_ASSIGN_OR_RETURN(weights.tables, LoadTokenTables(loader, config));
  RUNAHEAD_ASSIGN_OR_RETURN(
      weights.positions, loader.Table("position_embd.weight", kFirstPosition + config.context_length, config.hidden));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm, loader.Vector({{"output_norm.weight", config.hidden}}));
  RUNAHEAD_ASSIGN_OR_RETURN(weights.output_norm_bias, loader.Vector({{"output_norm.bias", config.hidden}}));
  weights.layers.resize(config.layers);
  RUNAHEAD_RETURN_IF_ERROR(LoadLayers(
      config.layers, [&](int64_t index) { return LoadOptLayer(loader, config, index, weights.layers[index]); },
      progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const OptModel>(std::move(config), loader.device(), std::move(weights));
}

}  // namespace runahead
