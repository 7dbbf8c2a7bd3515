#include "worker/model/model.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "worker/model/config_keys.h"
#include "worker/model/falcon.h"
#include "worker/model/gemma.h"
#include "worker/model/llama.h"
#include "worker/model/llama_config.h"
#include "worker/model/opt.h"
#include "worker/model/rotary.h"
#include "worker/model/starcoder2.h"
#include "worker/model/tensor_loader.h"
#include "worker/model/unread_keys.h"

namespace runahead {

std::vector<AttentionShape> AttentionShapes(const ModelConfig& config, const Device& device) {
  AttentionShape shape;
  shape.heads = config.heads;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.kv_dtype = device.kv_dtype();
  shape.scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  std::vector<AttentionShape> shapes(config.layers, shape);
  for (size_t layer = 0; layer < config.windows.size(); ++layer) shapes[layer].window = config.windows[layer];
  return shapes;
}

absl::StatusOr<Tensor> ForwardScratch::Get(int slot, DType dtype, int64_t rows, int64_t cols) {
  if (static_cast<size_t>(slot) >= buffers_.size()) buffers_.resize(slot + 1);
  const size_t bytes = static_cast<size_t>(rows * cols) * DTypeSize(dtype);
  if (buffers_[slot] == nullptr || buffers_[slot]->size() < bytes) {
    buffers_[slot] = nullptr;
    RUNAHEAD_ASSIGN_OR_RETURN(buffers_[slot], device_.Allocate(bytes, MemoryKind::kDevice));
  }
  return MakeTensor(BufferRef::Whole(buffers_[slot]), dtype, rows, cols);
}

WeightBytes Model::weight_bytes() const {
  WeightBytes sum;
  for (const std::shared_ptr<const Weights>& table : Tables()) sum += table->bytes();
  for (int64_t layer = 0; layer < config().layers; ++layer) {
    for (const std::shared_ptr<const Weights>& matrix : Matrices(layer)) sum += matrix->bytes();
  }
  return sum;
}

namespace {

absl::StatusOr<std::shared_ptr<const Model>> LoadLlama(const TensorLoader& loader, ModelConfig config,
                                                       const std::function<void(int, int)>& progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(LlamaWeights weights, LoadLlamaWeights(loader, config, progress));
  if (loader.only_checks()) return nullptr;
  return std::make_shared<const LlamaModel>(std::move(config), loader.device(), std::move(weights));
}

// A family, by what general.architecture calls it.
struct Family {
  const char* architecture;
  absl::StatusOr<ModelConfig> (*read)(const ConfigKeys& keys);
  // Null where the loader only checks.
  absl::StatusOr<std::shared_ptr<const Model>> (*load)(const TensorLoader& loader, ModelConfig config,
                                                       const std::function<void(int, int)>& progress);
};
constexpr Family kFamilies[] = {{"llama", ReadLlamaConfig, LoadLlama},
                                {"qwen2", ReadLlamaConfig, LoadLlama},
                                {"qwen3", ReadLlamaConfig, LoadLlama},
                                {"phi3", ReadLlamaConfig, LoadLlama},
                                {"gemma2", ReadGemmaConfig, LoadGemma},
                                {"gemma3", ReadGemmaConfig, LoadGemma},
                                {"falcon", ReadFalconConfig, LoadFalcon},
                                {"opt", ReadOptConfig, LoadOpt},
                                {"starcoder2", ReadStarcoder2Config, LoadStarcoder2}};

absl::StatusOr<const Family*> FamilyOf(const ModelFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  std::vector<std::string> names;
  for (const Family& family : kFamilies) {
    if (architecture == family.architecture) return &family;
    names.push_back(family.architecture);
  }
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": key general.architecture: '", architecture,
                                                 "' is not supported; ", absl::StrJoin(names, ", "), " are"));
}

absl::StatusOr<ModelConfig> ReadConfig(const Family& family, const ModelFile& file) {
  const ConfigKeys keys(file, family.architecture);
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, family.read(keys));
  RUNAHEAD_RETURN_IF_ERROR(CheckUnreadKeys(keys));
  config.remarks = UnreadKeyRemarks(keys);
  return config;
}

// A tensor that no part of the family reads would be left out of what the model computes.
absl::Status CheckAllAreRead(const ModelFile& file, const LoadPlan& plan) {
  std::vector<std::string> unread;
  for (const FileTensor& tensor : file.tensors()) {
    if (!plan.read.contains(tensor.name)) unread.push_back(tensor.name);
  }
  if (unread.empty()) return absl::OkStatus();
  const std::string more = unread.size() == 1 ? "" : absl::StrCat(" (nor ", unread.size() - 1, " others)");
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), ": tensor ", unread[0], ": models of this architecture do not have it", more));
}

absl::StatusOr<LoadPlan> Plan(const Family& family, std::shared_ptr<const ModelFile> file, ModelConfig config) {
  LoadPlan plan;
  RUNAHEAD_RETURN_IF_ERROR(family.load(TensorLoader(file, &plan), std::move(config), [](int, int) {}).status());
  RUNAHEAD_RETURN_IF_ERROR(CheckAllAreRead(*file, plan));
  return plan;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const ModelFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const Family* family, FamilyOf(file));
  return ReadConfig(*family, file);
}

absl::StatusOr<LoadPlan> PlanLoading(std::shared_ptr<const ModelFile> file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const Family* family, FamilyOf(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(*family, *file));
  return Plan(*family, std::move(file), std::move(config));
}

absl::StatusOr<std::shared_ptr<const Model>> LoadModel(std::shared_ptr<const ModelFile> file,
                                                       std::shared_ptr<Device> device, unsigned uses,
                                                       std::function<void(int, int)> progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(const Family* family, FamilyOf(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(*family, *file));
  RUNAHEAD_RETURN_IF_ERROR(Plan(*family, file, config).status());
  if (const absl::Status status = device->CheckHeadDim(config.head_dim); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file->path(), ": ", std::string(device->name()), ": ", std::string(status.message())));
  }
  return family->load(TensorLoader(std::move(file), std::move(device), uses), std::move(config), progress);
}

}  // namespace runahead
