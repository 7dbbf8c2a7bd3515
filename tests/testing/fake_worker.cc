#include "tests/testing/fake_worker.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/status_macros.h"
#include "server/base/random.h"
#include "server/rpc/transport_options.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {
class FakeWorker::WorkerService final : public v1::Worker::Service {
 public:
  explicit WorkerService(FakeWorker& worker) : worker_(worker) {}
  grpc::Status GetCapabilities(grpc::ServerContext*, const v1::GetCapabilitiesRequest*,
                               v1::Capabilities* reply) override {
    MutexLock lock(worker_.mu_);
    *reply = worker_.capabilities_;
    return grpc::Status::OK;
  }
  grpc::Status Control(grpc::ServerContext* context, Stream* stream) override {
    return worker_.Control(context, stream);
  }

 private:
  FakeWorker& worker_;
};

class FakeWorker::DecodeService final : public v1::Decode::Service {
 public:
  explicit DecodeService(FakeWorker& worker) : worker_(worker) {}
  grpc::Status Reserve(grpc::ServerContext* context, const v1::ReserveRequest* request,
                       v1::ReserveReply* reply) override {
    return worker_.Reserve(context, *request, *reply);
  }
  grpc::Status Renew(grpc::ServerContext* context, const v1::RenewRequest*, v1::RenewReply*) override {
    return worker_.AnswersLeases(context) ? grpc::Status::OK : grpc::Status::CANCELLED;
  }
  grpc::Status Generate(grpc::ServerContext* context, const v1::DecodeRequest* request,
                        grpc::ServerWriter<v1::DecodeReply>* writer) override {
    return worker_.Generate(context, *request, writer);
  }

 private:
  FakeWorker& worker_;
};

class FakeWorker::KeptKvService final : public v1::KeptKv::Service {
 public:
  explicit KeptKvService(FakeWorker& worker) : worker_(worker) {}
  grpc::Status Look(grpc::ServerContext* context, const v1::LookKeptRequest* request, v1::KeptMemory* reply) override {
    return worker_.LookKept(context, *request, *reply);
  }
  grpc::Status Forget(grpc::ServerContext* context, const v1::ForgetKeptRequest* request,
                      v1::ForgetKeptReply* reply) override {
    return worker_.ForgetKept(context, *request, *reply);
  }

 private:
  FakeWorker& worker_;
};

v1::Capabilities FakeWorker::Able(const std::string& name, const std::vector<v1::WorkerRole>& roles,
                                  const std::string& fingerprint, int context_length) {
  v1::Capabilities able;
  able.set_protocol_version(kProtocolVersion);
  able.set_incarnation(RandomBits64());
  for (v1::WorkerRole role : roles) able.add_roles(role);
  able.set_name(name);
  able.set_device("cpu");
  able.set_model_fingerprint(fingerprint);
  able.set_weights_fingerprint("weights");
  able.set_compute_dtype("f32");
  able.set_kv_dtype("f16");
  able.set_context_length(context_length);
  able.set_layers(2);
  able.set_kv_row_bytes(256);
  able.set_kv_block_tokens(256);
  able.set_kv_heads(2);
  able.set_head_dim(16);
  able.set_kv_row_order("token-major k|v");
  able.set_window_layers(1);
  able.set_window(40);
  able.set_link_address("link of " + name);
  able.set_device_link("device link of " + name);
  able.set_kv_capacity_tokens(context_length * 64);
  able.set_max_prefix_tokens(context_length);
  able.set_max_prefix_tokens_with_x(context_length);
  return able;
}

FakeWorker::FakeWorker(v1::Capabilities capabilities, const std::string& address)
    : capabilities_(std::move(capabilities)),
      worker_service_(std::make_unique<WorkerService>(*this)),
      decode_service_(std::make_unique<DecodeService>(*this)),
      kept_service_(std::make_unique<KeptKvService>(*this)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(worker_service_.get());
  builder.RegisterService(decode_service_.get());
  builder.RegisterService(kept_service_.get());
  server_ = builder.BuildAndStart();
  RUNAHEAD_CHECK(server_ != nullptr && port != 0);
  address_ = "127.0.0.1:" + std::to_string(port);
}

