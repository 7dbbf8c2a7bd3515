#include "kernels/cuda/cuda_stream.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/kernels.h"

namespace runahead {
namespace {

constexpr size_t kStepParams = 256 << 10;
// What is held is let go at the latest when it is so much, also where nobody records.
constexpr size_t kMostHeld = 256;
constexpr unsigned kWaitUntilEqual = 1;  // CU_STREAM_WAIT_VALUE_EQ

// An event in a stream.
class CudaMark final : public NativeEvent {
 public:
  explicit CudaMark(int ordinal) : ordinal_(ordinal) {
    CudaMust(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "making an event");
  }
  ~CudaMark() override {
    UseGpu(ordinal_);
    CudaMust(cudaEventDestroy(event_), "ending an event");
  }
  cudaEvent_t get() const { return event_; }

 private:
  const int ordinal_;
  cudaEvent_t event_ = nullptr;
};

void CUDART_CB RunFunction(void* function) {
  (*static_cast<std::function<void()>*>(function))();
}

}  // namespace

// A point in the stream, and what to do once the GPU has passed it.
struct CudaStream::Mark {
  std::shared_ptr<CudaMark> mark;
  std::optional<EventSource> source;
  std::vector<std::shared_ptr<const void>> held;
};

CudaStream::CudaStream(std::shared_ptr<const CudaContext> context)
    : context_(std::move(context)), ring_(context_->memory, true), step_ring_(context_->memory, false) {
  UseGpu(context_->ordinal);
  CudaMust(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  watcher_ = std::thread([this] { Watch(); });
}

CudaStream::~CudaStream() {
  if (in_step_) EndStep();
  Record();
  {
    MutexLock lock(mu_);
    ending_ = true;
    changed_.NotifyAll();
  }
  watcher_.join();
  CudaMust(cudaStreamDestroy(stream_), "ending a stream");
}

void CudaStream::Watch() {
  UseGpu(context_->ordinal);
  while (true) {
    Mark next;
    {
      MutexLock lock(mu_);
      while (marks_.empty() && !ending_) changed_.Wait(mu_);
      if (marks_.empty()) return;
      next = std::move(marks_.front());
      marks_.pop_front();
    }
    CudaMust(cudaEventSynchronize(next.mark->get()), "running what was enqueued");
    next.held.clear();
    if (next.source.has_value()) next.source->Fire(absl::OkStatus());
  }
}

void CudaStream::Push(Mark mark) {
  CudaMust(cudaEventRecord(mark.mark->get(), stream_), "recording an event");
  mark.held = std::exchange(held_, {});
  MutexLock lock(mu_);
  marks_.push_back(std::move(mark));
  changed_.NotifyAll();
}

Event CudaStream::Record() {
  Flush();
  UseGpu(context_->ordinal);
  auto mark = std::make_shared<CudaMark>(context_->ordinal);
  const EventSource source(mark);
  Push({std::move(mark), source, {}});
  return source.event();
}

std::shared_ptr<const TimeMark> CudaStream::MarkTime() {
  Flush();
  auto mark = std::make_shared<CudaTimeMark>(context_->ordinal, context_->clock->Moment());
  UseGpu(context_->ordinal);
  CudaMust(cudaEventRecord(mark->get(), stream_), "recording an event");
  return mark;
}

void CudaStream::WaitFor(const Event& event) {
  if (event.fired()) return;
  Flush();
  UseGpu(context_->ordinal);
  if (auto mark = std::dynamic_pointer_cast<CudaMark>(event.native())) {
    CudaMust(cudaStreamWaitEvent(stream_, mark->get(), 0), "waiting for another stream");
    return Hold(std::move(mark));
  }
  std::shared_ptr<uint32_t> flag = context_->flags->Take();
  if (flag == nullptr) {  // thousands of waits are under way
    event.Wait().IgnoreError();
    return;
  }
  const int code = context_->wait_value(stream_, reinterpret_cast<uintptr_t>(flag.get()), 1, kWaitUntilEqual);
  CudaMust(static_cast<cudaError_t>(code), "waiting for the host");
  Hold(flag);
  event.OnFire([flag](const absl::Status&) { std::atomic_ref<uint32_t>(*flag).store(1, std::memory_order_release); });
}

void CudaStream::Call(std::function<void()> function) {
  Flush();
  UseGpu(context_->ordinal);
  // Destroyed by the watcher: what the function holds may be memory, which CUDA does not take back inside a call.
  auto kept = std::make_shared<std::function<void()>>(std::move(function));
  CudaMust(cudaLaunchHostFunc(stream_, RunFunction, kept.get()), "calling the host");
  Hold(std::move(kept));
}

void CudaStream::Hold(std::shared_ptr<const void> what) {
  if (!held_.empty() && held_.back() == what) return;  // the next of many blocks of one store
  held_.push_back(std::move(what));
}

void CudaStream::EnqueueLaunch(CudaLaunch launch) {
  if (in_step_) {
    step_launches_.push_back(std::move(launch));
    return;
  }
  FetchPending();
  UseGpu(context_->ordinal);
  CudaMust(launch.run(), launch.name);
  if (held_.size() >= kMostHeld) Push({std::make_shared<CudaMark>(context_->ordinal), std::nullopt, {}});
}

void CudaStream::EnqueueCopies(const CudaCopies& copies) {
  if (copies.empty()) return;
  Flush();
  UseGpu(context_->ordinal);
  CudaMust(copies.Run(stream_), "copying");
  if (held_.size() >= kMostHeld) Push({std::make_shared<CudaMark>(context_->ordinal), std::nullopt, {}});
}

absl::StatusOr<CudaStream::Uploaded> CudaStream::Upload(const CudaParams& params) {
  const size_t size = params.bytes().size();
  if (!in_step_) {
    RUNAHEAD_ASSIGN_OR_RETURN(CudaParamRing::Piece piece, ring_.Take(size));
    std::memcpy(piece.host, params.bytes().data(), size);
    if (pending_bytes_ > 0 && !FollowsPending(piece)) FetchPending();
    if (pending_bytes_ == 0) pending_from_ = piece.host, pending_to_ = piece.device;
    pending_bytes_ = static_cast<size_t>(piece.host - pending_from_) + size;
    Hold(piece.owner);
    return Uploaded{piece.device, std::move(piece.owner)};
  }
  if (staged_ + size > step_params_.size) {
    Flush();
    CopyStaged();  // for what is not enqueued yet
    const size_t bytes = std::max({kStepParams, 2 * step_params_.size, 2 * size});
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> larger, context_->memory->AllocateDevice(bytes));
    Hold(step_params_.buffer);
    step_params_ = BufferRef::Whole(std::move(larger));
    staged_ = flushed_ = 0;
  }
  // Here, where want of memory fails an op; when the step is on its way nothing can be refused any more.
  if (staging_.host == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(staging_, step_ring_.Take(step_params_.size - flushed_));
  }
  const size_t offset = std::exchange(staged_, staged_ + size);
  std::memcpy(staging_.host + (offset - flushed_), params.bytes().data(), size);
  return Uploaded{step_params_.data() + offset, step_params_.buffer};
}

absl::StatusOr<const std::byte*> CudaStream::Share(const CudaParams& params) {
  RUNAHEAD_ASSIGN_OR_RETURN(CudaParamRing::Piece piece, step_ring_.Take(params.bytes().size()));
  std::memcpy(piece.host, params.bytes().data(), params.bytes().size());
  Hold(std::move(piece.owner));
  return piece.host;
}

absl::StatusOr<void*> CudaStream::Workspace(size_t bytes) {
  if (workspace_.size < bytes) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<Buffer> larger, context_->memory->AllocateDevice(bytes));
    if (workspace_.buffer != nullptr) Hold(workspace_.buffer);
    workspace_ = BufferRef::Whole(std::move(larger));
  }
  return workspace_.size == 0 ? nullptr : workspace_.data();
}

