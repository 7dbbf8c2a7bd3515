// The Worker service: capabilities, and the control stream of the one router.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/base/clock.h"
#include "server/base/core_waits.h"
#include "server/base/hearing.h"
#include "server/base/progress_meter.h"
#include "server/base/replay.h"
#include "server/base/task_thread.h"
#include "worker/service/control_seat.h"

namespace runahead {

// A router that has said nothing for so long is gone; it pings twice a second. Longer than the pauses of a router that
// are to do no harm, and longer than the silence of a worker that a router bears.
inline constexpr absl::Duration kRouterSilence = absl::Seconds(10);

// What a role of the worker does with the router's commands. All calls come from one thread, in the order of the
// stream; they may block for a while.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  virtual void OnFormLine(const v1::FormLine& line) = 0;
  virtual void OnStart(const v1::StartJob& start) = 0;
  virtual void OnCancel(uint64_t job) = 0;
  virtual void OnRelease(const v1::LeaseId& lease) = 0;
  virtual void OnMove(const v1::MoveSequence& move) = 0;
  // Twice a second, while the router is there: a time to look at what may have changed.
  virtual void OnPing() = 0;
  // The router is gone for good: everything that it asked for is to end, and with it the epoch. Returns what the next
  // one can do. On an error, which is for the log, it is asked again.
  virtual absl::StatusOr<v1::Capabilities> OnRouterGone() = 0;
};

// Thread-safe. Reactors only queue: commands go to the handler on the service's own thread; pings are answered at once.
// A stream that breaks may be resumed for kResumeGrace (ControlSeat): meanwhile what the router asked for goes on, and
// reports are kept.
class ControlService final : public v1::Worker::CallbackService {
 public:
  // What a decode worker has now. Called by gRPC's threads, under the service's lock.
  using DecodeLoadReader = std::function<v1::DecodeLoad(uint64_t evictions_heard)>;

  // `handler`, `clock` and `hearing` outlive the service. Its answers to pings say what `meters` read, how the handler
  // does, and what `decode_load`, where it is given, reads.
  ControlService(v1::Capabilities capabilities, ControlHandler& handler, Clock& clock = RealClock(),
                 std::vector<NamedMeter> meters = {}, DecodeLoadReader decode_load = {},
                 Hearing& hearing = AlwaysHears());
  ~ControlService() override;

  // After this no command reaches the handler, which may go; reports are lost. The streams have ended before.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

  // Queues a report for the router, who gets each exactly once; lost when none holds the worker, for then its jobs are
  // ended anyway.
  void Report(v1::ControlReport report) RUNAHEAD_EXCLUDES(mu_);

  // Tells the router, and each that comes later, that this worker is to end. Blocks until it answers that nothing of
  // its is left here, or has gone; false when `timeout` ran out before.
  bool Drain(absl::Duration timeout) RUNAHEAD_EXCLUDES(mu_);

  // UNAVAILABLE while an epoch ends.
  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest* request, v1::Capabilities* reply) override
      RUNAHEAD_EXCLUDES(mu_);
  grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* Control(
      grpc::CallbackServerContext* context) override;

 private:
  class RouterStream;
  // The stream's first command; OK makes it the router's stream.
  grpc::Status Admit(RouterStream* stream, const v1::ControlCommand& first) RUNAHEAD_EXCLUDES(mu_);
  SeatAnswer Seat(RouterStream* stream, const v1::Hello& hello) RUNAHEAD_EXCLUDES(mu_);
  // Each later one. Not OK: the stream is over.
  grpc::Status Take(RouterStream* stream, v1::ControlCommand command) RUNAHEAD_EXCLUDES(mu_);
  v1::ControlReport AnswerTo(const v1::Ping& ping) RUNAHEAD_REQUIRES(mu_);
  void Resume(RouterStream* stream, uint64_t reports_received) RUNAHEAD_REQUIRES(mu_);
  void Leave(RouterStream* stream) RUNAHEAD_EXCLUDES(mu_);
  void Send(v1::ControlReport report) RUNAHEAD_REQUIRES(mu_);
  void Post(std::function<void()> command) RUNAHEAD_REQUIRES(mu_);
  void Dispatch(const v1::ControlCommand& command);
  // The router is gone for good: nothing of its orders or reports is used again.
  void GiveUpEpoch() RUNAHEAD_REQUIRES(mu_);
  void EndEpoch() RUNAHEAD_EXCLUDES(mu_);
  // Ends the stream of a router that is silent for kRouterSilence, and the epoch of one that does not come back.
  void Watch() RUNAHEAD_EXCLUDES(mu_);
  bool RouterIsSilent() RUNAHEAD_REQUIRES(mu_);

  ControlHandler& handler_;
  Clock& clock_;
  Hearing& hearing_;
  const std::shared_ptr<ProgressMeter> progress_;  // of the service's own thread
  std::vector<NamedMeter> meters_;                 // that one's too; does not change
  const DecodeLoadReader decode_load_;
  CoreWaits waits_;  // looks twice a second, as pings come

  Mutex mu_;
  std::optional<v1::Capabilities> capabilities_ RUNAHEAD_GUARDED_BY(mu_);  // nothing while an epoch ends
  ControlSeat seat_ RUNAHEAD_GUARDED_BY(mu_);
  RouterStream* stream_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;  // of the router that holds the seat; owned by gRPC
  // Of this epoch.
  Inbox orders_ RUNAHEAD_GUARDED_BY(mu_);
  Outbox<v1::ControlReport> reports_ RUNAHEAD_GUARDED_BY(mu_);
  bool draining_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool drained_ RUNAHEAD_GUARDED_BY(mu_) = false;  // as the router says
  CondVar drain_changed_;
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  CondVar stop_changed_;
  TaskThread commands_;
  std::thread watch_;
};

}  // namespace runahead