FakeWorker::~FakeWorker() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

void FakeWorker::Change(const std::function<void(FakeBehaviour&)>& change) {
  MutexLock lock(mu_);
  change(behaviour_);
  changed_.NotifyAll();
}

grpc::Status FakeWorker::Control(grpc::ServerContext* context, Stream* stream) {
  {
    MutexLock lock(mu_);
    if (stream_ != nullptr) return {grpc::StatusCode::FAILED_PRECONDITION, "another router is connected"};
    stream_ = stream;
    stream_context_ = context;
  }
  grpc::Status status;
  v1::ControlCommand command;
  while (status.ok() && stream->Read(&command)) status = Handle(command);
  MutexLock lock(mu_);
  EndEpoch();
  changed_.NotifyAll();
  return status;
}

void FakeWorker::EndEpoch() {
  stream_ = nullptr;
  stream_context_ = nullptr;
  router_incarnation_ = 0;
  orders_ = reports_ = 0;
  capabilities_.set_epoch(capabilities_.epoch() + 1);
  leases_.clear();
  running_.clear();
  kept_.clear();
  evicted_.clear();
  unfinished_.clear();
}

grpc::Status FakeWorker::Handle(const v1::ControlCommand& command) {
  MutexLock lock(mu_);
  orders_ = std::max(orders_, command.order());
  if (command.has_goodbye()) return {grpc::StatusCode::CANCELLED, "the router has gone"};
  if (command.has_hello()) {
    if (command.hello().resume()) return {grpc::StatusCode::ABORTED, "a fake worker ends its epoch with its stream"};
    if (command.hello().worker_incarnation() != capabilities_.incarnation() ||
        command.hello().worker_epoch() != capabilities_.epoch()) {
      return {grpc::StatusCode::UNAVAILABLE, "another incarnation or epoch"};
    }
    router_incarnation_ = command.hello().router_incarnation();
  } else if (command.has_form_line()) {
    lines_.push_back(command.form_line());
    if (command.form_line().question() != 0 && behaviour_.answers_of_paths) {
      v1::ControlReport report;
      report.mutable_paths()->set_question(command.form_line().question());
      Write(report);
    }
  } else if (command.has_start()) {
    Started(command.start());
  } else if (command.has_cancel()) {
    cancels_.insert(command.cancel().job());
    if (unfinished_.contains(command.cancel().job())) {
      WriteDone(command.cancel().job(), absl::CancelledError("asked to"), v1::JOB_CAUSE_ROUTER);
    }
  } else if (command.has_release()) {
    leases_.erase(command.release().lease().number());
  } else if (command.has_move()) {
    moves_.push_back(command.move());
    to_move_.insert(command.move().lease().number());
  } else if (command.has_drained()) {
    drained_ = true;
  } else if (command.has_ping()) {
    v1::ControlReport report;
    report.mutable_pong()->set_number(command.ping().number());
    report.mutable_pong()->set_orders_received(orders_);
    report.mutable_pong()->set_clock_ns(absl::ToUnixNanos(MonotonicNow() + behaviour_.clock_ahead));
    for (const v1::ThreadProgress& told : behaviour_.progress) *report.mutable_pong()->add_progress() = told;
    if (behaviour_.loads && capabilities_.max_batch() > 0)
      *report.mutable_pong()->mutable_decode() = Load(command.ping().evictions_heard());
    if (behaviour_.pong) Write(report);
  }
  changed_.NotifyAll();
  return grpc::Status::OK;
}

