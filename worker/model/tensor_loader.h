// Tensors of a file, by name and shape, onto a device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "worker/format/model_file.h"
#include "worker/model/load_plan.h"
#include "worker/model/rotary.h"

namespace runahead {

// Where row `row` of a head's rotate-half form lies in the head, permuted for interleaved rotation: row 2i+j there is
// row j*head_dim/2 + i.
constexpr int64_t StoredRow(int64_t row, int64_t head_dim) {
  return 2 * (row % (head_dim / 2)) + row / (head_dim / 2);
}

// Loads what a family asks for, or only checks that it is there, and notes it. Thread-safe. Errors name the tensor:
// NOT_FOUND where it is missing, INVALID_ARGUMENT where it has another shape or type.
class TensorLoader {
 public:
  // Matrices are loaded for `uses` (WeightUse bits, kUseRecompute of model.h).
  TensorLoader(std::shared_ptr<const ModelFile> file, std::shared_ptr<Device> device, unsigned uses)
      : file_(std::move(file)), device_(std::move(device)), uses_(uses), stream_(device_->NewStream("load")) {}
  // Only checks: weights are null, tensors have no buffers, and no memory of a device is taken. `plan` outlives the
  // loader; it is read when the loader is gone.
  TensorLoader(std::shared_ptr<const ModelFile> file, LoadPlan* plan) : file_(std::move(file)), uses_(0), plan_(plan) {}

  const ModelFile& file() const { return *file_; }
  bool only_checks() const { return plan_ != nullptr; }
  const std::shared_ptr<Device>& device() const { return device_; }  // null where it only checks

  // Appends tensor `name`, which must be [rows, cols], to `source`, whose name is those of its tensors.
  absl::Status Append(const std::string& name, int64_t rows, int64_t cols, WeightSource& source) const;
  // The same for `count` rows of it from `first` on.
  absl::Status AppendRows(const std::string& name, int64_t rows, int64_t cols, int64_t first, int64_t count,
                          WeightSource& source) const;
  // The same for Q and K whose rows lie as StoredRow says.
  absl::Status AppendUnpermuted(const std::string& name, int64_t heads, int64_t head_dim, int64_t cols,
                                WeightSource& source) const;
  absl::StatusOr<std::shared_ptr<const Weights>> Load(const WeightSource& source) const;
  // The same of weights that Model::Recompute multiplies with.
  absl::StatusOr<std::shared_ptr<const Weights>> LoadForRecompute(const WeightSource& source) const;
  // One tensor.
  absl::StatusOr<std::shared_ptr<const Weights>> Matrix(const std::string& name, int64_t rows, int64_t cols) const;
  // One from which rows are looked up, or which is applied to few rows only: as stored, whatever the uses.
  absl::StatusOr<std::shared_ptr<const Weights>> Table(const std::string& name, int64_t rows, int64_t cols) const;

  // A vector by its name and size.
  struct VectorPart {
    std::string name;
    int64_t size;
  };
  absl::StatusOr<std::vector<float>> Floats(const VectorPart& part) const;
  // f32 [1, sizes added up] of these, one after the other.
  // `plus` is added to each element.
  absl::StatusOr<Tensor> Vector(const std::vector<VectorPart>& parts, float plus = 0) const;
  // The same, or a tensor without a buffer where the file has none of them.
  absl::StatusOr<Tensor> VectorOrNone(const std::vector<VectorPart>& parts) const;
  absl::StatusOr<Tensor> Upload(const std::vector<float>& values, int64_t rows) const;
  // The table of Rotation (kernels/base/device.h): f32 [context_length in whole tiles, rotated dimensions].
  absl::StatusOr<Tensor> UploadRotation(const Rotary& rotary, int64_t context_length) const;

 private:
  absl::StatusOr<const FileTensor*> Find(const std::string& name, const std::vector<int64_t>& dims) const;
  // `of_layer`: in the forms of matrices that are a layer's.
  absl::StatusOr<std::shared_ptr<const Weights>> LoadFor(const WeightSource& source, unsigned uses, bool of_layer) const
      RUNAHEAD_EXCLUDES(mu_);
  absl::Status CopyNow(const BufferRef& from, const BufferRef& to) const RUNAHEAD_EXCLUDES(mu_);

  const std::shared_ptr<const ModelFile> file_;
  const std::shared_ptr<Device> device_;
  const unsigned uses_;
  mutable Mutex mu_;
  const std::unique_ptr<Stream> stream_ RUNAHEAD_PT_GUARDED_BY(mu_);
  LoadPlan* const plan_ RUNAHEAD_PT_GUARDED_BY(mu_) = nullptr;
};

// Calls load(i) for each of `layers` layers, on as many threads as the machine has cores. The first error; then the
// layers that are left are not loaded. `progress(done, layers)` after each, from any thread.
absl::Status LoadLayers(int64_t layers, const std::function<absl::Status(int64_t)>& load,
                        const std::function<void(int, int)>& progress);

}  // namespace runahead
