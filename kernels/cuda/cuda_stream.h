// A stream of the GPU with a thread that watches it.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "kernels/cuda/cuda_clock.h"
#include "kernels/cuda/cuda_copies.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/cuda_params.h"
#include "kernels/cuda/op_key.h"
#include "kernels/cuda/step_graphs.h"

namespace runahead {

// cuStreamWaitValue32 of the driver, with its types as the runtime knows them.
using StreamWaitValue = int (*)(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned int flags);

// What all streams of a device share.
struct CudaContext {
  int ordinal = 0;
  std::shared_ptr<CudaMemory> memory;
  std::shared_ptr<CudaFlags> flags;
  std::shared_ptr<CudaClock> clock;
  StreamWaitValue wait_value = nullptr;
};

// Used by one thread at a time, which need not be the same always. What is held is let go by the watching thread once
// the GPU has passed it.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<const CudaContext> context);
  ~CudaStream() override;

  Event Record();
  std::shared_ptr<const TimeMark> MarkTime();
  void WaitFor(const Event& event);
  void Call(std::function<void()> function);

  // Keeps `what` until all that is enqueued so far has run.
  void Hold(std::shared_ptr<const void> what);
  struct Uploaded {
    const std::byte* data = nullptr;     // on the GPU
    std::shared_ptr<const void> memory;  // to be held by what reads it, but for what is enqueued right behind
  };
  // Brings the arrays to the GPU, in stream order: a kernel fetches them, for a copy would wait for all that are on
  // their way. Those of calls that follow each other are one launch. What is enqueued in this step, or where there is
  // none any time later, finds them there.
  absl::StatusOr<Uploaded> Upload(const CudaParams& params);
  // Where a copy of the arrays lies in pinned memory of the host, for kernels enqueued right behind that read it there.
  absl::StatusOr<const std::byte*> Share(const CudaParams& params);
  // Runs launch(args..., stream) now, or with the others of the step; `name` is that of the op. Of two launches with
  // the same arguments a step that comes again takes one for the other, whatever the memory that they point to holds.
  template <typename... Params, typename... Args>
  void Enqueue(const char* name, cudaError_t (*launch)(Params...), const Args&... args) {
    const BoundLaunch bound(launch, args..., stream_);
    if (in_step_) bound.AppendKey(step_key_);
    EnqueueLaunch({name, bound});
  }
  // Not with the others of the step: what of that was enqueued before goes first.
  void EnqueueCopies(const CudaCopies& copies);
  // Memory for one launch at a time, contents undefined.
  absl::StatusOr<void*> Workspace(size_t bytes);

  // Between the two launches are collected (Device::BeginStep).
  void BeginStep();
  void EndStep();

  bool in_step() const { return in_step_; }

  cudaStream_t get() const { return stream_; }

 private:
  struct Mark;
  void EnqueueLaunch(CudaLaunch launch);
  bool FollowsPending(const CudaParamRing::Piece& piece) const;
  void FetchPending();
  void Flush();
  void CopyStaged();
  void Watch();
  void Push(Mark mark);

  const std::shared_ptr<const CudaContext> context_;
  cudaStream_t stream_ = nullptr;
  CudaParamRing ring_;                             // arrays of launches
  CudaParamRing step_ring_;                        // what passes to step_params_, or stays in host memory
  std::vector<std::shared_ptr<const void>> held_;  // since the last mark
  BufferRef workspace_;

  // Uploads outside of steps that are not enqueued yet: bytes beside each other.
  const std::byte* pending_from_ = nullptr;
  std::byte* pending_to_ = nullptr;
  size_t pending_bytes_ = 0;

  bool in_step_ = false;
  StepGraphs graphs_;
  std::string step_key_;
  std::vector<CudaLaunch> step_launches_;
  BufferRef step_params_;         // where a step's arrays lie on the GPU, the same place each time
  size_t staged_ = 0;             // bytes of those of the step so far
  size_t flushed_ = 0;            // of them, on their way already
  CudaParamRing::Piece staging_;  // has the others, and room for as many as step_params_ takes; null: there are none

  Mutex mu_;
  CondVar changed_;
  std::deque<Mark> marks_ RUNAHEAD_GUARDED_BY(mu_);
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread watcher_;
};

}  // namespace runahead