v1::DecodeLoad FakeWorker::Load(uint64_t evictions_heard) const {
  const int64_t block = capabilities_.kv_block_tokens();
  v1::DecodeLoad load;
  load.set_slots_used(static_cast<int32_t>(leases_.size()));
  load.set_slots_free(std::max(0, capabilities_.max_batch() - load.slots_used()));
  load.set_running(static_cast<int32_t>(running_.size()) - behaviour_.parked);
  load.set_parked(behaviour_.parked);
  load.set_leases_grow(behaviour_.grows);
  for (const auto& [number, tokens] : leases_) load.set_blocks_used(load.blocks_used() + (tokens + block - 1) / block);
  load.set_blocks_growable(capabilities_.kv_capacity_tokens() / block - load.blocks_used());
  load.set_step_ns(absl::ToInt64Nanoseconds(behaviour_.step));
  std::vector<int64_t> left;
  for (const auto& [number, tokens] : running_) left.push_back(tokens);
  std::sort(left.begin(), left.end());
  for (const int64_t tokens : left) load.add_remaining_tokens(static_cast<int32_t>(tokens));
  for (size_t i = evictions_heard; i < evicted_.size(); ++i) load.add_evicted(evicted_[i]);
  load.set_evictions(evicted_.size());
  return load;
}

void FakeWorker::Started(const v1::StartJob& start) {
  starts_.push_back(start);
  unfinished_.insert(start.job());
  if (!behaviour_.prefill_end.ok()) return WriteDone(start.job(), behaviour_.prefill_end, v1::JOB_CAUSE_OWN);
  const bool tail = start.part() + 2 == start.bounds_size();
  if (tail && behaviour_.first_token) WriteFirstToken(start.job(), TokenAt(0));
  if (start.has_prompt_logprobs() && behaviour_.scores) {
    const int begin = start.bounds(start.part()) + 1, end = start.bounds(start.part() + 1) + (tail ? 0 : 1);
    for (int index = begin; index < end; index += 2) WriteScores(start, index, std::min(2, end - index));
  }
  if (behaviour_.done) WriteDone(start.job(), absl::OkStatus(), v1::JOB_CAUSE_UNSPECIFIED);
}

void FakeWorker::WriteScores(const v1::StartJob& start, int index, int count) {
  const int from = start.bounds(start.part() + 1) - start.ids_size();  // the first of its ids in the prompt
  v1::ControlReport report;
  report.mutable_scores()->set_job(start.job());
  report.mutable_scores()->set_index(index);
  for (int i = index; i < index + count; ++i) {
    v1::TokenLogprobs& logprobs = *report.mutable_scores()->add_logprobs();
    for (int k = 0; k <= start.prompt_logprobs(); ++k) {
      v1::TokenLogprob& top = *logprobs.add_top();
      top.set_id((i - from < start.ids_size() ? start.ids(i - from) : start.next_id()) + k);
      top.set_logprob(ScoreOf(i) - static_cast<float>(k));
    }
  }
  Write(report);
}

void FakeWorker::SendScores(uint64_t job, int index, int count) {
  v1::StartJob start;
  Await(absl::StrCat("the router has started job ", job), [&]() RUNAHEAD_REQUIRES(mu_) {
    const auto found =
        std::find_if(starts_.begin(), starts_.end(), [job](const auto& started) { return started.job() == job; });
    if (found != starts_.end()) start = *found;
    return found != starts_.end();
  });
  MutexLock lock(mu_);
  WriteScores(start, index, count);
}

void FakeWorker::Write(v1::ControlReport report) {
  if (stream_ == nullptr) return;
  if (!report.has_pong()) report.set_number(++reports_);
  stream_->Write(report);
}

void FakeWorker::WriteFirstToken(uint64_t job, int32_t id) {
  v1::ControlReport report;
  report.mutable_first_token()->set_job(job);
  *report.mutable_first_token()->mutable_token() = Sampled(id);
  report.mutable_first_token()->set_queue_s(0.25e-6);
  report.mutable_first_token()->set_prefill_s(absl::ToDoubleSeconds(behaviour_.prefill_takes));
  Write(report);
}

void FakeWorker::WriteDone(uint64_t job, const absl::Status& status, v1::JobCause cause) {
  unfinished_.erase(job);
  v1::ControlReport report;
  report.mutable_done()->set_job(job);
  report.mutable_done()->set_code(static_cast<int>(status.code()));
  report.mutable_done()->set_message(std::string(status.message()));
  if (!status.ok()) report.mutable_done()->set_cause(cause);
  const bool traced = std::any_of(starts_.begin(), starts_.end(), [job](const v1::StartJob& start) {
    return start.job() == job && !start.traceparent().empty();
  });
  if (traced) *report.mutable_done()->mutable_spans() = behaviour_.spans;
  Write(report);
}

