// A layer of a prefill, as the paper says it: what a worker does for its part of one prompt, wait by wait; or for short
// prompts that it computes together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/model/layer_pass.h"
#include "worker/prefill/exchange.h"

namespace runahead {

// Seconds of one job on this worker.
struct JobTimes {
  double compute_s = 0;      // from the pass's beginning to its end, less waiting and what ran between its layers
  double wait_s = 0;         // the device stood idle for want of KV of other parts; the head of a chain: 0
  double ring_stall_s = 0;   // nothing was enqueued for want of a free layer buffer
  double transfer_s = 0;     // KV of other parts was on the wire (wire_time.h); the head of a chain: 0
  double hidden_s = 0;       // of that, less what fell into wait_s
  bool interleaved = false;  // it ran while another was half done
};

// What a step ends with.
struct PrefillWait {
  enum class For { kDevice, kLayerBuffer, kKv };
  Event event;
  For what = For::kDevice;
};

// One pass on one worker: of a part of one prompt, or of several whole ones, which know nothing of each other. Used by
// one thread; several loops may be half done on one stream, each with memory of its own. A parked loop holds nobody up:
// its receives are posted, its sends are enqueued, and what it forwards goes on by itself. A loop that is given up
// leaves its stream usable: of what it enqueued, nothing leaves the jobs but by their exchanges.
class PrefillLoop {
 public:
  // `exchanges`: one a job, in the order of their rows in `batch`, over parts of the same layer buffers.
  PrefillLoop(const Model& model, Device& device, Stream& stream, PassMemory memory, ForwardBatch batch,
              std::vector<std::unique_ptr<Exchange>> exchanges);

  // Enqueues up to the next wait, and returns what is waited for: the next step may follow once that has fired with OK.
  // The first step waits for nothing. Errors end the loop: those of arguments, of device memory, of a dead neighbour
  // (UNAVAILABLE), and of the device.
  absl::StatusOr<PrefillWait> Step();
  // The step before was the last: once its wait is over, the device has run all layers.
  bool done() const { return done_; }
  // The share of the layers that is not enqueued yet.
  double left() const { return static_cast<double>(layers_ - layer_) / static_cast<double>(layers_); }
  // The next step attends with all rows, as all do but the first, which has nothing to attend to, and the last, which
  // attends with the rows whose logits are wanted.
  bool attends() const { return projected_ && layer_ + 1 < layers_; }
  // Of the rows whose logits are wanted, but the scored ones; when done(), until LogitsOf.
  const Tensor& logits() const { return logits_; }
  // As LayerPass has it; when done(). Enqueues.
  absl::StatusOr<Tensor> LogitsOf(int64_t first, int64_t count) { return pass_.LogitsOf(first, count); }

  // A job has ended: its exchange is gone, and what is computed of its rows is nobody's. A step is for one job at
  // least.
  void Leave(size_t job) { exchanges_[job] = nullptr; }

  // From `begin` to `end` nothing ran on the device but what this loop had enqueued, and it waited for `what`.
  void AddWaited(PrefillWait::For what, absl::Time begin, absl::Time end);
  // Of a job that has not left: what was added so far; compute_s and interleaved are the caller's to know.
  JobTimes times(size_t job) const;
  const Exchange& exchange(size_t job) const { return *exchanges_[job]; }

 private:
  template <typename Do>
  void ForJobs(Do&& act) {
    for (const auto& exchange : exchanges_) {
      if (exchange != nullptr) act(*exchange);
    }
  }
  absl::Status AttendAndFinish();
  absl::StatusOr<PrefillWait> ReceiveAndProject();
  absl::StatusOr<std::optional<PrefillWait>> WaitBefore() const;

  Device& device_;
  Stream& stream_;
  const int64_t layers_;
  LayerPass pass_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;  // by job; null: it has left
  int64_t layer_ = 0;
  bool begun_ = false;
  bool projected_ = false;  // layer_'s own KV is enqueued
  bool done_ = false;
  Tensor logits_;
  double ring_stall_s_ = 0;
};

}  // namespace runahead
