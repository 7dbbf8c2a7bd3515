// The part of an edge that every transport shares: matching of frames, Finish, Drop and death, over four small
// messages.
//
// The messages may arrive in any order, for each says all that is needed: FINISH carries how many frames were
// announced, and a side is done with a job's incoming half when it has accounted for that many. A job has two halves on
// an edge:
//   outgoing: opened by Send, Finish, Drop; closed when the peer answered FINISHED and no frame's bytes are in use
//   incoming: opened by Recv, a frame, FINISH, Drop; closed when FINISH is in and all frames were received or discarded
// A Drop on either side drops the job on both: each cancels what is not announced, ends its outgoing half with FINISH
// and discards what comes until the peer's FINISH. So neither side is left with state, whether or not it calls Finish.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "kernels/base/mutex.h"
#include "worker/link/closed_jobs.h"
#include "worker/link/edge.h"
#include "worker/link/message_engine.h"
#include "worker/link/wire_time.h"

namespace runahead {

// A message without bytes.
struct EdgeControl {
  enum class Kind : uint8_t { kFinish = 1, kFinished = 2, kDrop = 3, kOpened = 4 };
  Kind kind = Kind::kFinish;
  JobId job = 0;
  uint32_t frames = 0;                              // kFinish: how many the sender has announced
  absl::StatusCode status = absl::StatusCode::kOk;  // kFinished: what Finish at the other side fires with
};

// How a frame came.
struct FrameCame {
  WireTime wire;
  FrameSum sum;  // that its bytes match
};
// Runs once, on any thread; what came counts with OK only.
using FrameDone = std::function<void(absl::Status, const FrameCame&)>;

// An announced frame whose bytes are still at the sender or in the transport. Destroying it unaccepted discards it,
// which lets the sender reuse its bytes.
using ArrivedFrame = std::shared_ptr<MessagePayload>;

// What a transport does for one edge. Thread-safe; calls do not block, but for AwaitEnd. After it told the core of its
// death (Die) it completes every SendFrame and AcceptFrame under way with an error.
class EdgeWire {
 public:
  virtual ~EdgeWire() = default;
  // Announces the frame and moves its bytes when the peer asks for them, under `sum`, or one that it computes where
  // that is of no kind that it uses. `done` runs exactly once, when `bytes` may be reused: OK, DATA_LOSS when they came
  // damaged kTransferAttempts times, or another error when the peer discarded the frame or the edge died.
  virtual void SendFrame(const FrameId& id, ConstBufferRef bytes, FrameSum sum,
                         std::function<void(absl::Status)> done) = 0;
  // At most once for a frame. `into` has its size and is held until `done` runs, on any thread, exactly once. With OK
  // the bytes match the sum; DATA_LOSS: they came damaged kTransferAttempts times.
  virtual void AcceptFrame(const FrameId& id, const ArrivedFrame& frame, BufferRef into, FrameDone done) = 0;
  virtual void SendControl(const EdgeControl& control) = 0;
  // Looks whether it has failed, of which it tells the core.
  virtual void Check() {}
  // The core is dead, for `why`.
  virtual void Fail(const absl::Status& why) = 0;
  // After Fail, and after the connection was closed: returns when nothing here holds a buffer. Not on a callback.
  virtual void AwaitEnd() = 0;
};

// Thread-safe. User calls come from any thread, On... calls from the transport's. Events fire and the wire is called
// without the lock held, so that callbacks may call back.
class EdgeCore final : public Edge, public std::enable_shared_from_this<EdgeCore> {
 public:
  // `name` is the peer as messages name it.
  static std::shared_ptr<EdgeCore> Create(std::shared_ptr<EdgeWire> wire, std::string name);

  Event SendSummed(FrameId id, ConstBufferRef bytes, const Event& after, std::shared_ptr<const FrameSum> sum) override
      RUNAHEAD_EXCLUDES(mu_);
  Reception Recv(FrameId id, BufferRef into) override RUNAHEAD_EXCLUDES(mu_);
  Event Finish(JobId job) override RUNAHEAD_EXCLUDES(mu_);
  void Drop(JobId job) override RUNAHEAD_EXCLUDES(mu_);
  absl::Status Health() const override RUNAHEAD_EXCLUDES(mu_);
  bool Opened() const override RUNAHEAD_EXCLUDES(mu_);

