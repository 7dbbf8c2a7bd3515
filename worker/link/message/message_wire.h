// The wire of one edge over an engine's messages.
//
// A frame of host memory is one message, whose bytes wait at the sender until the peer wants them. A frame of device
// memory is offered first; it is copied to pinned memory and sent when the peer wants it: what waits holds no staging.
// Received frames pass through pinned memory where this side's device asks for it, whatever the other side does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/base/mutex.h"
#include "worker/link/edge_core.h"
#include "worker/link/edge_directory.h"
#include "worker/link/message/edge_staging.h"
#include "worker/link/message_engine.h"

namespace runahead {

// Thread-safe.
class MessageWire final : public EdgeWire, public std::enable_shared_from_this<MessageWire> {
 public:
  // `staging`: null where frames are host memory; outlives the directory's use of the wire.
  MessageWire(std::weak_ptr<EdgeDirectory> directory, PeerId peer, EdgeStaging* staging);
  // Before anything else. The core holds the wire.
  void Bind(const std::shared_ptr<EdgeCore>& core) { core_ = core; }

  void SendFrame(const FrameId& id, ConstBufferRef bytes, std::function<void(absl::Status)> done) override
      RUNAHEAD_EXCLUDES(mu_);
  void SendControl(const EdgeControl& control) override;

  // What the peer sent. Malformed headers are ignored.
  void OnFrame(std::string_view header, std::shared_ptr<MessagePayload> payload);
  void OnControl(std::string_view header);
  void OnOffer(std::string_view header) RUNAHEAD_EXCLUDES(mu_);
  void OnBytes(std::string_view header, std::shared_ptr<MessagePayload> payload) RUNAHEAD_EXCLUDES(mu_);

  // After the core's death: what the engine does not hold ends with `why`. Idempotent.
  void Fail(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // After that, and after the engine has closed the connection: returns when no copy uses a buffer.
  void AwaitEnd() RUNAHEAD_EXCLUDES(mu_);

 private:
  using Done = std::function<void(absl::Status)>;
  // Lets go of what it holds before `done` runs.
  using OnRoom = std::function<void(const BufferRef& room, Done done)>;
  class Frame;
  class Offered;
  struct Offer {
    ConstBufferRef bytes;
    Done done;
  };
  struct Wanted {
    BufferRef into;
    ReceiveDone done;
  };
  struct WaitingForRoom {
    std::shared_ptr<StagingLane> lane;
    uint64_t request = 0;
    Done done;
  };

  void Post(MessageKind kind, std::string header, ConstBufferRef bytes, Done done);
  // The peer has answered it; nothing where it did so before, or the edge is dead.
  std::optional<Offer> TakeOffer(uint64_t number) RUNAHEAD_EXCLUDES(mu_);
  void OnWanted(uint64_t number) RUNAHEAD_EXCLUDES(mu_);
  void OnSkipped(uint64_t number) RUNAHEAD_EXCLUDES(mu_);
  void SendStaged(uint64_t number, Offer offer) RUNAHEAD_EXCLUDES(mu_);
  void Want(uint64_t number, Wanted wanted) RUNAHEAD_EXCLUDES(mu_);
  // Runs `next` with room of `bytes`, or `done` with why there is none.
  void TakeRoom(const std::shared_ptr<StagingLane>& lane, size_t bytes, Done done, OnRoom next) RUNAHEAD_EXCLUDES(mu_);
  void Granted(uint64_t number, const absl::StatusOr<BufferRef>& room, const OnRoom& next) RUNAHEAD_EXCLUDES(mu_);

  const std::weak_ptr<EdgeDirectory> directory_;
  const PeerId peer_;
  EdgeStaging* const staging_;
  std::weak_ptr<EdgeCore> core_;

  Mutex mu_;
  CondVar ended_;
  absl::Status why_ RUNAHEAD_GUARDED_BY(mu_);  // not OK: dead
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, Offer> offered_ RUNAHEAD_GUARDED_BY(mu_);  // by this side, not wanted yet
  absl::flat_hash_map<uint64_t, Wanted> wanted_ RUNAHEAD_GUARDED_BY(mu_);  // of the peer, not come yet
  absl::flat_hash_map<uint64_t, WaitingForRoom> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  int with_room_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // frames, and those in waiting_
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
