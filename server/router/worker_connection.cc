#include "server/router/worker_connection.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/backoff.h"
#include "server/base/logging.h"
#include "server/router/worker_call.h"
#include "server/rpc/member_call.h"

namespace runahead {
namespace {

// Between attempts to reach a worker: short at first, for most are being restarted, and never above a second, so that
// the service answers soon after a worker is back.
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

}  // namespace

WorkerConnection::WorkerConnection(int index, WorkerSpec spec, uint64_t router_incarnation, Owner& owner, Clock& clock,
                                   ClusterKey key)
    : index_(index),
      spec_(std::move(spec)),
      router_incarnation_(router_incarnation),
      owner_(owner),
      clock_(clock),
      key_(std::move(key)),
      silence_(clock.Now()),
      thread_([this] { Run(); }) {}

WorkerConnection::~WorkerConnection() {
  stop_.Cancel(absl::CancelledError("the router stops"));
  {
    MutexLock lock(mu_);
    changed_.NotifyAll();
  }
  thread_.join();
}

void WorkerConnection::Run() {
  Backoff backoff(kFirstPause, kLongestPause);
  while (!stop_.cancelled()) {
    joined_ = false;
    const absl::Status why = Serve();
    if (joined_) backoff.Worked();
    backoff.Failed(clock_.Now());
    PauseUntil(backoff.due());
  }
}

absl::Status WorkerConnection::Serve() {
  // A channel of its own for every attempt: an old one may be waiting for its next try to connect.
  const std::shared_ptr<grpc::Channel> channel = MakeMemberChannel(spec_.address, key_);
  const std::unique_ptr<v1::Worker::Stub> stub = v1::Worker::NewStub(channel);
  const absl::StatusOr<v1::Capabilities> capabilities = AskCapabilities(*stub);
  absl::Status why = capabilities.status();
  if (why.ok()) Meet(capabilities->incarnation());
  if (why.ok()) why = owner_.Admit(index_, *capabilities);
  if (why.ok()) {
    const auto worker = std::make_shared<LiveWorker>();
    worker->index = index_;
    worker->address = spec_.address;
    worker->capabilities = *capabilities;
    if (spec_.decodes()) worker->decode = v1::Decode::NewStub(channel);
    return Attend(worker, *stub);
  }
  const WorkerState unreached = ever_joined_ ? WorkerState::kLost : WorkerState::kConnecting;
  const bool refused = absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why);
  owner_.Left(index_, refused ? WorkerState::kRefused : unreached, why);
  return why;
}

absl::Status WorkerConnection::Attend(std::shared_ptr<const LiveWorker> worker, v1::Worker::StubInterface& stub) {
  const std::shared_ptr<ControlStream> stream = OpenStream(stub, *worker);
  absl::Status why = AwaitFirstReport();
  if (why.ok()) {
    ever_joined_ = joined_ = true;
    owner_.Joined(worker, stream);
    why = KeepAlive(*stream, *worker);
  }
  const WorkerState unreached = ever_joined_ ? WorkerState::kLost : WorkerState::kConnecting;
  owner_.Left(index_, absl::IsFailedPrecondition(why) ? WorkerState::kRefused : unreached, why);
  stream->Close();
  MutexLock lock(mu_);
  while (!broken_) changed_.Wait(mu_);  // its callbacks use this object
  return why;
}

absl::StatusOr<v1::Capabilities> WorkerConnection::AskCapabilities(v1::Worker::StubInterface& stub) {
  const v1::GetCapabilitiesRequest request;
  v1::Capabilities capabilities;
  RUNAHEAD_RETURN_IF_ERROR(CallWorker(clock_, kSilence, {&stop_}, [&](grpc::ClientContext* context, auto done) {
    stub.async()->GetCapabilities(context, &request, &capabilities, std::move(done));
  }));
  return capabilities;
}