  // As Health, of what is known already; for who holds a lock.
  absl::Status known_health() const RUNAHEAD_EXCLUDES(mu_);

  // Tells the peer that this end is open. Once is enough; more does no harm.
  void Announce();

  // The transport's side.
  void OnFrame(const FrameId& id, ArrivedFrame frame) RUNAHEAD_EXCLUDES(mu_);
  void OnControl(const EdgeControl& control) RUNAHEAD_EXCLUDES(mu_);
  // The edge is dead, for good: what the transport does not hold fires with `why` now, the rest when the transport
  // gives it back. Idempotent.
  void Die(const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);

  // Job halves with state; 0 when every job has ended cleanly.
  size_t live_jobs() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct WaitingSend {
    EventSource source;
    ConstBufferRef bytes;
    std::shared_ptr<const FrameSum> sum;  // null: not known
  };
  struct PostedRecv {
    EventSource source;
    std::shared_ptr<WireTime> wire;
    std::shared_ptr<FrameSum> sum;
    BufferRef into;
  };
  struct Outgoing {
    absl::flat_hash_set<FrameId> known;                 // every frame given to Send
    absl::flat_hash_map<FrameId, WaitingSend> waiting;  // not announced yet
    uint32_t announced = 0;
    uint32_t moving = 0;  // announced, bytes still in use
    bool dropped = false;
    bool finish_called = false;
    bool finish_sent = false;
    std::optional<absl::StatusCode> answered;  // FINISHED is in
    std::vector<EventSource> finishers;
  };
  struct Incoming {
    absl::flat_hash_set<FrameId> wanted;               // every frame given to Recv
    absl::flat_hash_set<FrameId> arrived;              // every frame announced
    absl::flat_hash_map<FrameId, PostedRecv> posted;   // wanted, not arrived
    absl::flat_hash_map<FrameId, ArrivedFrame> early;  // arrived, not wanted
    std::optional<uint32_t> expected;                  // FINISH is in
    uint32_t accounted = 0;                            // received or discarded
    uint32_t moving = 0;                               // into a receiver's buffer
    bool dropped = false;
    absl::StatusCode answer = absl::StatusCode::kOk;
  };
  struct Effects;

  EdgeCore(std::shared_ptr<EdgeWire> wire, std::string name) : wire_(std::move(wire)), name_(std::move(name)) {}

  void Announce(const FrameId& id, const absl::Status& after) RUNAHEAD_EXCLUDES(mu_);
  void OnSent(JobId job, const EventSource& source, absl::Status status) RUNAHEAD_EXCLUDES(mu_);
  void OnReceived(JobId job, const EventSource& source, absl::Status status) RUNAHEAD_EXCLUDES(mu_);
  absl::Status AdmitSend(const FrameId& id) RUNAHEAD_REQUIRES(mu_);
  absl::Status AdmitRecv(const FrameId& id) RUNAHEAD_REQUIRES(mu_);
  void Match(Incoming& in, const FrameId& id, PostedRecv recv, ArrivedFrame frame, Effects& effects)
      RUNAHEAD_REQUIRES(mu_);
  void DropJob(JobId job, Effects& effects) RUNAHEAD_REQUIRES(mu_);
  void AdvanceOutgoing(JobId job, Effects& effects) RUNAHEAD_REQUIRES(mu_);
  void AdvanceIncoming(JobId job, Effects& effects) RUNAHEAD_REQUIRES(mu_);
  absl::Status Dropped(JobId job) const;
  void Run(Effects& effects) RUNAHEAD_EXCLUDES(mu_);

  const std::shared_ptr<EdgeWire> wire_;
  const std::string name_;
  mutable Mutex mu_;
  absl::Status health_ RUNAHEAD_GUARDED_BY(mu_);
  bool opened_ RUNAHEAD_GUARDED_BY(mu_) = false;  // by the peer
  absl::flat_hash_map<JobId, Outgoing> outgoing_ RUNAHEAD_GUARDED_BY(mu_);
  absl::flat_hash_map<JobId, Incoming> incoming_ RUNAHEAD_GUARDED_BY(mu_);
  ClosedJobs outgoing_closed_ RUNAHEAD_GUARDED_BY(mu_);
  ClosedJobs incoming_closed_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
