// The two communicators between the GPUs of an edge, one a direction: how its frames' bytes move.
//
// A frame is a transfer as any other: offered, granted, answered. Where it is granted the receiver enqueues its receive
// and says so, in the same order; the sender enqueues its sends in the order of the grants. So the n-th send meets the
// n-th receive by construction, a frame that is not wanted moves nothing, and no communicator ever waits for a side
// that is not ready.
//
// They are made when both sides are open: the one with the smaller incarnation draws the ids. One that fails ends the
// edge.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "kernels/cuda/peer_comm.h"
#include "server/base/task_thread.h"
#include "worker/link/transfer.h"

namespace runahead {

// What the edges of one process share; outlives gone() of all.
struct DeviceCommsShared {
  explicit DeviceCommsShared(PeerCommFactory& comm_factory) : comms(comm_factory) {}
  PeerCommFactory& comms;
  // Making a communicator and ending one take a while; ending a broken one must not keep a new one waiting.
  TaskThread making{"comm making"}, ending{"comm ending"};
};

// Thread-safe.
class DeviceComms final : public ByteMover, public std::enable_shared_from_this<DeviceComms> {
 public:
  struct Hooks {
    std::function<void(std::string)> tell;                // the peer's OnIds
    std::function<void(const absl::Status&)> on_failure;  // the edge is to end; may run more than once
  };
  // `draws_ids`: of the two sides this one does.
  DeviceComms(DeviceCommsShared& shared, bool draws_ids, Hooks hooks)
      : shared_(shared), draws_ids_(draws_ids), hooks_(std::move(hooks)) {}

  // The peer's side is open. Idempotent.
  void OnOpened() RUNAHEAD_EXCLUDES(mu_);
  // The peer has drawn ids: those of its outgoing communicator and of its incoming one.
  void OnIds(std::string_view ids) RUNAHEAD_EXCLUDES(mu_);

  // Device memory. An event that fires with an error comes with the edge's end.
  Event Send(ConstBufferRef bytes, std::shared_ptr<uint64_t> sum) override RUNAHEAD_EXCLUDES(mu_);
  Event Recv(BufferRef into, std::shared_ptr<Came> came) override RUNAHEAD_EXCLUDES(mu_);

  // An idle communicator that has failed is noticed here.
  void Check() RUNAHEAD_EXCLUDES(mu_);
  // The edge is dead: what is under way ends soon, the communicators last and on another thread. Idempotent.
  void Fail(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // Fires when the edge is dead and nothing holds a communicator any more.
  Event gone() const { return gone_.event(); }

 private:
  struct Move {
    BufferRef bytes;
    std::shared_ptr<uint64_t> sum;
    std::shared_ptr<Came> came;  // null: it goes
    EventSource moved;
  };
  struct Comms {
    std::unique_ptr<PeerComm> out, in;
    // Does not wait.
    void Stop() {
      if (out != nullptr) out->Stop();
      if (in != nullptr) in->Stop();
    }
  };

  Event Begin(Move move) RUNAHEAD_EXCLUDES(mu_);
  // Enqueues it; its event is looked at without the lock. Frames that come end in the order of their coming, whichever
  // thread hears of each first: where the one before ends, the next is on the wire.
  Event Enqueue(const Move& move) RUNAHEAD_REQUIRES(mu_);
  void Watch(const Event& event, Move move) RUNAHEAD_EXCLUDES(mu_);
  void Ended(const Move& move, absl::Time asked, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  // `ids` empty: this side draws them.
  void MakeLater(std::string ids) RUNAHEAD_REQUIRES(mu_);
  void Make(std::string ids) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<Comms> OpenComms(std::string& ids) const;
  // The incoming communicator has joined: the next frame has its turn.
  void NoteFree() RUNAHEAD_EXCLUDES(mu_);
  // A task of this one on another thread has ended.
  void TaskEnded() RUNAHEAD_EXCLUDES(mu_);

  DeviceCommsShared& shared_;
  const bool draws_ids_;
  const Hooks hooks_;
  const EventSource gone_;

  Mutex mu_;
  absl::Status why_ RUNAHEAD_GUARDED_BY(mu_);     // not OK: dead
  bool making_ RUNAHEAD_GUARDED_BY(mu_) = false;  // they are made, or being made
  int tasks_ RUNAHEAD_GUARDED_BY(mu_) = 0;        // on other threads
  Comms comms_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Time free_since_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();  // the incoming communicator
  Event last_received_ RUNAHEAD_GUARDED_BY(mu_);                           // of the frame that was enqueued last
  std::deque<Move> waiting_ RUNAHEAD_GUARDED_BY(mu_);                      // until they are made, in order
};

}  // namespace runahead
