#include "worker/service/control_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {

// One control stream. Reads one command after the other; one write is in flight, the rest is queued.
class ControlService::Session : public grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport> {
 public:
  explicit Session(ControlService& service) : service_(service) { StartRead(&command_); }

  void Write(v1::ControlReport report) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (finished_) return;
    reports_.push_back(std::move(report));
    if (reports_.size() == 1) StartWrite(&reports_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    if (!admitted_) {
      if (grpc::Status status = service_.Admit(this, command_); !status.ok()) return End(std::move(status));
      admitted_ = true;
    } else {
      service_.Post([&service = service_, command = std::move(command_)] { service.Dispatch(command); });
    }
    command_.Clear();
    StartRead(&command_);
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    reports_.pop_front();
    if (ok && !finished_ && !reports_.empty()) StartWrite(&reports_.front());
  }

  void OnDone() override {
    if (admitted_) service_.Leave(this);
    delete this;
  }

 private:
  void End(grpc::Status status) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (finished_) return;
    finished_ = true;
    Finish(std::move(status));
  }

  ControlService& service_;
  v1::ControlCommand command_;
  bool admitted_ = false;  // of the reading side
  Mutex mu_;
  std::deque<v1::ControlReport> reports_ RUNAHEAD_GUARDED_BY(mu_);
  bool finished_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

ControlService::ControlService(v1::Capabilities capabilities, ControlHandler& handler, std::function<void()> given_up)
    : capabilities_(std::move(capabilities)),
      handler_(handler),
      given_up_(std::move(given_up)),
      thread_([this] { Loop(); }) {}

ControlService::~ControlService() {
  Stop();
}

void ControlService::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void ControlService::Report(v1::ControlReport report) {
  MutexLock lock(mu_);
  if (session_ != nullptr) session_->Write(std::move(report));
}

grpc::ServerUnaryReactor* ControlService::GetCapabilities(grpc::CallbackServerContext* context,
                                                          const v1::GetCapabilitiesRequest*, v1::Capabilities* reply) {
  *reply = capabilities_;
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* ControlService::Control(grpc::CallbackServerContext*) {
  return new Session(*this);
}

grpc::Status ControlService::Admit(Session* session, const v1::ControlCommand& first) {
  const auto refuse = [](const std::string& why) { return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, why); };
  if (!first.has_hello()) return refuse("a control stream begins with hello");
  if (first.hello().worker_incarnation() != capabilities_.incarnation()) {
    return refuse("hello.worker_incarnation: this worker was restarted; ask for its capabilities again");
  }
  if (first.hello().given_up()) {
    given_up_();
    return refuse("hello.given_up: this worker ends, to start anew");
  }
  MutexLock lock(mu_);
  if (session_ != nullptr) return refuse("another router controls this worker; it takes one at a time");
  session_ = session;
  return grpc::Status::OK;
}

void ControlService::Leave(Session* session) {
  MutexLock lock(mu_);
  if (session_ != session) return;
  session_ = nullptr;
  commands_.push_back([this] { handler_.OnRouterGone(); });
  changed_.NotifyAll();
}

void ControlService::Post(std::function<void()> command) {
  MutexLock lock(mu_);
  commands_.push_back(std::move(command));
  changed_.NotifyAll();
}

void ControlService::Loop() {
  for (;;) {
    std::function<void()> command;
    {
      MutexLock lock(mu_);
      while (commands_.empty() && !stopping_) changed_.Wait(mu_);
      if (commands_.empty()) return;
      command = std::move(commands_.front());
      commands_.pop_front();
    }
    command();
  }
}

void ControlService::Dispatch(v1::ControlCommand command) {
  switch (command.command_case()) {
    case v1::ControlCommand::kFormLine:
      return handler_.OnFormLine(command.form_line());
    case v1::ControlCommand::kStart:
      return handler_.OnStart(command.start());
    case v1::ControlCommand::kCancel:
      return handler_.OnCancel(command.cancel().job());
    case v1::ControlCommand::kRelease:
      return handler_.OnRelease(command.release().lease());
    case v1::ControlCommand::kPing: {
      v1::ControlReport report;
      report.mutable_pong()->set_number(command.ping().number());
      return Report(std::move(report));
    }
    case v1::ControlCommand::kHello:
    case v1::ControlCommand::COMMAND_NOT_SET:
      return;
  }
}

}  // namespace runahead
