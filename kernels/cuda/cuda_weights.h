// Weight matrices on the GPU: in the compute dtype, whatever the file has.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "kernels/base/weights.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"

namespace runahead {

struct CudaWeights final : Weights {
  // `kind` is that of the memory: weights in host memory are at home there.
  CudaWeights(BufferRef of_rows, MemoryKind kind, DType dtype, int64_t rows, int64_t cols)
      : Weights(rows, cols), memory(std::move(of_rows)), dtype(dtype) {
    if (kind == MemoryKind::kHost) home_ = memory;
    bytes_.packed = memory.size;
  }
  ConstBufferRef HomeFrom(int64_t first_row) const override {
    return memory.Slice(static_cast<size_t>(first_row * cols_) * DTypeSize(dtype),
                        static_cast<size_t>((rows_ - first_row) * cols_) * DTypeSize(dtype));
  }
  CudaMatrix matrix() const { return {memory.data(), dtype, rows_, cols_, cols_}; }
  const BufferRef memory;  // dense
  const DType dtype;
};

// Copies matrices through a few megabytes of pinned memory, the next piece while the last one is copied and dequantised
// on the GPU. Thread-safe: one matrix at a time.
class WeightUploader {
 public:
  WeightUploader(std::shared_ptr<const CudaContext> context, DType dtype);
  // To memory of the GPU or, with a home, to pinned memory, where the GPU writes it all the same. `source` is checked.
  // RESOURCE_EXHAUSTED when the GPU's budget has no room for it.
  absl::StatusOr<std::shared_ptr<const Weights>> Upload(const WeightSource& source, MemoryKind to)
      RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Piece;
  absl::Status Prepare() RUNAHEAD_REQUIRES(mu_);
  void Send(const Piece& piece, const CudaMatrix& out) RUNAHEAD_REQUIRES(mu_);

  const std::shared_ptr<const CudaContext> context_;
  const DType dtype_;
  Mutex mu_;
  std::unique_ptr<CudaStream> stream_ RUNAHEAD_GUARDED_BY(mu_);
  // Two halves, which take turns.
  struct Half {
    std::shared_ptr<Buffer> host, device;
    Event free;
  };
  Half halves_[2] RUNAHEAD_GUARDED_BY(mu_);
  int turn_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
