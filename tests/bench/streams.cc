// Many streams through one router whose workers take no time.
//
// `streams workers MODEL STREAMS RATE ROOM` is a prefill worker and a decode worker of MODEL in one process: a prompt's
// first token comes at once, and the others of a stream so often that STREAMS of them make RATE tokens a second in sum;
// ROOM streams find memory. It prints {"prefill","decode"}, their addresses.
//
// `streams load ROUTER STREAMS STARTING PROBED` opens STREAMS streams, STARTING at a time and one more each kPace, and
// prints {"open"} when all run, or will not soon. Then it sends kProbes requests of PROBED tokens, one after the other,
// and prints how long each waited for its first. When a line comes from standard input it ends all, and prints how they
// ended. Times are in milliseconds.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "kernels/base/monotonic.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/rpc/channel.h"
#include "tests/testing/fake_worker.h"
#include "worker/format/gguf.h"

namespace runahead {
namespace {

constexpr int kProbes = 300;
constexpr absl::Duration kPace = absl::Milliseconds(2);
constexpr int kStreamsAConnection = 500;
constexpr int kContext = 8192;               // the quick-start model's
constexpr int kPrompt = 16, kTokens = 2000;  // of a stream

// Streams whose next token is due, one after the other: all have the same pace.
class Ticker {
 public:
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual bool Tick() = 0;  // false: it has ended
  };

  explicit Ticker(absl::Duration period) : period_(period), thread_([this] { Run(); }) {}

  void Add(std::shared_ptr<Stream> stream) {
    MutexLock lock(mu_);
    due_.emplace_back(MonotonicNow() + period_, std::move(stream));
  }

 private:
  void Run() {
    while (true) {
      absl::SleepFor(absl::Milliseconds(1));
      while (const std::shared_ptr<Stream> next = TakeDue()) {
        if (next->Tick()) Add(next);
      }
    }
  }
  std::shared_ptr<Stream> TakeDue() {
    MutexLock lock(mu_);
    if (due_.empty() || due_.front().first > MonotonicNow()) return nullptr;
    std::shared_ptr<Stream> next = std::move(due_.front().second);
    due_.pop_front();
    return next;
  }

