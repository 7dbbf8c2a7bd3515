#include "worker/service/control_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/thread_name.h"
#include "server/base/logging.h"
#include "server/base/silence.h"

namespace runahead {
namespace {

constexpr absl::Duration kBeginAgain = absl::Seconds(1);
constexpr double kAnyCommand = 1;  // of work; the meter is patient, for some wait for links that are closed

v1::JobActivity ToProto(JobActivity activity) {
  switch (activity) {
    case JobActivity::kQueued:
      return v1::JOB_ACTIVITY_QUEUED;
    case JobActivity::kComputing:
      return v1::JOB_ACTIVITY_COMPUTING;
    case JobActivity::kWaiting:
      return v1::JOB_ACTIVITY_WAITING;
    case JobActivity::kDelivering:
      return v1::JOB_ACTIVITY_DELIVERING;
  }
  return v1::JOB_ACTIVITY_UNSPECIFIED;
}

void AddProgress(const NamedMeter& named, v1::Pong& pong) {
  const ProgressMeter::Reading reading = named.meter->Read();
  v1::ThreadProgress& progress = *pong.add_progress();
  progress.set_name(named.name);
  progress.set_computing(reading.computing);
  progress.set_since_ns(absl::ToInt64Nanoseconds(reading.since));
  progress.set_usual_ns(absl::ToInt64Nanoseconds(reading.usual));
  progress.set_first(reading.first);
  progress.set_done(reading.done);
  for (const ProgressMeter::Job& told : reading.jobs) {
    v1::JobProgress& job = *pong.add_jobs();
    job.set_job(told.job);
    job.set_activity(ToProto(told.activity));
    job.set_waits_for(told.waits_for);
    job.set_steps(told.steps);
    job.set_since_ns(absl::ToInt64Nanoseconds(told.since));
  }
}

v1::ControlReport DrainingReport() {
  v1::ControlReport report;
  report.mutable_draining();
  return report;
}

}  // namespace

// One control stream. Reads one command after the other; one write is in flight, the rest is queued.
class ControlService::RouterStream : public grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport> {
 public:
  RouterStream(ControlService& service, grpc::CallbackServerContext& context)
      : service_(service), context_(context), silence_(service.clock_.Now()) {
    StartRead(&command_);
  }

  void Write(v1::ControlReport report) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (finished_) return;
    reports_.push_back(std::move(report));
    if (reports_.size() == 1) StartWrite(&reports_.front());
  }

  // Ends the stream, whatever the network does. The stream lives until Leave, which takes the service's lock.
  void Cancel() { context_.TryCancel(); }

  absl::Duration Silent() RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return silence_.Look(service_.clock_.Now());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return End(grpc::Status::OK);
    {
      MutexLock lock(mu_);
      silence_.Heard(service_.clock_.Now());
    }
    if (!admitted_) {
      if (grpc::Status status = service_.Admit(this, command_); !status.ok()) return End(std::move(status));
      admitted_ = true;
    } else {
      if (command_.has_ping()) Answer(command_.ping());
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
  // Here and not by the handler, which may be waiting for something: the question is whether this process runs, and
  // what it gets done.
  void Answer(const v1::Ping& ping) RUNAHEAD_EXCLUDES(mu_) {
    v1::ControlReport report;
    report.mutable_pong()->set_number(ping.number());
    report.mutable_pong()->set_clock_ns(absl::ToUnixNanos(service_.clock_.Now()));
    for (const NamedMeter& named : service_.meters_) AddProgress(named, *report.mutable_pong());
    Write(std::move(report));
  }

  void End(grpc::Status status) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (finished_) return;
    finished_ = true;
    Finish(std::move(status));
  }

  ControlService& service_;
  grpc::CallbackServerContext& context_;
  v1::ControlCommand command_;
  bool admitted_ = false;  // of the reading side
  Mutex mu_;
  Silence silence_ RUNAHEAD_GUARDED_BY(mu_);  // the router's
  std::deque<v1::ControlReport> reports_ RUNAHEAD_GUARDED_BY(mu_);
  bool finished_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

ControlService::ControlService(v1::Capabilities capabilities, ControlHandler& handler, Clock& clock,
                               std::vector<NamedMeter> meters)
    : handler_(handler),
      clock_(clock),
      progress_(std::make_shared<ProgressMeter>(clock, /*patient=*/true)),
      meters_(std::move(meters)),
      capabilities_(std::move(capabilities)),
      thread_([this] { Loop(); }),
      watch_([this] { Watch(); }) {
  meters_.push_back({"control", progress_});
}

ControlService::~ControlService() {
  Stop();
}

void ControlService::Stop() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
    stop_changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  if (watch_.joinable()) watch_.join();
}

void ControlService::Report(v1::ControlReport report) {
  MutexLock lock(mu_);
  if (stream_ != nullptr) stream_->Write(std::move(report));
}

