// The router's connection to one worker, from the first attempt to the last: a thread that connects, asks what the
// worker can do, opens the control stream, pings, and begins again when the worker is lost. One that answers and gets
// nothing done (ProgressJudge) is given up like a silent one, and does not join again before it does.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "scheduler/placement/progress.h"
#include "server/base/clock.h"
#include "server/base/cluster_key.h"
#include "server/base/silence.h"
#include "server/router/cancel_token.h"
#include "server/router/control_stream.h"
#include "server/router/fleet.h"

namespace runahead {

inline constexpr absl::Duration kPingPeriod = absl::Milliseconds(500);
// A worker that answers nothing for so long is given up: it hangs, or nobody reaches it. A busy one answers pings all
// the same. Time in which the router itself was stopped does not count (Silence).
inline constexpr absl::Duration kSilence = absl::Seconds(3);

class WorkerConnection {
 public:
  // What a connection asks and tells its owner, on its thread.
  class Owner {
   public:
    virtual ~Owner() = default;
    // Whether the worker may join; it counts as a member until Left.
    virtual absl::Status Admit(int index, const v1::Capabilities& capabilities) = 0;
    // The control stream is up and answered.
    virtual void Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> stream) = 0;
    // Every report, pongs too. On gRPC's threads; must not block.
    virtual void Report(int index, const v1::ControlReport& report) = 0;
    // Whether it is suspected to hang, or does; told where it has changed. On gRPC's threads, and on its own; must not
    // block.
    virtual void Suspected(int index, bool suspected) = 0;
    // An attempt or a membership ended; called after every attempt, whether it was admitted or not.
    virtual void Left(int index, WorkerState state, const absl::Status& why) = 0;
  };

  // Starts at once. `owner` and `clock` must outlive the connection.
  WorkerConnection(int index, WorkerSpec spec, uint64_t router_incarnation, Owner& owner, Clock& clock,
                   ClusterKey key = {});
  ~WorkerConnection();  // ends the stream and waits for it
  WorkerConnection(const WorkerConnection&) = delete;
  WorkerConnection& operator=(const WorkerConnection&) = delete;

 private:
  void Run();
  absl::Status Serve() RUNAHEAD_EXCLUDES(mu_);
  absl::Status Attend(std::shared_ptr<const LiveWorker> worker, v1::Worker::StubInterface& stub) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<v1::Capabilities> AskCapabilities(v1::Worker::StubInterface& stub);
  absl::Status AwaitFirstReport() RUNAHEAD_EXCLUDES(mu_);
  absl::Status KeepAlive(ControlStream& stream, const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  // Not OK: the stream is over. True in `woke` after a pause of our own.
  absl::Status Health(bool* woke = nullptr) RUNAHEAD_REQUIRES(mu_);
  void PauseUntil(absl::Time until) RUNAHEAD_EXCLUDES(mu_);
  // What the worker's answer says that it gets done.
  void TakeProgress(const v1::Pong& pong) RUNAHEAD_EXCLUDES(mu_);
  // Another process is there: what was seen of the former one says nothing of it.
  void Meet(uint64_t incarnation) RUNAHEAD_EXCLUDES(mu_);
  std::shared_ptr<ControlStream> OpenStream(v1::Worker::StubInterface& stub, const LiveWorker& worker);
  // Until the next look is due, or something has changed.
  void AwaitLook() RUNAHEAD_REQUIRES(mu_);

  const int index_;
  const WorkerSpec spec_;
  const uint64_t router_incarnation_;
  Owner& owner_;
  Clock& clock_;
  const ClusterKey key_;
  CancelToken stop_;
  bool ever_joined_ = false;  // of its thread
  bool joined_ = false;       // in the current attempt; of its thread
  mutable Mutex mu_;
  CondVar changed_;
  bool heard_ RUNAHEAD_GUARDED_BY(mu_) = false;                  // on the current stream
  Silence silence_ RUNAHEAD_GUARDED_BY(mu_);                     // of the worker
  std::optional<absl::Status> broken_ RUNAHEAD_GUARDED_BY(mu_);  // the current stream's end
  // Of the process that was met last, whatever streams there were.
  uint64_t incarnation_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::map<std::string, ProgressJudge> judges_ RUNAHEAD_GUARDED_BY(mu_);  // by thread
  absl::Status hung_ RUNAHEAD_GUARDED_BY(mu_);                            // UNAVAILABLE while it is
  bool suspected_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
