// The Worker service: capabilities, and the control stream of the one router.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"

namespace runahead {

// What a role of the worker does with the router's commands. All calls come from one thread, in the order of the
// stream; they may block for a while, but then the worker does not answer pings.
class ControlHandler {
 public:
  virtual ~ControlHandler() = default;
  virtual void OnFormLine(const v1::FormLine& line) = 0;
  virtual void OnStart(const v1::StartJob& start) = 0;
  virtual void OnCancel(uint64_t job) = 0;
  virtual void OnRelease(const v1::LeaseId& lease) = 0;
  // The stream broke: every job that came by it is to end.
  virtual void OnRouterGone() = 0;
};

// Thread-safe. Reactors only queue: commands go to the handler on the service's own thread.
class ControlService final : public v1::Worker::CallbackService {
 public:
  // `handler` outlives the service. `given_up` is called, on any thread, when the router had lost this process and will
  // not take it back as what it is: it is to end.
  ControlService(v1::Capabilities capabilities, ControlHandler& handler, std::function<void()> given_up);
  ~ControlService() override;

  // After this no command reaches the handler, which may go; reports are lost. The streams have ended before.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

  // Queues a report for the router; lost when none is connected, for then its jobs are ended anyway.
  void Report(v1::ControlReport report) RUNAHEAD_EXCLUDES(mu_);

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context,
                                            const v1::GetCapabilitiesRequest* request,
                                            v1::Capabilities* reply) override;
  grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* Control(
      grpc::CallbackServerContext* context) override;

 private:
  class Session;
  // The session's first command; OK makes it the router's session.
  grpc::Status Admit(Session* session, const v1::ControlCommand& first) RUNAHEAD_EXCLUDES(mu_);
  void Leave(Session* session) RUNAHEAD_EXCLUDES(mu_);
  void Post(std::function<void()> command) RUNAHEAD_EXCLUDES(mu_);
  void Dispatch(v1::ControlCommand command);
  void Loop();

  const v1::Capabilities capabilities_;
  ControlHandler& handler_;
  const std::function<void()> given_up_;

  Mutex mu_;
  CondVar changed_;
  Session* session_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;  // the router's; owned by gRPC
  std::deque<std::function<void()>> commands_ RUNAHEAD_GUARDED_BY(mu_);
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
