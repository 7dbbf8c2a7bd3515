// Edges inside one process, for tests: the same core as every other edge over a network that a test can step, reorder
// and cut.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "kernels/base/mutex.h"
#include "worker/link/edge.h"
#include "worker/link/edge_core.h"

namespace runahead {

// Thread-safe. Everything that a real network would move (a message, the bytes of a frame, a discard) is one pending
// step. Immediate networks take each step as it appears, on the thread that caused it; manual ones when told to, in any
// order. Factories and edges keep the network alive.
class LoopbackNetwork : public std::enable_shared_from_this<LoopbackNetwork> {
 public:
  enum class Delivery { kImmediate, kManual };
  static std::shared_ptr<LoopbackNetwork> Create(Delivery delivery);
  ~LoopbackNetwork();

  // A process at `self`.
  std::unique_ptr<EdgeFactory> Join(const PeerId& self) RUNAHEAD_EXCLUDES(mu_);
  // The process at `peer` is gone: steps from and to it are lost, its edges die at both ends.
  void Kill(const PeerId& peer) RUNAHEAD_EXCLUDES(mu_);

  size_t pending() const RUNAHEAD_EXCLUDES(mu_);
  // Takes the pending step `index` (in order of appearance). False when there is none.
  bool Deliver(size_t index = 0) RUNAHEAD_EXCLUDES(mu_);
  void DeliverAll() RUNAHEAD_EXCLUDES(mu_);

  // Job halves with state on the edge of `self` to `peer`; 0 when there is no such edge.
  size_t live_jobs(const PeerId& self, const PeerId& peer) const RUNAHEAD_EXCLUDES(mu_);

 private:
  class Wire;
  class Frame;
  class Factory;
  struct Transfer;
  struct Side {
    PeerId self, peer;
    std::shared_ptr<EdgeCore> core;
  };
  struct Step {
    PeerId from, to;
    std::function<void()> run;
  };

  explicit LoopbackNetwork(Delivery delivery) : delivery_(delivery) {}
  // False when an end is gone: `run` is lost.
  bool Post(const PeerId& from, const PeerId& to, std::function<void()> run) RUNAHEAD_EXCLUDES(mu_);
  bool Take(size_t index, Step& step) RUNAHEAD_EXCLUDES(mu_);
  std::shared_ptr<EdgeCore> Core(const PeerId& self, const PeerId& peer) RUNAHEAD_EXCLUDES(mu_);
  // Kills both ends of every edge that `meant` picks.
  void Cut(const std::function<bool(const PeerId&, const PeerId&)>& meant) RUNAHEAD_EXCLUDES(mu_);
  void SendFrame(const PeerId& from, const PeerId& to, const FrameId& id, ConstBufferRef bytes, FrameSum sum,
                 std::function<void(absl::Status)> done) RUNAHEAD_EXCLUDES(mu_);
  bool IsAlive(const PeerId& peer) const RUNAHEAD_REQUIRES(mu_);

  const Delivery delivery_;
  mutable Mutex mu_;
  std::vector<PeerId> alive_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<Side> sides_ RUNAHEAD_GUARDED_BY(mu_);
  std::deque<Step> steps_ RUNAHEAD_GUARDED_BY(mu_);
  bool delivering_ RUNAHEAD_GUARDED_BY(mu_) = false;  // immediate: some thread takes the steps
  absl::flat_hash_set<std::shared_ptr<Transfer>> transfers_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
