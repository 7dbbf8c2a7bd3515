// The wire of one device edge: what is small goes over the message engine, frames by two communicators, one a
// direction.
//
// A frame is announced; when the core at the other side wants it, that side enqueues its receive and says GO, in the
// same order; this side enqueues its sends in the order of the GOs. So the n-th send meets the n-th receive by
// construction, a frame that is not wanted moves nothing, and no communicator ever waits for a side that is not ready.
//
// Both GPUs compute a checksum of what they sent and got; this side says what it sent, the other compares, and says
// that it has taken the frame, GO once more, or that the frame is lost (damaged kFrameAttempts times). Until then its
// bytes are kept.
//
// The communicators are made when both sides are open: the one with the smaller incarnation draws the ids. Either
// side's communicator failing ends the edge at both.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/event.h"
#include "kernels/base/mutex.h"
#include "kernels/base/task_thread.h"
#include "kernels/cuda/peer_comm.h"
#include "worker/link/device/device_message.h"
#include "worker/link/edge_core.h"
#include "worker/link/edge_directory.h"

namespace runahead {

// What the edges of one process share. Wires use it until they are gone.
struct DeviceEdgeShared {
  DeviceEdgeShared(MessageEngine& engine, PeerCommFactory& comm_factory, FrameFaults frame_faults)
      : self(engine.self().incarnation),
        comms(comm_factory),
        faults(std::move(frame_faults)),
        directory(std::make_shared<EdgeDirectory>(engine)) {}
  const uint64_t self;
  PeerCommFactory& comms;
  const FrameFaults faults;
  const std::shared_ptr<EdgeDirectory> directory;
  // Making a communicator and ending one take a while; ending a broken one must not keep a new one waiting.
  TaskThread making, ending;
};

// Thread-safe. Messages of one peer are handed over one at a time.
class DeviceWire final : public EdgeWire, public std::enable_shared_from_this<DeviceWire> {
 public:
  // `shared` outlives gone().
  DeviceWire(DeviceEdgeShared& shared, PeerId peer) : shared_(shared), peer_(std::move(peer)) {}
  // Before anything else. The core holds the wire.
  void Bind(const std::shared_ptr<EdgeCore>& core) { core_ = core; }

  // Tells the peer that this side is open. Idempotent.
  void Start() RUNAHEAD_EXCLUDES(mu_);
  void SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum, std::function<void(absl::Status)> done) override
      RUNAHEAD_EXCLUDES(mu_);
  void SendControl(const EdgeControl& control) override RUNAHEAD_EXCLUDES(mu_);
  void OnMessage(const DeviceMessage& message) RUNAHEAD_EXCLUDES(mu_);

  // The edge is dead: the core hears of it, then all that is under way ends, the communicators last and on another
  // thread. Idempotent.
  void Fail(const absl::Status& why, bool tell_peer) RUNAHEAD_EXCLUDES(mu_);
  // An idle communicator that has failed is noticed here.
  void CheckComms() RUNAHEAD_EXCLUDES(mu_);
  // Fires when the edge is dead and nothing holds a buffer or a communicator any more.
  Event gone() const { return gone_.event(); }

 private:
  using Done = std::function<void(absl::Status)>;
  class Frame;
  // A frame of this side's, until the peer has answered it and nothing reads its bytes.
  struct Outgoing {
    ConstBufferRef bytes;
    FrameSum sum;
    Done done = nullptr;
    bool asked = false;                                 // for the first time
    int moving = 0;                                     // asked for, and not sent yet
    std::optional<absl::Status> answer = std::nullopt;  // what the peer said, or why there will be nothing
  };
  // A frame of the peer's that is wanted here, until its bytes match its sum.
  struct Coming {
    FrameId id;
    BufferRef into;
    FrameDone done;
    bool moving = false;                 // asked for, and not here yet
    int came = 0;                        // how often it did
    std::optional<uint64_t> here, told;  // sums: of what is here, and of what was sent
    WireTime time;
  };
  struct Comms {
    std::unique_ptr<PeerComm> out, in;
    // Does not wait.
    void Stop() {
      if (out != nullptr) out->Stop();
      if (in != nullptr) in->Stop();
    }
  };
  // Transfers that were enqueued under the lock; their ends are looked at without it.
  using Started = std::vector<std::pair<Event, Done>>;

