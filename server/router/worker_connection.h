// The router's connection to one worker, from the first attempt to the last: a thread that connects, asks what the
// worker can do, opens the control stream, pings, and begins again when the worker is lost. A stream that breaks is
// resumed where the worker lives on. A worker that answers and gets nothing done (ProgressJudge) is given up like a
// silent one, and does not join again before it does.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "scheduler/placement/progress.h"
#include "server/base/clock.h"
#include "server/base/hearing.h"
#include "server/base/replay.h"
#include "server/base/silence.h"
#include "server/router/cancel_token.h"
#include "server/router/control_stream.h"
#include "server/router/fleet.h"
#include "server/router/order_log.h"
#include "server/rpc/member_call.h"

namespace runahead {

inline constexpr absl::Duration kPingPeriod = absl::Milliseconds(500);
// A worker that answers nothing for so long is given up: it hangs, or nobody reaches it. A busy one answers pings all
// the same. Time in which the router itself was stopped, or behind with reading, does not count (Silence).
inline constexpr absl::Duration kSilence = absl::Seconds(3);
// For so long is it tried to resume a stream that broke; a worker keeps what belongs to the stream for longer. Where
// nobody listens at the worker's port any more, its process has died, and is not tried again.
inline constexpr absl::Duration kResumePatience = absl::Seconds(2);

class WorkerConnection {
 public:
  // What a connection asks and tells its owner, on its thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Whether the worker may join; it counts as a member until Left.
    virtual absl::Status Admit(int index, const v1::Capabilities& capabilities) = 0;
    // The control stream is up and answered. What is written to `orders` reaches the worker in order and once, over
    // as many streams as that takes, until Left.
    virtual void Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> orders) = 0;
    // The stream broke, and is being resumed: Resumed or Left follows. Nothing new is to be planned on the worker.
    virtual void Interrupted(int index, const absl::Status& why) = 0;
    virtual void Resumed(int index) = 0;
    // Every report once, pongs too. On gRPC's threads; must not block.
    virtual void Report(int index, const v1::ControlReport& report) = 0;
    // What a decode worker has, to a ping that was sent at `asked`. On gRPC's threads; must not block.
    virtual void Loaded(int index, const v1::DecodeLoad& load, absl::Time asked) = 0;
    // KnownIndex::lessons, before each ping.
    virtual uint64_t Lessons() = 0;
    // What a decode worker says that it has evicted, each once or more: of v1::DecodeLoad, to a ping that was sent
    // behind `lessons` of them. On gRPC's threads; must not block.
    virtual void Evicted(const LiveWorker& worker, absl::Span<const uint64_t> hashes, uint64_t lessons) = 0;
    // Whether it is suspected to hang, or does; told where it has changed. On gRPC's threads, and on its own; must not
    // block.
    virtual void Suspected(int index, bool suspected) = 0;
    // An attempt or a membership ended; called after every attempt, whether it was admitted or not.
    virtual void Left(int index, WorkerState state, const absl::Status& why) = 0;
  };

  // Starts at once. `owner`, `clock` and `hearing` must outlive the connection and the workers that it brings.
  WorkerConnection(int index, WorkerSpec spec, uint64_t router_incarnation, Owner& owner, Clock& clock,
                   MemberAccess access = {}, Hearing& hearing = AlwaysHears());
  ~WorkerConnection();  // ends the stream and waits for it
  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;

 private:
  // A stream and what it needs.
  struct Line {
    std::unique_ptr<v1::Worker::Stub> stub;
    std::shared_ptr<ControlStream> stream;
  };

  void Run();
  absl::Status Serve() RUNAHEAD_EXCLUDES(mu_);
  absl::Status Attend(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<grpc::Channel> channel)
      RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<v1::Capabilities> AskCapabilities(v1::Worker::StubInterface& stub);
  // Opens a stream over `channel`, and once the worker has answered has it carry `orders`. Until `until`.
  absl::Status Connect(std::shared_ptr<grpc::Channel> channel, const LiveWorker& worker, OrderLog& orders, bool resume,
                       absl::Time until, Line& line) RUNAHEAD_EXCLUDES(mu_);
  Line OpenStream(std::shared_ptr<grpc::Channel> channel, const LiveWorker& worker, bool resume) RUNAHEAD_EXCLUDES(mu_);
  ControlStream::Callbacks CallbacksFor(const LiveWorker& worker);
  // How many orders the worker has, as its first answer on the stream says.
  absl::StatusOr<uint64_t> AwaitFirstPong(absl::Time until) RUNAHEAD_EXCLUDES(mu_);
  absl::Status KeepAlive(ControlStream& stream, const LiveWorker& worker, OrderLog& orders) RUNAHEAD_EXCLUDES(mu_);
  // After `why`; false when there is nothing to resume, or nobody.
  bool Resume(const LiveWorker& worker, OrderLog& orders, Line& line, const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);
  // Waits for the end of its callbacks, which use this object.
  void End(ControlStream& stream) RUNAHEAD_EXCLUDES(mu_);
  // Not OK: the stream is over. True in `woke` after a pause of our own.
  absl::Status Health(bool* woke = nullptr) RUNAHEAD_REQUIRES(mu_);
  void PauseUntil(absl::Time until) RUNAHEAD_EXCLUDES(mu_);
  // False for one that has come before, over the stream that broke.
  bool Take(const v1::ControlReport& report) RUNAHEAD_EXCLUDES(mu_);
  void TakePong(const v1::Pong& pong, const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  v1::ControlCommand NewPing(const LiveWorker& worker, uint64_t number) RUNAHEAD_EXCLUDES(mu_);
  void TakeEvictions(const v1::Pong& pong, const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  // What the worker's answer says that it gets done.
  void TakeProgress(const v1::Pong& pong) RUNAHEAD_EXCLUDES(mu_);
  // Another process is there: what was seen of the former one says nothing of it.
  void Meet(uint64_t incarnation) RUNAHEAD_EXCLUDES(mu_);
  // Until the next look is due, or something has changed.
  void AwaitLook() RUNAHEAD_REQUIRES(mu_);

  const int index_;
  const WorkerSpec spec_;
  const uint64_t router_incarnation_;
  Owner& owner_;
  Clock& clock_;
  Hearing& hearing_;
  const MemberAccess access_;
  CancelToken stop_;
  bool ever_joined_ = false;  // of its thread
  bool joined_ = false;       // in the current attempt; of its thread
  mutable Mutex mu_;
  CondVar changed_;
  std::optional<uint64_t> has_orders_ RUNAHEAD_GUARDED_BY(mu_);  // the worker, by its last pong on the current stream
  Silence silence_ RUNAHEAD_GUARDED_BY(mu_);                     // of the worker
  std::optional<absl::Status> broken_ RUNAHEAD_GUARDED_BY(mu_);  // the current stream's end
  Inbox reports_ RUNAHEAD_GUARDED_BY(mu_);                       // of the worker's epoch
  absl::Status gap_ RUNAHEAD_GUARDED_BY(mu_);                    // DATA_LOSS when a report is missing
  uint64_t evictions_heard_ RUNAHEAD_GUARDED_BY(mu_) = 0;        // of the worker's epoch
  // By ping on the current stream that may be answered yet, what Owner::Lessons said before it.
  std::map<uint64_t, uint64_t> lessons_ RUNAHEAD_GUARDED_BY(mu_);
  // Of the process that was met last, whatever streams there were.
  uint64_t incarnation_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::map<std::string, ProgressJudge> judges_ RUNAHEAD_GUARDED_BY(mu_);  // by thread
  absl::Status hung_ RUNAHEAD_GUARDED_BY(mu_);                            // UNAVAILABLE while it is
  bool suspected_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
