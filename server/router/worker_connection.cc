#include "server/router/worker_connection.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/base/backoff.h"
#include "server/base/logging.h"
#include "server/router/worker_call.h"
#include "server/rpc/tls_words.h"
#include "server/task/run_here.h"

namespace runahead {
namespace {

// Between attempts to reach a worker: short at first, for most are being restarted, and never above a second, so that
// the service answers soon after a worker is back.
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

// A worker that hears the word ends the stream at once; one that hangs is not waited for. In real time, whatever the
// clock: it is between two processes.
constexpr absl::Duration kGoodbyeTime = absl::Milliseconds(200);

// gRPC gives the cause of a failed connection in words alone. Where the words are others, kResumePatience ends the
// trying.
bool NobodyListens(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), "Connection refused");
}

v1::ControlCommand GreetingOf(uint64_t router, const v1::Capabilities& worker, bool resume, uint64_t reports_received) {
  v1::ControlCommand command;
  v1::Hello& hello = *command.mutable_hello();
  hello.set_router_incarnation(router);
  hello.set_worker_incarnation(worker.incarnation());
  hello.set_worker_epoch(worker.epoch());
  hello.set_resume(resume);
  hello.set_reports_received(reports_received);
  return command;
}

}  // namespace

WorkerConnection::WorkerConnection(int index, WorkerSpec spec, uint64_t router_incarnation, Owner& owner, Clock& clock,
                                   MemberAccess access, Hearing& hearing)
    : index_(index),
      spec_(std::move(spec)),
      router_incarnation_(router_incarnation),
      owner_(owner),
      clock_(clock),
      hearing_(hearing),
      access_(std::move(access)),
      silence_(clock.Now(), hearing),
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
  NameThread("connection");
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
  const std::shared_ptr<grpc::Channel> channel = MakeMemberChannel(spec_.address, access_);
  const std::unique_ptr<v1::Worker::Stub> stub = v1::Worker::NewStub(channel);
  const absl::StatusOr<v1::Capabilities> capabilities = AskCapabilities(*stub);
  absl::Status why = WithTlsWords(capabilities.status(), access_.tls != nullptr,
                                  {"cluster_tls_cert", "cluster_tls_ca", "cluster_tls_cert", "cluster_tls_name"});
  if (why.ok()) Meet(capabilities->incarnation());
  if (why.ok()) why = owner_.Admit(index_, *capabilities);
  if (why.ok()) {
    const auto worker = std::make_shared<LiveWorker>();
    worker->index = index_;
    worker->address = spec_.address;
    worker->capabilities = *capabilities;
    worker->hearing = &hearing_;
    if (spec_.decodes()) worker->decode = v1::Decode::NewStub(channel);
    if (spec_.decodes()) worker->kept = v1::KeptKv::NewStub(channel);
    return Attend(worker, channel);
  }
  const WorkerState unreached = ever_joined_ ? WorkerState::kLost : WorkerState::kConnecting;
  const bool refused = absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why) || absl::IsAlreadyExists(why);
  owner_.Left(index_, refused ? WorkerState::kRefused : unreached, why);
  return why;
}

absl::Status WorkerConnection::Attend(std::shared_ptr<const LiveWorker> worker,
                                      std::shared_ptr<grpc::Channel> channel) {
  {
    MutexLock lock(mu_);
    reports_ = {};
    evictions_heard_ = 0;
    gap_ = absl::OkStatus();
  }
  const auto orders = std::make_shared<OrderLog>();
  Line line;
  absl::Status why = Connect(std::move(channel), *worker, *orders, /*resume=*/false, absl::InfiniteFuture(), line);
  if (why.ok()) {
    ever_joined_ = joined_ = true;
    owner_.Joined(worker, orders);
    do {
      why = KeepAlive(*line.stream, *worker, *orders);
      orders->Interrupt();
    } while (Resume(*worker, *orders, line, why));
  }
  const WorkerState unreached = ever_joined_ ? WorkerState::kLost : WorkerState::kConnecting;
  owner_.Left(index_, absl::IsFailedPrecondition(why) ? WorkerState::kRefused : unreached, why);
  End(*line.stream);
  return why;
}