  void Post(const DeviceMessage& message) RUNAHEAD_REQUIRES(mu_);
  void OnOpened() RUNAHEAD_EXCLUDES(mu_);
  void OnAnnounce(const DeviceMessage& message, EdgeCore& core);
  void OnIds(const std::string& ids) RUNAHEAD_EXCLUDES(mu_);
  // Frames that go.
  void OnGo(uint64_t sequence) RUNAHEAD_EXCLUDES(mu_);
  void OnAnswer(uint64_t sequence, const absl::Status& answer) RUNAHEAD_EXCLUDES(mu_);
  void StartSend(uint64_t sequence, Started& started) RUNAHEAD_REQUIRES(mu_);
  void SendEnded(uint64_t sequence, const absl::Status& status, const uint64_t* sum) RUNAHEAD_EXCLUDES(mu_);
  std::optional<Outgoing> TakeIfEnded(uint64_t sequence) RUNAHEAD_REQUIRES(mu_);
  // Frames that come.
  void Accept(uint64_t sequence, Coming coming) RUNAHEAD_EXCLUDES(mu_);
  void Skip(uint64_t sequence) RUNAHEAD_EXCLUDES(mu_);
  void StartRecv(uint64_t sequence, Started& started) RUNAHEAD_REQUIRES(mu_);
  void RecvEnded(uint64_t sequence, const absl::Status& status, absl::Time asked, uint64_t sum) RUNAHEAD_EXCLUDES(mu_);
  void OnSum(uint64_t sequence, uint64_t sum) RUNAHEAD_EXCLUDES(mu_);
  // Both sums are there: takes the frame, asks for it again, or gives it up.
  void Compare(uint64_t sequence) RUNAHEAD_EXCLUDES(mu_);
  void Say(DeviceMessage::Kind kind, uint64_t sequence, uint64_t sum = 0) RUNAHEAD_REQUIRES(mu_);
  // Communicators. `ids` empty: this side draws them.
  void MakeLater(std::string ids) RUNAHEAD_REQUIRES(mu_);
  void Make(std::string ids) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<Comms> OpenComms(std::string& ids) const;
  void Install(Comms& comms, const std::string& ids_to_tell, Started& started) RUNAHEAD_REQUIRES(mu_);
  // The incoming communicator has joined: the next frame has its turn.
  void NoteFree() RUNAHEAD_EXCLUDES(mu_);
  void Watch(Started started) RUNAHEAD_EXCLUDES(mu_);
  // A task of this wire on another thread has ended.
  void TaskEnded() RUNAHEAD_EXCLUDES(mu_);
  // The core must know of the death before it hears of what the death ended.
  void EndWith(const absl::Status& why, const Done& done);

  DeviceEdgeShared& shared_;
  const PeerId peer_;
  std::weak_ptr<EdgeCore> core_;
  const EventSource gone_;

  Mutex mu_;
  absl::Status why_ RUNAHEAD_GUARDED_BY(mu_);  // not OK: dead
  bool started_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool met_ RUNAHEAD_GUARDED_BY(mu_) = false;                 // the other side is open
  std::vector<std::string> outbox_ RUNAHEAD_GUARDED_BY(mu_);  // until it is
  bool making_ RUNAHEAD_GUARDED_BY(mu_) = false;              // the communicators are made, or being made
  int tasks_ RUNAHEAD_GUARDED_BY(mu_) = 0;                    // of this wire on other threads
  Comms comms_ RUNAHEAD_GUARDED_BY(mu_);
  absl::Time free_since_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();  // the incoming communicator
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Outgoing> announced_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Coming> coming_ RUNAHEAD_GUARDED_BY(mu_);
  // Of those, what was asked for before the communicators were made, in order.
  std::deque<uint64_t> going_ RUNAHEAD_GUARDED_BY(mu_), accepted_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
