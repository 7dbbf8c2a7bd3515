#include "worker/model/tensor_loader.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"
#include "server/base/cpu_limit.h"
#include "worker/format/dequantize.h"
#include "worker/model/model.h"

namespace runahead {

absl::StatusOr<const FileTensor*> TensorLoader::Find(const std::string& name, const std::vector<int64_t>& dims) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* tensor, file_->FindTensor(name));
  if (only_checks()) {
    MutexLock lock(mu_);
    plan_->read.insert(name);
  }
  if (tensor->dims != dims) {
    const std::string stored = tensor->stored_as.empty() ? "" : absl::StrCat(" (", tensor->stored_as, ")");
    return absl::InvalidArgumentError(absl::StrCat(file_->path(), ": tensor ", name, stored, " is [",
                                                   absl::StrJoin(tensor->dims, ", "), "], the model's keys say [",
                                                   absl::StrJoin(dims, ", "), "]"));
  }
  return tensor;
}

absl::Status TensorLoader::Append(const std::string& name, int64_t rows, int64_t cols, WeightSource& source) const {
  return AppendRows(name, rows, cols, 0, rows, source);
}

absl::Status TensorLoader::AppendRows(const std::string& name, int64_t rows, int64_t cols, int64_t first, int64_t count,
                                      WeightSource& source) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* tensor, Find(name, {cols, rows}));
  source.owner = file_;
  if (!absl::EndsWith(source.name, name)) absl::StrAppend(&source.name, source.name.empty() ? "" : "+", name);
  source.cols = cols;
  source.runs.push_back({tensor->type, tensor->data.data() + first * WeightRowBytes(tensor->type, cols), count});
  return absl::OkStatus();
}

absl::Status TensorLoader::AppendUnpermuted(const std::string& name, int64_t heads, int64_t head_dim, int64_t cols,
                                            WeightSource& source) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* tensor, Find(name, {cols, heads * head_dim}));
  const WeightType type = tensor->type;
  const size_t row_bytes = WeightRowBytes(type, cols);
  source.owner = file_;
  absl::StrAppend(&source.name, source.name.empty() ? "" : "+", name);
  source.cols = cols;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t row = 0; row < head_dim; ++row) {
      const int64_t stored = head * head_dim + StoredRow(row, head_dim);
      source.runs.push_back({type, tensor->data.data() + stored * row_bytes, 1});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Weights>> TensorLoader::LoadFor(const WeightSource& source, unsigned uses,
                                                                     bool of_layer) const {
  if (!only_checks()) return device_->LoadWeights(source, uses);
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  LoadPlan::Matrix matrix{.name = source.name, .cols = source.cols, .runs = {}, .of_layer = of_layer};
  for (const WeightRows& run : source.runs) matrix.Add(run.type, run.rows);
  MutexLock lock(mu_);
  plan_->matrices.push_back(std::move(matrix));
  return nullptr;
}

absl::StatusOr<std::shared_ptr<const Weights>> TensorLoader::Load(const WeightSource& source) const {
  return LoadFor(source, uses_, true);
}

absl::StatusOr<std::shared_ptr<const Weights>> TensorLoader::Matrix(const std::string& name, int64_t rows,
                                                                    int64_t cols) const {
  WeightSource source;
  RUNAHEAD_RETURN_IF_ERROR(Append(name, rows, cols, source));
  return Load(source);
}

absl::StatusOr<std::shared_ptr<const Weights>> TensorLoader::Table(const std::string& name, int64_t rows,
                                                                   int64_t cols) const {
  WeightSource source;
  RUNAHEAD_RETURN_IF_ERROR(Append(name, rows, cols, source));
  return LoadFor(source, kUseDecode, false);
}

absl::StatusOr<std::shared_ptr<const Weights>> TensorLoader::LoadForRecompute(const WeightSource& source) const {
  return LoadFor(source, (uses_ & kUseRecompute) != 0 ? uses_ | kUsePrefill : uses_, true);
}

absl::StatusOr<std::vector<float>> TensorLoader::Floats(const VectorPart& part) const {
  RUNAHEAD_ASSIGN_OR_RETURN(const FileTensor* tensor, Find(part.name, {part.size}));
  if (!IsPlain(tensor->type)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_->path(), ": tensor ", part.name, " is quantised; as a vector it must not be"));
  }
  std::vector<float> values(part.size);
  DequantizeRow(tensor->type, tensor->data.data(), part.size, values.data());
  return values;
}

absl::StatusOr<Tensor> TensorLoader::Vector(const std::vector<VectorPart>& parts, float plus) const {
  std::vector<float> values;
  for (const VectorPart& part : parts) {
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<float> more, Floats(part));
    values.insert(values.end(), more.begin(), more.end());
  }
  for (float& value : values) value += plus;
  return Upload(values, 1);
}

absl::StatusOr<Tensor> TensorLoader::VectorOrNone(const std::vector<VectorPart>& parts) const {
  for (const VectorPart& part : parts) {
    if (file_->FindTensor(part.name).ok()) return Vector(parts);
  }
  return Tensor();
}

absl::StatusOr<Tensor> TensorLoader::UploadRotation(const Rotary& rotary, int64_t context_length) const {
  const int64_t rows = (context_length + kRotationTile - 1) / kRotationTile * kRotationTile;
  if (!only_checks()) return Upload(RotationTable(rotary, rows), rows);
  MutexLock lock(mu_);
  plan_->read.insert(kRopeFreqs);  // by ReadRotary, where the file has it
  plan_->floats += 2 * static_cast<int64_t>(rotary.frequencies.size()) * rows;
  return Tensor();
}

absl::StatusOr<Tensor> TensorLoader::Upload(const std::vector<float>& values, int64_t rows) const {
  if (only_checks()) {
    MutexLock lock(mu_);
    plan_->floats += static_cast<int64_t>(values.size());
    return Tensor();
  }
  const size_t bytes = values.size() * sizeof(float);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> host, device_->Allocate(bytes, MemoryKind::kHost));
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> buffer, device_->Allocate(bytes, MemoryKind::kDevice));
  std::memcpy(host->data(), values.data(), bytes);
  RUNAHEAD_RETURN_IF_ERROR(CopyNow(BufferRef::Whole(host), BufferRef::Whole(buffer)));
  return MakeTensor(BufferRef::Whole(buffer), DType::kF32, rows, static_cast<int64_t>(values.size()) / rows);
}

absl::Status TensorLoader::CopyNow(const BufferRef& from, const BufferRef& to) const {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(device_->Copy(*stream_, from, to));
  return device_->Record(*stream_).Wait();
}

absl::Status LoadLayers(int64_t layers, const std::function<absl::Status(int64_t)>& load,
                        const std::function<void(int, int)>& progress) {
  const int threads = UsableCores();
  std::atomic<int64_t> next{0};
  std::atomic<int> done{0};
  Mutex mu;
  absl::Status first_error;
  auto load_some = [&] {
    for (int64_t index = next++; index < layers; index = next++) {
      const absl::Status status = load(index);
      MutexLock lock(mu);
      if (!status.ok()) {
        if (first_error.ok()) first_error = status;
        next = layers;
      }
      progress(++done, static_cast<int>(layers));
    }
  };
  std::vector<std::thread> team;
  for (int i = 1; i < threads; ++i) team.emplace_back(load_some);
  load_some();
  for (std::thread& thread : team) thread.join();
  return first_error;
}

}  // namespace runahead
