#include "worker/service/control_service.h"

#include <deque>
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

void AddProgress(const NamedMeter& named, const CoreWaits& waits, v1::Pong& pong) {
  const ProgressMeter::Reading reading = named.meter->Read();
  v1::ThreadProgress& progress = *pong.add_progress();
  progress.set_name(named.name);
  progress.set_computing(reading.computing);
  progress.set_since_ns(absl::ToInt64Nanoseconds(reading.since));
  progress.set_waited_ns(absl::ToInt64Nanoseconds(waits.Within(reading.since)));
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
      : service_(service), context_(context), silence_(service.clock_.Now(), service.hearing_) {
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
    grpc::Status status = admitted_ ? service_.Take(this, std::move(command_)) : service_.Admit(this, command_);
    if (!status.ok()) return End(std::move(status));
    admitted_ = true;
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
  grpc::CallbackServerContext& context_;
  v1::ControlCommand command_;
  bool admitted_ = false;  // of the reading side
  Mutex mu_;
  Silence silence_ RUNAHEAD_GUARDED_BY(mu_);  // the router's
  std::deque<v1::ControlReport> reports_ RUNAHEAD_GUARDED_BY(mu_);
  bool finished_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

ControlService::ControlService(v1::Capabilities capabilities, ControlHandler& handler, Clock& clock,
                               std::vector<NamedMeter> meters, DecodeLoadReader decode_load, Hearing& hearing)
    : handler_(handler),
      clock_(clock),
      hearing_(hearing),
      progress_(std::make_shared<ProgressMeter>(clock, /*patient=*/true)),
      meters_(std::move(meters)),
      decode_load_(std::move(decode_load)),
      waits_(clock),
      capabilities_(std::move(capabilities)),
      seat_(capabilities_->incarnation(), capabilities_->epoch()),
      commands_("control", progress_),
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
    stop_changed_.NotifyAll();
  }
  commands_.Abandon();
  if (watch_.joinable()) watch_.join();
}

void ControlService::Report(v1::ControlReport report) {
  MutexLock lock(mu_);
  Send(std::move(report));
}

void ControlService::Send(v1::ControlReport report) {
  if (!seat_.held()) return;
  report.set_number(reports_.next());
  if (stream_ != nullptr) stream_->Write(report);
  reports_.Append(std::move(report));
}

bool ControlService::Drain(absl::Duration timeout) {
  const absl::Time until = clock_.Now() + timeout;
  MutexLock lock(mu_);
  draining_ = true;
  Send(DrainingReport());
  while (seat_.held() && !drained_ && clock_.Now() < until) clock_.WaitUntil(mu_, drain_changed_, until);
  return !seat_.held() || drained_;
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
  switch (Seat(stream, first.hello())) {
    case SeatAnswer::kTaken:
      return grpc::Status::OK;
    case SeatAnswer::kResumed:
      LogInfo("control", "the router has resumed its control stream");
      return grpc::Status::OK;
    case SeatAnswer::kEpochEnds:
      return again("hello: what the former control stream left is being given up; ask for the capabilities again");
    case SeatAnswer::kStale:
      return again("hello: this worker was restarted, or lost its control stream; ask for its capabilities again");
    case SeatAnswer::kTooLate:
      return {grpc::StatusCode::ABORTED, "hello: there is no control stream any more that could be resumed"};
    case SeatAnswer::kOthersWait:
      return again("hello: the stream of the router that controls this worker broke; it may resume it first");
    case SeatAnswer::kOtherRouter:
      break;
  }
  return refuse("another router controls this worker; it takes one at a time");
}

SeatAnswer ControlService::Seat(RouterStream* stream, const v1::Hello& hello) {
  MutexLock lock(mu_);
  const SeatAnswer answer = seat_.Ask(
      {hello.router_incarnation(), hello.worker_incarnation(), hello.worker_epoch(), hello.resume()}, clock_.Now());
  if (answer == SeatAnswer::kEpochEnds) GiveUpEpoch();
  if (answer == SeatAnswer::kResumed) Resume(stream, hello.reports_received());
  if (answer != SeatAnswer::kTaken) return answer;
  stream_ = stream;
  if (draining_) Send(DrainingReport());
  return answer;
}

void ControlService::Resume(RouterStream* stream, uint64_t reports_received) {
  if (stream_ != nullptr) stream_->Cancel();  // that it broke is just not known here yet
  stream_ = stream;
  reports_.Acknowledge(reports_received);
  for (const v1::ControlReport& report : reports_.kept()) stream_->Write(report);
}