bool ControlService::Drain(absl::Duration timeout) {
  const absl::Time until = clock_.Now() + timeout;
  MutexLock lock(mu_);
  draining_ = true;
  if (stream_ != nullptr) stream_->Write(DrainingReport());
  while (stream_ != nullptr && !drained_ && clock_.Now() < until) clock_.WaitUntil(mu_, drain_changed_, until);
  return stream_ == nullptr || drained_;
}

grpc::ServerUnaryReactor* ControlService::GetCapabilities(grpc::CallbackServerContext* context,
                                                          const v1::GetCapabilitiesRequest*, v1::Capabilities* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  MutexLock lock(mu_);
  if (capabilities_) *reply = *capabilities_;
  reactor->Finish(capabilities_ ? grpc::Status::OK
                                : grpc::Status(grpc::StatusCode::UNAVAILABLE,
                                               "the worker gives up what its former control stream left; ask again"));
  return reactor;
}

grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* ControlService::Control(
    grpc::CallbackServerContext* context) {
  return new RouterStream(*this, *context);
}

grpc::Status ControlService::Admit(RouterStream* stream, const v1::ControlCommand& first) {
  const auto refuse = [](const std::string& why) { return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, why); };
  const auto again = [](const std::string& why) { return grpc::Status(grpc::StatusCode::UNAVAILABLE, why); };
  if (!first.has_hello()) return refuse("a control stream begins with hello");
  const v1::Hello& hello = first.hello();
  MutexLock lock(mu_);
  if (stream_ != nullptr && router_ == hello.router_incarnation()) {
    // It holds one stream at a time: that this one broke is just not known here yet.
    stream_->Cancel();
    return again("the router's former control stream is being ended; ask for the capabilities again");
  }
  if (stream_ != nullptr) return refuse("another router controls this worker; it takes one at a time");
  if (!capabilities_ || hello.worker_incarnation() != capabilities_->incarnation() ||
      hello.worker_epoch() != capabilities_->epoch()) {
    return again("hello: this worker was restarted, or lost its control stream; ask for its capabilities again");
  }
  stream_ = stream;
  router_ = hello.router_incarnation();
  if (draining_) stream_->Write(DrainingReport());
  return grpc::Status::OK;
}

void ControlService::Leave(RouterStream* stream) {
  MutexLock lock(mu_);
  if (stream_ != stream) return;
  stream_ = nullptr;
  capabilities_.reset();
  commands_.push_back([this] { EndEpoch(); });
  changed_.NotifyAll();
  drain_changed_.NotifyAll();
}

void ControlService::EndEpoch() {
  while (true) {
    absl::StatusOr<v1::Capabilities> next = handler_.OnRouterGone();
    MutexLock lock(mu_);
    if (next.ok()) {
      capabilities_ = *std::move(next);
      return;
    }
    // It had all that it takes before: something outside (descriptors, memory) is short for the moment.
    LogError("control", "the next epoch cannot begin yet: ", next.status().ToString());
    const absl::Time again = clock_.Now() + kBeginAgain;
    while (!stopping_ && clock_.Now() < again) clock_.WaitUntil(mu_, stop_changed_, again);
    if (stopping_) return;
  }
}

void ControlService::Post(std::function<void()> command) {
  progress_->Wanted();
  MutexLock lock(mu_);
  commands_.push_back(std::move(command));
  changed_.NotifyAll();
}

void ControlService::Loop() {
  NameThread("control");
  for (;;) {
    std::function<void()> command;
    {
      MutexLock lock(mu_);
      if (commands_.empty()) progress_->Resting();
      while (commands_.empty() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return;
      progress_->Awake();
      command = std::move(commands_.front());
      commands_.pop_front();
    }
    progress_->Begin(kAnyCommand);
    command();
    progress_->End();
  }
}

void ControlService::Watch() {
  MutexLock lock(mu_);
  while (!stopping_) {
    if (stream_ != nullptr && stream_->Silent() >= kRouterSilence) {
      LogWarning("control", "the router has said nothing for ", absl::FormatDuration(kRouterSilence),
                 ": its control stream is ended");
      stream_->Cancel();
    }
    clock_.WaitUntil(mu_, stop_changed_, clock_.Now() + Silence::kLookPeriod);
  }
}

void ControlService::Dispatch(const v1::ControlCommand& command) {
  switch (command.command_case()) {
    case v1::ControlCommand::kFormLine:
      return handler_.OnFormLine(command.form_line());
    case v1::ControlCommand::kStart:
      return handler_.OnStart(command.start());
    case v1::ControlCommand::kCancel:
      return handler_.OnCancel(command.cancel().job());
    case v1::ControlCommand::kRelease:
      return handler_.OnRelease(command.release().lease());
    case v1::ControlCommand::kPing:
      return handler_.OnPing();
    case v1::ControlCommand::kDrained: {
      MutexLock lock(mu_);
      drained_ = true;
      drain_changed_.NotifyAll();
      return;
    }
    case v1::ControlCommand::kHello:
    case v1::ControlCommand::COMMAND_NOT_SET:
      return;
  }
}

}  // namespace runahead