bool WorkerConnection::Resume(const LiveWorker& worker, OrderLog& orders, Line& line, const absl::Status& why) {
  {
    MutexLock lock(mu_);
    if (!broken_ || stop_.cancelled()) return false;  // the stream was given up, and with it the worker
  }
  if (NobodyListens(why)) return false;
  owner_.Interrupted(index_, why);
  const absl::Time until = clock_.Now() + kResumePatience;
  Backoff backoff(kFirstPause, kLongestPause);
  while (true) {
    End(*line.stream);
    // As in Serve, a channel of its own for every attempt.
    const absl::Status tried =
        Connect(MakeMemberChannel(spec_.address, access_), worker, orders, /*resume=*/true, until, line);
    if (tried.ok()) break;
    const bool in_vain = absl::IsAborted(tried) || absl::IsFailedPrecondition(tried) || NobodyListens(tried);
    if (in_vain || stop_.cancelled() || clock_.Now() >= until) return false;
    backoff.Failed(clock_.Now());
    PauseUntil(std::min(until, backoff.due()));
  }
  owner_.Resumed(index_);
  return true;
}

absl::Status WorkerConnection::Connect(std::shared_ptr<grpc::Channel> channel, const LiveWorker& worker,
                                       OrderLog& orders, bool resume, absl::Time until, Line& line) {
  line = OpenStream(std::move(channel), worker, resume);
  RUNAHEAD_ASSIGN_OR_RETURN(const uint64_t received, AwaitFirstPong(until));
  if (orders.CarryBy(line.stream, received)) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("the worker says that it has ", received, " orders, which cannot be"));
}

void WorkerConnection::End(ControlStream& stream) {
  MutexLock lock(mu_);
  if (!broken_) {
    v1::ControlCommand goodbye;
    goodbye.mutable_goodbye();
    stream.Write(std::move(goodbye));
    const absl::Time until = MonotonicNow() + kGoodbyeTime;
    while (!broken_ && MonotonicNow() < until) changed_.WaitFor(mu_, until - MonotonicNow());
  }
  stream.Close();
  while (!broken_) changed_.Wait(mu_);
}

absl::StatusOr<v1::Capabilities> WorkerConnection::AskCapabilities(v1::Worker::StubInterface& stub) {
  const v1::GetCapabilitiesRequest request;
  v1::Capabilities capabilities;
  RUNAHEAD_RETURN_IF_ERROR(
      RunHere(CallWorker(clock_, hearing_, kSilence, {&stop_}, [&](grpc::ClientContext* context, auto done) {
        stub.async()->GetCapabilities(context, &request, &capabilities, std::move(done));
      })));
  return capabilities;
}

WorkerConnection::Line WorkerConnection::OpenStream(std::shared_ptr<grpc::Channel> channel, const LiveWorker& worker,
                                                    bool resume) {
  uint64_t reports_received = 0;
  {
    MutexLock lock(mu_);
    has_orders_.reset();
    silence_ = Silence(clock_.Now(), hearing_);
    broken_.reset();
    hung_ = absl::OkStatus();  // its first answer says whether it still does
    reports_received = reports_.received();
    lessons_.clear();
  }
  Line line;
  line.stub = v1::Worker::NewStub(std::move(channel));
  line.stream = ControlStream::Open(*line.stub, CallbacksFor(worker));
  line.stream->Write(GreetingOf(router_incarnation_, worker.capabilities, resume, reports_received));
  line.stream->Write(NewPing(worker, 0));  // its answer says that the greeting was accepted
  return line;
}

v1::ControlCommand WorkerConnection::NewPing(const LiveWorker& worker, uint64_t number) {
  const uint64_t lessons = owner_.Lessons();
  v1::ControlCommand command;
  v1::Ping& ping = *command.mutable_ping();
  ping.set_number(number);
  worker.clock->Asked(number, clock_.Now());
  MutexLock lock(mu_);
  ping.set_reports_received(reports_.received());
  ping.set_evictions_heard(evictions_heard_);
  lessons_[number] = lessons;
  return command;
}

ControlStream::Callbacks WorkerConnection::CallbacksFor(const LiveWorker& worker) {
  ControlStream::Callbacks callbacks;
  callbacks.report = [this, &worker](const v1::ControlReport& report) {
    if (report.has_pong()) TakePong(report.pong(), worker);
    if (Take(report)) owner_.Report(index_, report);
  };
  callbacks.broken = [this](absl::Status why) {
    MutexLock lock(mu_);
    broken_ = std::move(why);
    changed_.NotifyAll();
  };
  return callbacks;
}