  const absl::Duration period_;
  Mutex mu_;
  std::deque<std::pair<absl::Time, std::shared_ptr<Stream>>> due_ RUNAHEAD_GUARDED_BY(mu_);
  std::thread thread_;
};

class InstantControl final : public grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport> {
 public:
  InstantControl() { StartRead(&command_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Handle();
    StartRead(&command_);
  }
  void OnWriteDone(bool) override {
    MutexLock lock(mu_);
    queue_.pop_front();
    if (!queue_.empty()) StartWrite(&queue_.front());
  }
  void OnDone() override { delete this; }

  void Handle() {
    orders_ = std::max(orders_, command_.order());
    v1::ControlReport report;
    if (command_.has_ping()) {
      report.mutable_pong()->set_number(command_.ping().number());
      report.mutable_pong()->set_orders_received(orders_);
      report.mutable_pong()->set_clock_ns(absl::ToUnixNanos(MonotonicNow()));
      Write(report);
    } else if (command_.has_form_line() && command_.form_line().question() != 0) {
      report.mutable_paths()->set_question(command_.form_line().question());
      WriteNumbered(report);
    } else if (command_.has_start()) {
      report.mutable_first_token()->set_job(command_.start().job());
      report.mutable_first_token()->mutable_token()->set_id(100);
      WriteNumbered(report);
      report.Clear();
      report.mutable_done()->set_job(command_.start().job());
      WriteNumbered(report);
    }
  }
  void WriteNumbered(v1::ControlReport report) {
    report.set_number(++reports_);
    Write(report);
  }
  void Write(const v1::ControlReport& report) {
    MutexLock lock(mu_);
    queue_.push_back(report);
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  v1::ControlCommand command_;
  uint64_t orders_ = 0, reports_ = 0;  // of the reactions
  Mutex mu_;
  std::deque<v1::ControlReport> queue_ RUNAHEAD_GUARDED_BY(mu_);
};

class InstantWorker final : public v1::Worker::CallbackService {
 public:
  explicit InstantWorker(v1::Capabilities able) : able_(std::move(able)) {}
  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context, const v1::GetCapabilitiesRequest*,
                                            v1::Capabilities* reply) override {
    *reply = able_;
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* Control(grpc::CallbackServerContext*) override {
    return new InstantControl;
  }

 private:
  const v1::Capabilities able_;
};

// The tokens of one lease. Two, the first of which is the prefill worker's, come at once: a probe's.
class InstantStream final : public grpc::ServerWriteReactor<v1::DecodeReply>, public Ticker::Stream {
 public:
  static InstantStream* Begin(int tokens, Ticker& ticker) {
    const std::shared_ptr<InstantStream> stream(new InstantStream(tokens - 1));
    stream->itself_ = stream;
    if (tokens <= 2) {
      stream->Tick();
    } else {
      ticker.Add(stream);
    }
    return stream.get();
  }
  bool Tick() override {
    MutexLock lock(mu_);
    if (done_ || left_ == 0) return false;
    if (writing_) return true;  // a tick late
    v1::SampledToken& token = reply_.mutable_tokens()->empty() ? *reply_.add_tokens() : *reply_.mutable_tokens(0);
    token.set_id(100);
    writing_ = true;
    --left_;
    StartWrite(&reply_);
    return left_ > 0;
  }

 private:
  explicit InstantStream(int tokens) : left_(tokens) {}
  void OnWriteDone(bool ok) override {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok || left_ == 0) Finish(grpc::Status::OK);
    if (!ok) done_ = true;
  }
  void OnDone() override {
    const std::shared_ptr<InstantStream> last = std::move(itself_);
    MutexLock lock(mu_);
    done_ = true;
  }
  void OnCancel() override {
    MutexLock lock(mu_);
    if (!writing_ && !done_ && left_ > 0) Finish(grpc::Status::CANCELLED);
    done_ = true;
  }

  std::shared_ptr<InstantStream> itself_;
  v1::DecodeReply reply_;
  Mutex mu_;
  int left_ RUNAHEAD_GUARDED_BY(mu_);
  bool writing_ RUNAHEAD_GUARDED_BY(mu_) = false, done_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

class InstantDecode final : public v1::Decode::CallbackService {
 public:
  InstantDecode(Ticker& ticker, uint64_t incarnation, uint64_t room)
      : ticker_(ticker), incarnation_(incarnation), room_(room) {}
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                    v1::ReserveReply* reply) override {
    reply->mutable_lease()->set_incarnation(incarnation_);
    reply->mutable_lease()->set_epoch(request->epoch());
    reply->mutable_lease()->set_number(++leases_);
    const bool full = request->total_tokens() >= kTokens && ++streams_ > room_;
    auto* const reactor = context->DefaultReactor();
    reactor->Finish(full ? grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full") : grpc::Status::OK);
    return reactor;
  }
  grpc::ServerWriteReactor<v1::DecodeReply>* Generate(grpc::CallbackServerContext*,
                                                      const v1::DecodeRequest* request) override {
    return InstantStream::Begin(request->max_tokens(), ticker_);
  }

 private:
  Ticker& ticker_;
  const uint64_t incarnation_;
  const uint64_t room_;  // for streams, whatever ends
  std::atomic<uint64_t> leases_ = 0, streams_ = 0;
};

int Workers(const std::string& model, int streams, int rate, int64_t room) {
  const auto file = OpenGguf(model);
  if (!file.ok()) return std::fprintf(stderr, "streams: %s\n", file.status().ToString().c_str()), 1;
  Ticker ticker(absl::Seconds(1) * streams / rate);
  std::string addresses[2];
  std::vector<std::unique_ptr<grpc::Service>> services;
  std::vector<std::unique_ptr<grpc::Server>> servers;
  for (const v1::WorkerRole role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    const bool decodes = role == v1::WORKER_ROLE_DECODE;
    v1::Capabilities able = testing::FakeWorker::Able(decodes ? "decode-0" : "prefill-0", {role},
                                                      absl::StrFormat("%016x", (*file)->fingerprint()), kContext);
    able.set_tokenizer_fingerprint(absl::StrFormat("%016x", (*file)->tokenizer_fingerprint()));
    able.set_chat_template_fingerprint(absl::StrFormat("%016x", (*file)->chat_template_fingerprint()));
    able.set_kv_capacity_tokens(room * (kPrompt + kTokens) + kContext);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    services.push_back(std::make_unique<InstantWorker>(able));
    builder.RegisterService(services.back().get());
    services.push_back(std::make_unique<InstantDecode>(ticker, able.incarnation(), room));
    builder.RegisterService(services.back().get());
    servers.push_back(builder.BuildAndStart());
    addresses[decodes ? 1 : 0] = absl::StrFormat("127.0.0.1:%d", port);
  }
  std::printf("{\"prefill\": \"%s\", \"decode\": \"%s\"}\n", addresses[0].c_str(), addresses[1].c_str());
  std::fflush(stdout);
  servers[0]->Wait();  // until killed
  return 0;
}

// What all streams of the load came to.
struct Sums {
  Mutex mu;
  CondVar changed;
  int starting RUNAHEAD_GUARDED_BY(mu) = 0, open RUNAHEAD_GUARDED_BY(mu) = 0, ended RUNAHEAD_GUARDED_BY(mu) = 0;
  std::map<int, int> codes RUNAHEAD_GUARDED_BY(mu);
  std::atomic<int64_t> tokens = 0;
};

class Client final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Client(v1::Inference::StubInterface& stub, int tokens, Sums& sums) : sums_(sums), began_(MonotonicNow()) {
    request_.mutable_stop()->set_max_tokens(tokens);
    request_.mutable_stop()->set_ignore_eos(true);
    for (int i = 0; i < kPrompt; ++i) request_.mutable_token_ids()->add_ids(100 + i);
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  // Once it has ended: until its first token; infinite where none came.
  absl::Duration ttft() const { return ttft_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    const int fresh = response_.tokens().ids_size();
    sums_.tokens += fresh;
    if (fresh > 0 && ttft_ == absl::InfiniteDuration()) {
      ttft_ = MonotonicNow() - began_;
      MutexLock lock(sums_.mu);
      --sums_.starting;
      ++sums_.open;
      sums_.changed.NotifyAll();
    }
    response_.Clear();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    MutexLock lock(sums_.mu);
    ++sums_.codes[status.error_code()];
    --(ttft_ == absl::InfiniteDuration() ? sums_.starting : sums_.open);
    ++sums_.ended;
    sums_.changed.NotifyAll();
  }

  Sums& sums_;
  const absl::Time began_;
  absl::Duration ttft_ = absl::InfiniteDuration();
  grpc::ClientContext context_;
  v1::GenerateRequest request_;
  v1::GenerateResponse response_;
};

std::string Percentiles(std::vector<absl::Duration> times) {
  if (times.empty()) return "null";
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) { return absl::ToDoubleMilliseconds(times[(times.size() - 1) * share]); };
  return absl::StrFormat("{\"p50\": %.3f, \"p99\": %.3f, \"most\": %.3f}", at(0.5), at(0.99), at(1));
}

int Load(const std::string& router, int streams, int starting, int probed_tokens) {
  std::vector<std::unique_ptr<v1::Inference::StubInterface>> stubs;
  for (int i = 0; i <= streams / kStreamsAConnection; ++i) stubs.push_back(v1::Inference::NewStub(MakeChannel(router)));
  Sums sums;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < streams; ++i) {
    {
      MutexLock lock(sums.mu);
      const absl::Time next = MonotonicNow() + kPace;
      while (sums.starting >= starting && MonotonicNow() < next) sums.changed.WaitFor(sums.mu, next - MonotonicNow());
      ++sums.starting;
    }
    clients.push_back(std::make_unique<Client>(*stubs[i / kStreamsAConnection], kTokens, sums));
  }
  int open = 0;
  {
    MutexLock lock(sums.mu);
    const absl::Time until = MonotonicNow() + absl::Seconds(starting >= streams ? 20 : 60);
    while (sums.starting > 0 && MonotonicNow() < until) sums.changed.WaitFor(sums.mu, absl::Seconds(1));
    open = sums.open;
  }
  std::printf("{\"open\": %d}\n", open);
  std::fflush(stdout);
  const absl::Time from = MonotonicNow();
  const int64_t before = sums.tokens;
  std::vector<absl::Duration> added;
  Sums probed;
  for (int i = 0; i < kProbes; ++i) {
    Client probe(*stubs.back(), probed_tokens, probed);
    {
      MutexLock lock(probed.mu);
      while (probed.ended <= i) probed.changed.Wait(probed.mu);
    }
    added.push_back(probe.ttft());
    absl::SleepFor(absl::Milliseconds(20));
  }
  const absl::Duration took = MonotonicNow() - from;
  const int64_t tokens = sums.tokens - before;
  absl::PrintF("{\"seconds\": %.3f, \"tokens\": %d, \"added_ttft_ms\": %s}\n", absl::ToDoubleSeconds(took), tokens,
               Percentiles(added));
  std::fflush(stdout);
  std::string line;
  std::getline(std::cin, line);
  std::vector<absl::Duration> ttfts;
  for (const auto& client : clients) client->Cancel();
  MutexLock lock(sums.mu);
  while (sums.ended < streams) sums.changed.Wait(sums.mu);
  for (const auto& client : clients) {
    if (client->ttft() != absl::InfiniteDuration()) ttfts.push_back(client->ttft());
  }
  std::string codes;
  for (const auto& [code, count] : sums.codes) {
    absl::StrAppendFormat(&codes, "%s\"%d\": %d", codes.empty() ? "" : ", ", code, count);
  }
  std::printf("{\"ttft_ms\": %s, \"codes\": {%s}}\n", Percentiles(ttfts).c_str(), codes.c_str());
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  int numbers[3] = {};
  for (size_t i = 2; i < std::min<size_t>(words.size(), 5); ++i) {
    if (!absl::SimpleAtoi(words[i], &numbers[i - 2])) return 2;
  }
  if (words.size() == 5 && words[0] == "workers") {
    return runahead::Workers(words[1], numbers[0], numbers[1], numbers[2]);
  }
  if (words.size() == 5 && words[0] == "load") return runahead::Load(words[1], numbers[0], numbers[1], numbers[2]);
  std::fprintf(stderr,
               "usage: streams workers MODEL STREAMS RATE ROOM | streams load ROUTER STREAMS STARTING PROBED\n");
  return 2;
}