grpc::Status ControlService::Take(RouterStream* stream, v1::ControlCommand command) {
  MutexLock lock(mu_);
  if (stream_ != stream) return grpc::Status::CANCELLED;  // another has taken its place
  if (command.has_goodbye()) {
    GiveUpEpoch();
    return {grpc::StatusCode::CANCELLED, "the router gave this worker up"};
  }
  if (command.has_ping()) {
    reports_.Acknowledge(command.ping().reports_received());
    stream->Write(AnswerTo(command.ping()));
  } else {
    const InboxAnswer answer = orders_.Take(command.order());
    if (answer == InboxAnswer::kRepeat) return grpc::Status::OK;
    if (answer == InboxAnswer::kGap) return {grpc::StatusCode::DATA_LOSS, "an order is missing before this one"};
  }
  Post([this, command = std::move(command)] { Dispatch(command); });
  return grpc::Status::OK;
}

// Here and not by the handler, which may be waiting for something: the question is whether this process runs, and what
// it gets done.
v1::ControlReport ControlService::AnswerTo(const v1::Ping& ping) {
  v1::ControlReport report;
  report.mutable_pong()->set_number(ping.number());
  report.mutable_pong()->set_orders_received(orders_.received());
  report.mutable_pong()->set_clock_ns(absl::ToUnixNanos(clock_.Now()));
  for (const NamedMeter& named : meters_) AddProgress(named, waits_, *report.mutable_pong());
  if (decode_load_) *report.mutable_pong()->mutable_decode() = decode_load_(ping.evictions_heard());
  return report;
}

void ControlService::Leave(RouterStream* stream) {
  {
    MutexLock lock(mu_);
    if (stream_ != stream) return;
    stream_ = nullptr;
    seat_.Broke(clock_.Now());
  }
  LogInfo("control", "the router's control stream broke; the router may resume it for ",
          absl::FormatDuration(kResumeGrace));
}

void ControlService::GiveUpEpoch() {
  if (stream_ != nullptr) stream_->Cancel();
  stream_ = nullptr;
  seat_.EndEpoch();
  orders_ = {};
  reports_ = {};
  capabilities_.reset();
  Post([this] { EndEpoch(); });
  drain_changed_.NotifyAll();
}

void ControlService::EndEpoch() {
  while (true) {
    absl::StatusOr<v1::Capabilities> next = handler_.OnRouterGone();
    // It had all that it takes before: something outside (descriptors, memory) is short for the moment.
    if (!next.ok()) LogError("control", "the next epoch cannot begin yet: ", next.status().ToString());
    MutexLock lock(mu_);
    if (next.ok()) {
      seat_.BeginEpoch(next->epoch());
      capabilities_ = *std::move(next);
      return;
    }
    const absl::Time again = clock_.Now() + kBeginAgain;
    while (!stopping_ && clock_.Now() < again) clock_.WaitUntil(mu_, stop_changed_, again);
    if (stopping_) return;
  }
}

void ControlService::Post(std::function<void()> command) {
  commands_.Post([progress = progress_, command = std::move(command)] {
    progress->Begin(kAnyCommand);
    command();
    progress->End();
  });
}

void ControlService::Watch() {
  NameThread("silence");
  while (true) {
    bool silent = false;
    {
      MutexLock lock(mu_);
      if (stopping_) return;
      silent = RouterIsSilent();
      if (seat_.Overdue(clock_.Now())) GiveUpEpoch();
      if (!silent) clock_.WaitUntil(mu_, stop_changed_, clock_.Now() + Silence::kLookPeriod);
    }
    if (silent) {
      LogWarning("control", "the router has said nothing for ", absl::FormatDuration(kRouterSilence),
                 ": its control stream is ended");
    }
  }
}

bool ControlService::RouterIsSilent() {
  if (stream_ == nullptr || stream_->Silent() < kRouterSilence) return false;
  stream_->Cancel();
  stream_ = nullptr;
  seat_.Broke(clock_.Now());
  return true;
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
    case v1::ControlCommand::kMove:
      return handler_.OnMove(command.move());
    case v1::ControlCommand::kPing:
      waits_.Look();
      return handler_.OnPing();
    case v1::ControlCommand::kDrained: {
      MutexLock lock(mu_);
      drained_ = true;
      drain_changed_.NotifyAll();
      return;
    }
    case v1::ControlCommand::kHello:
    case v1::ControlCommand::kGoodbye:
    case v1::ControlCommand::COMMAND_NOT_SET:
      return;
  }
}

}  // namespace runahead