v1::SampledToken FakeWorker::Sampled(int32_t id) const {
  v1::SampledToken token;
  token.set_id(id);
  for (int i = 0; i < behaviour_.logprobs; ++i) {
    v1::TokenLogprob& top = *token.mutable_logprobs()->add_top();
    top.set_id(id + i);
    top.set_logprob(-0.5f - i);
  }
  return token;
}

int32_t FakeWorker::TokenAt(int64_t index) const {
  return behaviour_.token ? behaviour_.token(index) : static_cast<int32_t>(100 + index);
}

void FakeWorker::DropStream() {
  MutexLock lock(mu_);
  if (stream_context_ != nullptr) stream_context_->TryCancel();
  ChangeWait wait("the stream has ended");
  while (stream_context_ != nullptr) {
    if (!wait.Next(mu_, changed_)) return;
  }
}

void FakeWorker::SendFirstToken(uint64_t job, int32_t id) {
  MutexLock lock(mu_);
  WriteFirstToken(job, id);
}

void FakeWorker::SendPath(const v1::PathState& state) {
  v1::ControlReport report;
  *report.mutable_paths()->add_states() = state;
  MutexLock lock(mu_);
  Write(report);
}

void FakeWorker::AnswerOfPaths(uint64_t question) {
  v1::ControlReport report;
  report.mutable_paths()->set_question(question);
  MutexLock lock(mu_);
  Write(report);
}

void FakeWorker::SendDraining() {
  v1::ControlReport report;
  report.mutable_draining();
  MutexLock lock(mu_);
  Write(report);
}

void FakeWorker::SendDone(uint64_t job, const absl::Status& status, v1::JobCause cause) {
  MutexLock lock(mu_);
  WriteDone(job, status, cause);
}

void FakeWorker::LetJobsEnd() {
  MutexLock lock(mu_);
  behaviour_.first_token = behaviour_.done = true;
  for (const v1::StartJob& start : starts_) {
    if (!unfinished_.contains(start.job())) continue;
    if (start.part() + 2 == start.bounds_size()) WriteFirstToken(start.job(), TokenAt(0));
    WriteDone(start.job(), absl::OkStatus(), v1::JOB_CAUSE_UNSPECIFIED);
  }
  changed_.NotifyAll();
}

std::vector<v1::StartJob> FakeWorker::AwaitStarts(size_t count) {
  std::vector<v1::StartJob> starts;
  Await(absl::StrCat("the router has started ", count, " jobs"), [&]() RUNAHEAD_REQUIRES(mu_) {
    starts = starts_;
    return starts_.size() >= count;
  });
  return starts;
}

void FakeWorker::AwaitDrained() {
  Await("the router has said that this worker has drained", [&]() RUNAHEAD_REQUIRES(mu_) { return drained_; });
}

bool FakeWorker::drained() const {
  MutexLock lock(mu_);
  return drained_;
}

void FakeWorker::AwaitRouter() {
  Await("a router's stream is open", [&]() RUNAHEAD_REQUIRES(mu_) { return router_incarnation_ != 0; });
}

v1::FormLine FakeWorker::AwaitLine(const std::function<bool(const v1::FormLine&)>& matches) {
  v1::FormLine line;
  Await("the router has formed such a line", [&]() RUNAHEAD_REQUIRES(mu_) {
    if (!lines_.empty()) line = lines_.back();
    return !lines_.empty() && matches(line);
  });
  return line;
}

void FakeWorker::AwaitCancel(uint64_t job) {
  Await(absl::StrCat("the router has cancelled job ", job),
        [&]() RUNAHEAD_REQUIRES(mu_) { return cancels_.contains(job); });
}

size_t FakeWorker::cancels() const {
  MutexLock lock(mu_);
  return cancels_.size();
}

uint64_t FakeWorker::incarnation() const {
  MutexLock lock(mu_);
  return capabilities_.incarnation();
}

uint64_t FakeWorker::router_incarnation() const {
  MutexLock lock(mu_);
  return router_incarnation_;
}

}  // namespace runahead::testing
