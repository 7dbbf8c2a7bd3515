// An edge's wire for a device whose memory the host cannot read: frames pass through pinned host memory on their way to
// and from the wire beneath. The peer need not know.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/device.h"
#include "kernels/base/mutex.h"
#include "worker/link/edge_core.h"
#include "worker/link/edge_directory.h"
#include "worker/link/staging_lane.h"

namespace runahead {

// The staging of all edges of a process: one bounded lane for what is sent, one for what is received. Each has a thread
// and a stream of its own. Made before the edges, ended after them.
//
// Any size suffices, and no order of receives. A frame that is received takes room when it has come and is wanted, so
// what holds room is moving. A frame that is sent takes it when its bytes are ready, in that order, and holds it until
// the peer wants it. The peer does: a stage's frames get ready layer by layer, at most two layers before what is
// missing at a neighbour, and neighbours ask for two layers at once.
struct EdgeStaging {
  // `bytes` of pinned memory for each direction, allocated by Prepare. `device` outlives it.
  EdgeStaging(Device& device, size_t bytes)
      : sending(StagingLane::Create(device, "send", bytes)), receiving(StagingLane::Create(device, "receive", bytes)) {}
  ~EdgeStaging() {
    sending->Stop();
    receiving->Stop();
  }
  void Prepare() {
    sending->Prepare();
    receiving->Prepare();
  }
  const std::shared_ptr<StagingLane> sending, receiving;
};

// Thread-safe.
class StagedWire final : public EdgeWire, public std::enable_shared_from_this<StagedWire> {
 public:
  StagedWire(std::shared_ptr<EdgeWire> inner, const EdgeStaging& staging)
      : inner_(std::move(inner)), sending_(staging.sending), receiving_(staging.receiving) {}

  // Before anything else. The core holds the wire.
  void Bind(const std::shared_ptr<EdgeCore>& core) { core_ = core; }

  void SendFrame(const FrameId& id, ConstBufferRef bytes, std::function<void(absl::Status)> done) override
      RUNAHEAD_EXCLUDES(mu_);
  void SendControl(const EdgeControl& control) override { inner_->SendControl(control); }
  // What came over the wire beneath, to be accepted into device memory.
  std::shared_ptr<ArrivedFrame> Receive(std::shared_ptr<ArrivedFrame> frame);

  // After the core's death: what waits for room ends with `why`. Idempotent.
  void Fail(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // After that, and when the wire beneath has ended all that it had: returns when no copy uses a buffer.
  void AwaitEnd() RUNAHEAD_EXCLUDES(mu_);

 private:
  using Done = std::function<void(absl::Status)>;
  // Lets go of what it holds before `done` runs.
  using OnRoom = std::function<void(const BufferRef& room, Done done)>;
  class Frame;
  // A frame that waits for room in `lane`.
  struct Waiting {
    std::shared_ptr<StagingLane> lane;
    uint64_t ticket = 0;
    Done done;
  };

  // Runs `next` with room of `bytes`, or `done` with why there is none. `done` is counted until it has run.
  void TakeRoom(const std::shared_ptr<StagingLane>& lane, size_t bytes, Done done, OnRoom next) RUNAHEAD_EXCLUDES(mu_);
  void Granted(uint64_t number, absl::StatusOr<BufferRef> room, const OnRoom& next) RUNAHEAD_EXCLUDES(mu_);

  const std::shared_ptr<EdgeWire> inner_;
  const std::shared_ptr<StagingLane> sending_, receiving_;
  std::weak_ptr<EdgeCore> core_;
  Mutex mu_;
  CondVar ended_;
  absl::Status why_ RUNAHEAD_GUARDED_BY(mu_);  // not OK: dead
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int under_way_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Waiting> waiting_ RUNAHEAD_GUARDED_BY(mu_);
};

// This side of an edge whose frames are staged.
class StagedEnd final : public EdgeEnd {
 public:
  // `edge_core` is over `wire`.
  StagedEnd(std::shared_ptr<EdgeCore> edge_core, std::shared_ptr<StagedWire> wire)
      : EdgeEnd(std::move(edge_core)), wire_(std::move(wire)) {}
  void OnFrame(const FrameId& id, std::shared_ptr<ArrivedFrame> frame) override {
    core->OnFrame(id, wire_->Receive(std::move(frame)));
  }
  void Die(const absl::Status& why) override {
    core->Die(why);
    wire_->Fail(why);
  }
  void AwaitEnd() override { wire_->AwaitEnd(); }

 private:
  const std::shared_ptr<StagedWire> wire_;
};

}  // namespace runahead