void WorkerConnection::TakePong(const v1::Pong& pong, const LiveWorker& worker) {
  const std::optional<absl::Time> asked = worker.clock->Answered(pong.number(), pong.clock_ns(), clock_.Now());
  if (asked && pong.has_decode()) owner_.Loaded(index_, pong.decode(), *asked);
  TakeEvictions(pong, worker);
  TakeProgress(pong);
}

void WorkerConnection::TakeEvictions(const v1::Pong& pong, const LiveWorker& worker) {
  uint64_t lessons = 0;
  {
    MutexLock lock(mu_);
    const auto asked = lessons_.find(pong.number());
    if (asked == lessons_.end()) return;
    lessons = asked->second;
    lessons_.erase(lessons_.begin(), std::next(asked));  // pings are answered in their order
    if (pong.has_decode()) evictions_heard_ = pong.decode().evictions();
  }
  const auto& evicted = pong.decode().evicted();
  if (!evicted.empty()) owner_.Evicted(worker, {evicted.data(), static_cast<size_t>(evicted.size())}, lessons);
}

bool WorkerConnection::Take(const v1::ControlReport& report) {
  MutexLock lock(mu_);
  silence_.Heard(clock_.Now());
  if (report.has_pong()) {
    has_orders_ = report.pong().orders_received();
    changed_.NotifyAll();
    return true;
  }
  const InboxAnswer answer = reports_.Take(report.number());
  if (answer == InboxAnswer::kGap) gap_ = absl::DataLossError("a report is missing on its control stream");
  return answer == InboxAnswer::kNext;
}

absl::Status WorkerConnection::Health(bool* woke) {
  if (broken_) return *broken_;
  RUNAHEAD_RETURN_IF_ERROR(stop_.status());
  RUNAHEAD_RETURN_IF_ERROR(hung_);
  RUNAHEAD_RETURN_IF_ERROR(gap_);
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
      const ProgressView view{
          told.computing(), absl::Nanoseconds(told.since_ns()), absl::Nanoseconds(told.usual_ns()), told.first(),
          told.done(),      absl::Nanoseconds(told.waited_ns())};
      const Liveness liveness = judges_[told.name()].Judge(view, clock_.Now());
      suspected |= liveness != Liveness::kFine;
      if (liveness != Liveness::kHung) continue;
      hung_ = absl::UnavailableError(
          absl::StrCat("it hangs: it answers, and its ", told.name(), " work has got nothing done for ",
                       absl::FormatDuration(absl::Trunc(view.since - view.waited, absl::Seconds(1)))));
    }
    if (std::exchange(suspected_, suspected) == suspected) return;
  }
  owner_.Suspected(index_, suspected);
}

absl::StatusOr<uint64_t> WorkerConnection::AwaitFirstPong(absl::Time until) {
  MutexLock lock(mu_);
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(Health());
    if (has_orders_) return *has_orders_;
    if (clock_.Now() >= until) return absl::UnavailableError("no answer on its control stream");
    AwaitLook();
  }
}

absl::Status WorkerConnection::KeepAlive(ControlStream& stream, const LiveWorker& worker, OrderLog& orders) {
  uint64_t pings = 1;
  absl::Time next_ping = clock_.Now() + kPingPeriod;
  while (true) {
    bool woke = false;
    uint64_t has_orders = 0;
    {
      MutexLock lock(mu_);
      RUNAHEAD_RETURN_IF_ERROR(Health(&woke));
      has_orders = has_orders_.value_or(0);
    }
    if (woke) {
      LogWarning("registry", "this router stood still for a while; ", worker.capabilities.name(), " at ", spec_.address,
                 " is asked anew");
    }
    orders.Acknowledge(has_orders);
    if (woke || clock_.Now() >= next_ping) {
      stream.Write(NewPing(worker, pings++));
      next_ping = clock_.Now() + kPingPeriod;
    }
    MutexLock lock(mu_);
    if (!broken_ && !stop_.cancelled()) AwaitLook();
  }
}

void WorkerConnection::PauseUntil(absl::Time until) {
  MutexLock lock(mu_);
  while (!stop_.cancelled() && clock_.Now() < until) clock_.WaitUntil(mu_, changed_, until);
}

}  // namespace runahead