std::shared_ptr<ControlStream> WorkerConnection::OpenStream(v1::Worker::StubInterface& stub, const LiveWorker& worker) {
  {
    MutexLock lock(mu_);
    heard_ = false;
    silence_ = Silence(clock_.Now());
    broken_.reset();
    hung_ = absl::OkStatus();  // its first answer says whether it still does
  }
  ControlStream::Callbacks callbacks;
  callbacks.report = [this, clock = worker.clock](const v1::ControlReport& report) {
    if (report.has_pong()) clock->Answered(report.pong().number(), report.pong().clock_ns(), clock_.Now());
    if (report.has_pong()) TakeProgress(report.pong());
    {
      MutexLock lock(mu_);
      heard_ = true;
      silence_.Heard(clock_.Now());
      changed_.NotifyAll();
    }
    owner_.Report(index_, report);
  };
  callbacks.broken = [this](absl::Status why) {
    MutexLock lock(mu_);
    broken_ = std::move(why);
    changed_.NotifyAll();
  };
  std::shared_ptr<ControlStream> stream = ControlStream::Open(stub, std::move(callbacks));
  v1::ControlCommand command;
  command.mutable_hello()->set_router_incarnation(router_incarnation_);
  command.mutable_hello()->set_worker_incarnation(worker.capabilities.incarnation());
  command.mutable_hello()->set_worker_epoch(worker.capabilities.epoch());
  stream->Write(command);
  command.mutable_ping();  // its answer says that the greeting was accepted
  worker.clock->Asked(0, clock_.Now());
  stream->Write(std::move(command));
  return stream;
}

absl::Status WorkerConnection::Health(bool* woke) {
  if (broken_) return *broken_;
  RUNAHEAD_RETURN_IF_ERROR(stop_.status());
  RUNAHEAD_RETURN_IF_ERROR(hung_);
  if (silence_.Look(clock_.Now(), woke) >= kSilence) {
    return absl::UnavailableError(absl::StrCat("no sign of life for ", absl::FormatDuration(kSilence)));
  }
  return absl::OkStatus();
}

void WorkerConnection::AwaitLook() {
  clock_.WaitUntil(mu_, changed_, clock_.Now() + Silence::kLookPeriod);
}

void WorkerConnection::Meet(uint64_t incarnation) {
  {
    MutexLock lock(mu_);
    if (std::exchange(incarnation_, incarnation) == incarnation) return;
    judges_.clear();
    hung_ = absl::OkStatus();
    if (!std::exchange(suspected_, false)) return;
  }
  owner_.Suspected(index_, false);
}

void WorkerConnection::TakeProgress(const v1::Pong& pong) {
  bool suspected = false;
  {
    MutexLock lock(mu_);
    hung_ = absl::OkStatus();
    for (const v1::ThreadProgress& told : pong.progress()) {
      const ProgressView view{told.computing(), absl::Nanoseconds(told.since_ns()), absl::Nanoseconds(told.usual_ns()),
                              told.first(), told.done()};
      const Liveness liveness = judges_[told.name()].Judge(view, clock_.Now());
      suspected |= liveness != Liveness::kFine;
      if (liveness != Liveness::kHung) continue;
      hung_ = absl::UnavailableError(absl::StrCat("it hangs: it answers, and its ", told.name(),
                                                  " work has got nothing done for ",
                                                  absl::FormatDuration(absl::Trunc(view.since, absl::Seconds(1)))));
    }
    if (std::exchange(suspected_, suspected) == suspected) return;
  }
  owner_.Suspected(index_, suspected);
}

absl::Status WorkerConnection::AwaitFirstReport() {
  MutexLock lock(mu_);
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(Health());
    if (heard_) return absl::OkStatus();
    AwaitLook();
  }
}

absl::Status WorkerConnection::KeepAlive(ControlStream& stream, const LiveWorker& worker) {
  uint64_t pings = 1;
  MutexLock lock(mu_);
  absl::Time next_ping = clock_.Now() + kPingPeriod;
  while (true) {
    bool woke = false;
    RUNAHEAD_RETURN_IF_ERROR(Health(&woke));
    if (woke) {
      LogWarning("registry", "this router stood still for a while; ", worker.capabilities.name(), " at ", spec_.address,
                 " is asked anew");
    }
    if (woke || clock_.Now() >= next_ping) {
      v1::ControlCommand command;
      worker.clock->Asked(pings, clock_.Now());
      command.mutable_ping()->set_number(pings++);
      stream.Write(std::move(command));
      next_ping = clock_.Now() + kPingPeriod;
    }
    AwaitLook();
  }
}

void WorkerConnection::PauseUntil(absl::Time until) {
  MutexLock lock(mu_);
  while (!stop_.cancelled() && clock_.Now() < until) clock_.WaitUntil(mu_, changed_, until);
}

}  // namespace runahead
