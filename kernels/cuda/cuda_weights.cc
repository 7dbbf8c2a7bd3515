#include "kernels/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"

namespace runahead {
namespace {

constexpr size_t kHalfBytes = 8 << 20;

}  // namespace

// Rows of one type that lie in one half, as the file has them.
struct WeightUploader::Piece {
  WeightType type = WeightType::kF32;
  int64_t first = 0;  // row of the matrix
  int64_t rows = 0;
  size_t bytes = 0;
};

WeightUploader::WeightUploader(std::shared_ptr<const CudaContext> context, DType dtype)
    : context_(std::move(context)), dtype_(dtype) {}

absl::Status WeightUploader::Prepare() {
  if (stream_ != nullptr) return absl::OkStatus();
  for (Half& half : halves_) {
    RUNAHEAD_ASSIGN_OR_RETURN(half.host, context_->memory->AllocatePinned(kHalfBytes));
    RUNAHEAD_ASSIGN_OR_RETURN(half.device, context_->memory->AllocateDevice(kHalfBytes));
  }
  stream_ = std::make_unique<CudaStream>(context_);
  return absl::OkStatus();
}

// What is in the half whose turn it is goes to rows [first, first + rows) of `out`.
void WeightUploader::Send(const Piece& piece, const CudaMatrix& out) {
  Half& half = halves_[turn_];
  CudaMatrix rows = out;
  rows.data = static_cast<std::byte*>(out.data) + piece.first * out.stride * DTypeSize(out.dtype);
  rows.rows = piece.rows;
  CudaMust(cudaMemcpyAsync(half.device->data(), half.host->data(), piece.bytes, cudaMemcpyDefault, stream_->get()),
           "copying weights");
  CudaMust(LaunchDequantize(piece.type, half.device->data(), rows, stream_->get()), "dequantising weights");
  half.free = stream_->Record();
  turn_ = 1 - turn_;
}

absl::StatusOr<std::shared_ptr<const Weights>> WeightUploader::Upload(const WeightSource& source, MemoryKind to) {
  const int64_t rows = source.rows();
  const size_t bytes = rows * source.cols * DTypeSize(dtype_);
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> memory, to == MemoryKind::kDevice
                                                                ? context_->memory->AllocateDevice(bytes)
                                                                : context_->memory->AllocatePinned(bytes));
  auto weights = std::make_shared<CudaWeights>(BufferRef::Whole(std::move(memory)), to, dtype_, rows, source.cols);
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(Prepare());
  UseGpu(context_->ordinal);
  Piece piece;
  for (const WeightRows& run : source.runs) {
    const size_t row_bytes = WeightRowBytes(run.type, source.cols);
    if (row_bytes > kHalfBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a weight matrix has rows of ", row_bytes, " bytes"));
    }
    for (int64_t done = 0; done < run.rows;) {
      const int64_t room = static_cast<int64_t>((kHalfBytes - piece.bytes) / row_bytes);
      if (piece.rows > 0 && (room == 0 || piece.type != run.type)) {
        Send(piece, weights->matrix());
        piece = {run.type, piece.first + piece.rows, 0, 0};
        continue;
      }
      if (piece.rows == 0) {
        piece.type = run.type;
        halves_[turn_].free.Wait().IgnoreError();
      }
      const int64_t take = std::min(run.rows - done, room);
      std::memcpy(halves_[turn_].host->data() + piece.bytes, run.data + done * row_bytes, take * row_bytes);
      piece.rows += take;
      piece.bytes += take * row_bytes;
      done += take;
    }
  }
  if (piece.rows > 0) Send(piece, weights->matrix());
  RUNAHEAD_RETURN_IF_ERROR(stream_->Record().Wait());
  return weights;
}

}  // namespace runahead
