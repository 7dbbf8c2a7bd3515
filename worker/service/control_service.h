// The Worker service: capabilities, and the control stream of the one router.
#pragma once

#include <cstdint>
#include <deque>
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
#include "server/base/progress_meter.h"

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
  // Twice a second, while the router is there: a time to look at what may have changed.
  virtual void OnPing() = 0;
  // The stream ended: everything that came by it is to end, and with it the epoch. Returns what the next one can do. On
  // an error, which is for the log, it is asked again.
  virtual absl::StatusOr<v1::Capabilities> OnRouterGone() = 0;
};

// Thread-safe. Reactors only queue: commands go to the handler on the service's own thread; pings are answered at once.
class ControlService final : public v1::Worker::CallbackService {
 public:
  // `handler` and `clock` outlive the service. Its answers to pings say what `meters` read, and how the handler does.
  ControlService(v1::Capabilities capabilities, ControlHandler& handler, Clock& clock = RealClock(),
                 std::vector<NamedMeter> meters = {});
  ~ControlService() override;

  // After this no command reaches the handler, which may go; reports are lost. The streams have ended before.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

  // Queues a report for the router; lost when none is connected, for then its jobs are ended anyway.
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
  void Leave(RouterStream* stream) RUNAHEAD_EXCLUDES(mu_);
  void Post(std::function<void()> command) RUNAHEAD_EXCLUDES(mu_);
  void Dispatch(const v1::ControlCommand& command);
  void EndEpoch() RUNAHEAD_EXCLUDES(mu_);
  void Loop();
  // Ends the stream of a router that is silent for kRouterSilence.
  void Watch() RUNAHEAD_EXCLUDES(mu_);

  ControlHandler& handler_;
  Clock& clock_;
  const std::shared_ptr<ProgressMeter> progress_;  // of the service's own thread
  std::vector<NamedMeter> meters_;                 // that one's too; does not change

  Mutex mu_;
  CondVar changed_;
  std::optional<v1::Capabilities> capabilities_ RUNAHEAD_GUARDED_BY(mu_);  // nothing while an epoch ends
  RouterStream* stream_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;                // the router's; owned by gRPC
  uint64_t router_ RUNAHEAD_GUARDED_BY(mu_) = 0;                           // its incarnation
  std::deque<std::function<void()>> commands_ RUNAHEAD_GUARDED_BY(mu_);
  bool draining_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool drained_ RUNAHEAD_GUARDED_BY(mu_) = false;  // as the router says
  CondVar drain_changed_;
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  CondVar stop_changed_;
  std::thread thread_;
  std::thread watch_;
};

}  // namespace runahead
