// The wire of one edge over an engine's messages.
//
// A frame of host memory is one message, whose bytes wait at the sender until the peer wants them. A frame of device
// memory is offered first; it is copied to pinned memory and sent when the peer wants it: what waits holds no staging.
// Received frames pass through pinned memory where this side's device asks for it, whatever the other side does.
//
// Either way the bytes travel with their checksum. They are checked in host memory, before they go to a device, and the
// peer answers: taken, skipped (nobody wants the frame), again (they came damaged, so they are sent once more as bytes
// of the frame's number), or lost (damaged kFrameAttempts times). The sender keeps the bytes until then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "worker/link/edge_core.h"
#include "worker/link/edge_directory.h"
#include "worker/link/frame_summer.h"
#include "worker/link/message/edge_staging.h"
#include "worker/link/message/message_frames.h"
#include "worker/link/message_engine.h"

namespace runahead {

// What the edges of one process share. Outlives the directory's use of their wires.
struct MessageEdgeShared {
  std::unique_ptr<EdgeStaging> staging;  // null where frames are host memory
  FrameFaults faults;
  FrameSummer summer;
};

// Thread-safe.
class MessageWire final : public EdgeWire, public std::enable_shared_from_this<MessageWire> {
 public:
  // `shared` outlives the directory's use of the wire.
  MessageWire(std::weak_ptr<EdgeDirectory> directory, PeerId peer, MessageEdgeShared& shared);
  // Before anything else. The core holds the wire.
  void Bind(const std::shared_ptr<EdgeCore>& core) { core_ = core; }

  void SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum, std::function<void(absl::Status)> done) override
      RUNAHEAD_EXCLUDES(mu_);
  void SendControl(const EdgeControl& control) override;

  // What the peer sent. Malformed headers are ignored.
  void OnFrame(std::string_view header, std::shared_ptr<MessagePayload> payload);
  void OnControl(std::string_view header);
  void OnOffer(std::string_view header) RUNAHEAD_EXCLUDES(mu_);
  void OnBytes(std::string_view header, const std::shared_ptr<MessagePayload>& payload) RUNAHEAD_EXCLUDES(mu_);

  // After the core's death: what the engine does not hold ends with `why`. Idempotent.
  void Fail(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // After that, and after the engine has closed the connection: returns when nothing here uses a buffer.
  void AwaitEnd() RUNAHEAD_EXCLUDES(mu_);

 private:
  using Done = std::function<void(absl::Status)>;
  // Lets go of what it holds before `done` runs.
  using OnRoom = std::function<void(const BufferRef& room, Done done)>;
  class Frame;
  class Offered;
  // A frame of this side's, until the peer has answered it and nothing uses its bytes.
  struct Sent {
    FrameId id;
    ConstBufferRef bytes;
    FrameSum sum;
    Done done;
    int uses = 0;                        // of the bytes: ways to the engine and in it
    std::optional<absl::Status> answer;  // what the peer said, or why there will be nothing
  };
  // A frame of the peer's that is wanted here.
  struct Wanted {
    uint64_t number = 0;
    FrameId id;
    BufferRef into;
    FrameDone done;
    int came = 0;  // how often its bytes did
  };
  struct WaitingForRoom {
    std::shared_ptr<StagingLane> lane;
    uint64_t request = 0;
    Done done;
  };

  void Post(MessageKind kind, std::string header, ConstBufferRef bytes, Done done);
  void Answer(OfferKind kind, uint64_t number);

  // Sending.
  // The peer asks for the bytes of a frame that this side offered, or that came damaged.
  void SendAsked(uint64_t number) RUNAHEAD_EXCLUDES(mu_);
  void PostBytes(uint64_t number, const FrameId& id, FrameSum sum, ConstBufferRef bytes, Done done)
      RUNAHEAD_EXCLUDES(mu_);
  // `then` gets `bytes` with their sum: `sum` where it is known; else it is computed, and kept with the frame, which is
  // in use.
  void WithSum(uint64_t number, const FrameId& id, FrameSum sum, ConstBufferRef bytes,
               std::function<void(uint64_t, ConstBufferRef)> then) RUNAHEAD_EXCLUDES(mu_);
  // A use of the frame's bytes has ended.
  void Unused(uint64_t number, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  void OnAnswer(uint64_t number, const absl::Status& answer) RUNAHEAD_EXCLUDES(mu_);
  std::optional<Sent> TakeIfEnded(uint64_t number) RUNAHEAD_REQUIRES(mu_);
  static void Ended(Sent frame);

  // Receiving.
  void Want(OfferKind kind, Wanted wanted) RUNAHEAD_EXCLUDES(mu_);
  void Take(Wanted wanted, uint64_t sum, const std::shared_ptr<MessagePayload>& payload) RUNAHEAD_EXCLUDES(mu_);
  void TakeHere(Wanted wanted, uint64_t sum, const std::shared_ptr<MessagePayload>& payload) RUNAHEAD_EXCLUDES(mu_);
  void TakeStaged(Wanted wanted, uint64_t sum, const std::shared_ptr<MessagePayload>& payload) RUNAHEAD_EXCLUDES(mu_);
  // `then` hears whether the frame's bytes, which came to `where`, match `sum`; nothing is held any more.
  void Check(const FrameId& id, BufferRef where, uint64_t sum, std::function<void(bool)> then) RUNAHEAD_EXCLUDES(mu_);
  // They do not: asks for them again, or gives the frame up.
  void CameDamaged(Wanted wanted) RUNAHEAD_EXCLUDES(mu_);

  // Something uses `shared_`, or a buffer that neither the engine nor a table here knows of. Not the first thing on a
  // wire that may be dead: that looks at why_ under the same lock.
  void Begin() RUNAHEAD_EXCLUDES(mu_);
  void End() RUNAHEAD_EXCLUDES(mu_);
  // Runs `next` with room of `bytes`, or `done` with why there is none.
  void TakeRoom(const std::shared_ptr<StagingLane>& lane, size_t bytes, Done done, OnRoom next) RUNAHEAD_EXCLUDES(mu_);
  void Granted(uint64_t number, const absl::StatusOr<BufferRef>& room, const OnRoom& next) RUNAHEAD_EXCLUDES(mu_);

  const std::weak_ptr<EdgeDirectory> directory_;
  const PeerId peer_;
  MessageEdgeShared& shared_;
  std::weak_ptr<EdgeCore> core_;

  Mutex mu_;
  CondVar ended_;
  absl::Status why_ RUNAHEAD_GUARDED_BY(mu_);  // not OK: dead
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Sent> sent_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, Wanted> wanted_ RUNAHEAD_GUARDED_BY(mu_);  // asked for, not come yet
  absl::flat_hash_map<uint64_t, WaitingForRoom> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  int busy_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // begun and not ended, and those in waiting_
};

// This side of an edge over messages.
class MessageEnd final : public EdgeEnd {
 public:
  // `edge_core` is over `message_wire`.
  MessageEnd(std::shared_ptr<EdgeCore> edge_core, std::shared_ptr<MessageWire> message_wire)
      : EdgeEnd(std::move(edge_core)), wire(std::move(message_wire)) {}
  void Die(const absl::Status& why) override {
    core->Die(why);
    wire->Fail(why);
  }
  void AwaitEnd() override { wire->AwaitEnd(); }

  const std::shared_ptr<MessageWire> wire;
};

}  // namespace runahead