void CudaStream::BeginStep() {
  RUNAHEAD_CHECK(!in_step_);
  FetchPending();
  in_step_ = true;
  staged_ = flushed_ = 0;
  staging_ = {};
}

void CudaStream::EndStep() {
  RUNAHEAD_CHECK(in_step_);
  Flush();
  in_step_ = false;
}

// In the same chunk of the ring, behind it.
bool CudaStream::FollowsPending(const CudaParamRing::Piece& piece) const {
  return piece.host >= pending_from_ && piece.host - pending_from_ == piece.device - pending_to_;
}

void CudaStream::FetchPending() {
  if (pending_bytes_ == 0) return;
  UseGpu(context_->ordinal);
  CudaMust(LaunchFetch(pending_from_, pending_to_, std::exchange(pending_bytes_, 0), stream_), "fetching arrays");
}

// The arrays first, then what reads them. Nothing where no step collects.
void CudaStream::Flush() {
  FetchPending();
  if (step_launches_.empty()) return;
  CopyStaged();
  UseGpu(context_->ordinal);
  graphs_.Run(stream_, step_key_, step_launches_);
  step_key_.clear();
  step_launches_.clear();
}

// The step's arrays that are not on their way yet.
void CudaStream::CopyStaged() {
  const size_t size = staged_ - flushed_;
  if (size == 0) return;
  UseGpu(context_->ordinal);
  CudaMust(cudaMemcpyAsync(step_params_.data() + flushed_, staging_.host, size, cudaMemcpyDefault, stream_),
           "copying a step's arrays");
  Hold(std::exchange(staging_, {}).owner);
  Hold(step_params_.buffer);
  flushed_ = staged_;
}

}  // namespace runahead
