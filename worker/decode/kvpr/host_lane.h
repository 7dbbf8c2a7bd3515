// The host lane: the host's CPU attends over KV that stays in host memory. q of a few sequences goes there, and what
// their pieces give comes back: a few rows each way a layer, between the copies, in place of the KV itself.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/base/device.h"
#include "worker/decode/kvpr/host_attention.h"
#include "worker/decode/kvpr/planned_step.h"
#include "worker/decode/kvpr/step_times.h"
#include "worker/kv/store.h"
#include "worker/model/model.h"

namespace runahead {

// BeginStep; then for each layer in turn Start and Finish, with work for the device between the two. Used by the decode
// loop's thread.
class HostLane {
 public:
  // `host` computes on host memory, with threads that the device does without; `store` is in host memory and not
  // quantised. All outlive the lane. `emulated_gbps`: HostAttention.
  HostLane(const Model& model, Device& device, Device& host, const KvStore& store, double emulated_gbps);
  ~HostLane();

  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED. `step` stays until the next one begins.
  absl::Status BeginStep(const PlannedStep& step);
  // Whether any sequence of the step has positions here.
  bool has_work() const { return !queries_.empty(); }
  // Enqueues the layer's attention: of `q`, [rows, heads*head_dim] on the device, once `filled` has fired, and
  // `written`: what steps before have made of the layer is in the store.
  absl::Status Start(int64_t layer, const ConstTensor& q, const Event& filled, const Event& written);
  // Waits for the host, and enqueues the way of what it made to `partials` (Device::AttendPieces), on the device; the
  // event fires when it is there.
  absl::StatusOr<Event> Finish(int64_t layer, const MutTensor& partials);
  // Waits until nothing reads the store any more.
  void Settle();

 private:
  absl::StatusOr<BufferRef> Room(BufferRef& kept, int64_t bytes);

  const Model& model_;
  Device& device_;
  Device& host_;
  const KvStore& store_;
  const std::unique_ptr<Stream> link_stream_, host_stream_;
  const HostAttention attention_;
  BufferRef q_memory_, partials_memory_;  // in host memory; they grow to the largest step
  // Of the step.
  std::shared_ptr<StepTimes> times_;
  std::shared_ptr<const KvTable> table_;
  std::vector<RowMove> queries_, pieces_;  // rows of q that go there, rows of partials that come back
  // Of the layer.
  Tensor partials_;
  Event attended_;
};

}  // namespace runahead
