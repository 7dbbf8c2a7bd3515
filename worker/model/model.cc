#include "worker/model/model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "worker/model/llama.h"
#include "worker/model/llama_config.h"

namespace runahead {

absl::StatusOr<Tensor> ForwardScratch::Get(int slot, DType dtype, int64_t rows, int64_t cols) {
  if (static_cast<size_t>(slot) >= buffers_.size()) buffers_.resize(slot + 1);
  const size_t bytes = static_cast<size_t>(rows * cols) * DTypeSize(dtype);
  if (buffers_[slot] == nullptr || buffers_[slot]->size() < bytes) {
    buffers_[slot] = nullptr;
    RUNAHEAD_ASSIGN_OR_RETURN(buffers_[slot], device_.Allocate(bytes, MemoryKind::kDevice));
  }
  return MakeTensor(BufferRef::Whole(buffers_[slot]), dtype, rows, cols);
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  RUNAHEAD_ASSIGN_OR_RETURN(const std::string architecture, file.GetString("general.architecture"));
  if (architecture != "llama") {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": key general.architecture: '", architecture, "' is not supported; llama is"));
  }
  return ReadLlamaConfig(file);
}

absl::StatusOr<std::shared_ptr<const Model>> LoadModel(std::shared_ptr<const GgufFile> file,
                                                       std::shared_ptr<Device> device, unsigned uses,
                                                       std::function<void(int, int)> progress) {
  RUNAHEAD_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(*file));
  RUNAHEAD_ASSIGN_OR_RETURN(LlamaWeights weights, LoadLlamaWeights(file, config, *device, uses, progress));
  return std::make_shared<const LlamaModel>(std::move(config), std::move(device), std::move(weights));
}

}  // namespace runahead
