// A worker as the router sees one: real gRPC on loopback, no model. Prefill answers at once unless told to hold; decode
// counts up from the first token, or from behind the output that there is.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/kept.grpc.pb.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// What a fake worker does by itself. Changed only through FakeWorker::Change.
struct FakeBehaviour {
  bool first_token = true;                                // the tail reports a first token when it is started
  bool done = true;                                       // every member reports its end when it is started
  absl::Duration prefill_takes = absl::Nanoseconds(500);  // as the first token says
  bool scores = true;        // and before that what its tokens were given, where that is asked for, in chunks of two
  absl::Status prefill_end;  // not OK: how a member ends when it is started, by its own fault
  bool pong = true;
  bool answers_of_paths = true;              // at once that nothing has changed, where it is asked how its paths stand
  std::vector<v1::ThreadProgress> progress;  // as pongs say
  absl::Duration clock_ahead;                // of the router's, as pongs say
  bool loads = true;                         // pongs say what a decode worker has, where it says its max_batch
  absl::Duration step;                       // what a step takes, as they say
  v1::TraceSpans spans;                      // what a request that is traced gets of every member, and of decode
  bool answers_leases = true;                // false: Reserve and Renew hang until it is true, or the call is cancelled
  bool reserve = true;                       // false: full (RESOURCE_EXHAUSTED), however much it holds
  bool grows = true;                         // leases count what is expected, where Reserve says so; else all
  int parked = 0;                            // sequences that wait for memory, as pongs say
  bool takes_x = false;                      // Reserve asks for X of as many tokens as the chain can hand off ..
  int32_t kv_from = 0;                       // .. and for KV from here on
  int64_t decode_until = 1 << 30;            // tokens a Generate streams before it waits to be released or cancelled
  int tokens_per_reply = 1;
  std::function<int32_t(int64_t index)>
      token;                                 // of the index-th generated token, 0 being the tail's; absent: 100 + index
  int logprobs = 0;                          // alternatives with every token
  std::optional<grpc::Status> generate_end;  // how Generate ends instead, after decode_until tokens or all
  std::optional<grpc::Status> reserve_error;
  bool answers_moves = true;      // false: what becomes of a sequence that is to move is not said until it is true
  bool moves = true;              // such a sequence has moved; false: it goes on here
  bool ends_moved = true;         // false: the call of one that has moved stays open until it is cancelled
  bool has_kept = true;           // of sequences that ended; false: it has lost all KV of them
  bool answers_kept = true;       // false: calls to KeptKv hang until it is true, or they are cancelled
  int more_known = 0;             // a lease whose rest is handed off begins with so many more than were asked for
  double lost_recompute_s = 0;    // what Reserve says of such a lease, where it is not 0
  absl::Duration reserve_takes;   // on its way there and back
  absl::Duration generate_takes;  // before its tokens
};

// Thread-safe. Every Await blocks until what it names has happened; a test that waits in vain fails.
class FakeWorker final {
 public:
  // Serves on `address` ("127.0.0.1:0" takes a free port).
  explicit FakeWorker(v1::Capabilities capabilities, const std::string& address = "127.0.0.1:0");
  ~FakeWorker();  // like a kill: all calls break
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;

  // Capabilities that agree with each other. `fingerprint` is the model's.
  static v1::Capabilities Able(const std::string& name, const std::vector<v1::WorkerRole>& roles,
                               const std::string& fingerprint, int context_length);

  const std::string& address() const { return address_; }
  void Change(const std::function<void(FakeBehaviour&)>& change) RUNAHEAD_EXCLUDES(mu_);

  // Breaks the control stream and waits for its end; the worker goes on.
  void DropStream() RUNAHEAD_EXCLUDES(mu_);
  void SendFirstToken(uint64_t job, int32_t id) RUNAHEAD_EXCLUDES(mu_);
  // Of tokens [index, index + count) of the job's prompt: SendScores says each by its own number, which is ScoreOf's.
  void SendScores(uint64_t job, int index, int count) RUNAHEAD_EXCLUDES(mu_);
  static float ScoreOf(int index) { return -0.25f * static_cast<float>(index); }
  void SendPath(const v1::PathState& state) RUNAHEAD_EXCLUDES(mu_);
  void AnswerOfPaths(uint64_t question) RUNAHEAD_EXCLUDES(mu_);
  void SendDraining() RUNAHEAD_EXCLUDES(mu_);
  void SendDone(uint64_t job, const absl::Status& status = absl::OkStatus(), v1::JobCause cause = v1::JOB_CAUSE_OWN)
      RUNAHEAD_EXCLUDES(mu_);

  // All that is kept goes for want of memory; the router hears of it with the next ping.
  void Evict() RUNAHEAD_EXCLUDES(mu_);

  // From now on jobs are computed when they are started, and those that have not ended are, too.
  void LetJobsEnd() RUNAHEAD_EXCLUDES(mu_);

  // All StartJobs of all streams in the order of their coming; waits until there are at least `count`.
  std::vector<v1::StartJob> AwaitStarts(size_t count) RUNAHEAD_EXCLUDES(mu_);
  void AwaitRouter() RUNAHEAD_EXCLUDES(mu_);  // until a router's stream is open
  v1::FormLine AwaitLine(const std::function<bool(const v1::FormLine&)>& matches) RUNAHEAD_EXCLUDES(mu_);
  void AwaitCancel(uint64_t job) RUNAHEAD_EXCLUDES(mu_);
  void AwaitDrained() RUNAHEAD_EXCLUDES(mu_);                // until a router has said so
  void AwaitReservations(int count) RUNAHEAD_EXCLUDES(mu_);  // asked for, granted or not
  void AwaitUnanswered(int count) RUNAHEAD_EXCLUDES(mu_);    // Reserve and Renew calls that hung, or do
  // All MoveSequences in the order of their coming; waits until there are at least `count`.
  std::vector<v1::MoveSequence> AwaitMoves(size_t count) RUNAHEAD_EXCLUDES(mu_);
  void AwaitLeases(size_t held) RUNAHEAD_EXCLUDES(mu_);  // until exactly so many are held
  void AwaitDecodes(int count) RUNAHEAD_EXCLUDES(mu_);   // Generate calls that have streamed their decode_until
  size_t leases() const RUNAHEAD_EXCLUDES(mu_);
  bool drained() const RUNAHEAD_EXCLUDES(mu_);
  size_t cancels() const RUNAHEAD_EXCLUDES(mu_);
  std::vector<v1::ReserveRequest> reserve_requests() const RUNAHEAD_EXCLUDES(mu_);
  std::vector<v1::DecodeRequest> decode_requests() const RUNAHEAD_EXCLUDES(mu_);
  std::vector<v1::ForgetKeptRequest> forget_requests() const RUNAHEAD_EXCLUDES(mu_);
  uint64_t incarnation() const RUNAHEAD_EXCLUDES(mu_);
  uint64_t router_incarnation() const RUNAHEAD_EXCLUDES(mu_);  // 0 without a router

 private:
  class WorkerService;
  class DecodeService;
  class KeptKvService;
  using Stream = grpc::ServerReaderWriter<v1::ControlReport, v1::ControlCommand>;

  grpc::Status Control(grpc::ServerContext* context, Stream* stream) RUNAHEAD_EXCLUDES(mu_);
  grpc::Status Handle(const v1::ControlCommand& command) RUNAHEAD_EXCLUDES(mu_);
  void EndEpoch() RUNAHEAD_REQUIRES(mu_);
  v1::DecodeLoad Load(uint64_t evictions_heard) const RUNAHEAD_REQUIRES(mu_);
  void Started(const v1::StartJob& start) RUNAHEAD_REQUIRES(mu_);
  void Write(v1::ControlReport report) RUNAHEAD_REQUIRES(mu_);
  void WriteFirstToken(uint64_t job, int32_t id) RUNAHEAD_REQUIRES(mu_);
  void WriteScores(const v1::StartJob& start, int index, int count) RUNAHEAD_REQUIRES(mu_);
  void WriteDone(uint64_t job, const absl::Status& status, v1::JobCause cause) RUNAHEAD_REQUIRES(mu_);
  v1::SampledToken Sampled(int32_t id) const RUNAHEAD_REQUIRES(mu_);
  int32_t TokenAt(int64_t index) const RUNAHEAD_REQUIRES(mu_);
  grpc::Status Reserve(grpc::ServerContext* context, const v1::ReserveRequest& request, v1::ReserveReply& reply)
      RUNAHEAD_EXCLUDES(mu_);
  bool AnswersLeases(grpc::ServerContext* context) RUNAHEAD_EXCLUDES(mu_);
  grpc::Status TakeLease(const v1::ReserveRequest& request, v1::ReserveReply& reply) RUNAHEAD_EXCLUDES(mu_);
  grpc::Status Generate(grpc::ServerContext* context, const v1::DecodeRequest& request,
                        grpc::ServerWriter<v1::DecodeReply>* writer) RUNAHEAD_EXCLUDES(mu_);
  // Of the sequence with this lease, whose output has `output` tokens behind a prompt of `prompt`: what came of its
  // move, where it is to move and that may be said.
  std::optional<v1::MoveEnd> TakeMove(uint64_t lease, int64_t prompt, int64_t output) RUNAHEAD_REQUIRES(mu_);
  void Release(const v1::LeaseId& lease) RUNAHEAD_EXCLUDES(mu_);
  // Of the prompt's first tokens, those that a sequence has that is kept; NOT_FOUND unless that is as much as is
  // wanted.
  grpc::Status FillKnown(const v1::ReserveRequest& request, v1::ReserveReply& reply) const RUNAHEAD_REQUIRES(mu_);
  // Hangs while it is to; not OK where it is stopped, or is in another epoch.
  grpc::Status EnterKept(grpc::ServerContext* context, uint32_t epoch) RUNAHEAD_REQUIRES(mu_);
  grpc::Status LookKept(grpc::ServerContext* context, const v1::LookKeptRequest& request, v1::KeptMemory& reply)
      RUNAHEAD_EXCLUDES(mu_);
  grpc::Status ForgetKept(grpc::ServerContext* context, const v1::ForgetKeptRequest& request,
                          v1::ForgetKeptReply& reply) RUNAHEAD_EXCLUDES(mu_);
  int64_t KeptTokens() const RUNAHEAD_REQUIRES(mu_);
  bool Keeps() const RUNAHEAD_REQUIRES(mu_) {
    return capabilities_.keeps_beginnings() || capabilities_.lends_beginnings();
  }
  // Others may begin with the sequence's prompt, while it is decoded.
  void KeepPrompt(const v1::DecodeRequest& request, int64_t prompt) RUNAHEAD_REQUIRES(mu_);
  // The sequence of the lease ends, behind these tokens of output.
  void Keep(const v1::DecodeRequest& request, int64_t prompt, const std::vector<int32_t>& output)
      RUNAHEAD_REQUIRES(mu_);
  template <typename Condition>
  void Await(std::string what, const Condition& condition) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    ChangeWait wait(std::move(what));
    while (!condition()) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

  v1::Capabilities capabilities_ RUNAHEAD_GUARDED_BY(mu_);
  std::string address_;
  mutable Mutex mu_;
  CondVar changed_;
  FakeBehaviour behaviour_ RUNAHEAD_GUARDED_BY(mu_);
  Stream* stream_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;
  grpc::ServerContext* stream_context_ RUNAHEAD_GUARDED_BY(mu_) = nullptr;
  uint64_t orders_ RUNAHEAD_GUARDED_BY(mu_) = 0;   // received in this epoch
  uint64_t reports_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // sent in it
  uint64_t router_incarnation_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<v1::StartJob> starts_ RUNAHEAD_GUARDED_BY(mu_);
  std::set<uint64_t> unfinished_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<v1::FormLine> lines_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<v1::MoveSequence> moves_ RUNAHEAD_GUARDED_BY(mu_);
  std::set<uint64_t> to_move_ RUNAHEAD_GUARDED_BY(mu_);  // leases
  std::set<uint64_t> cancels_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<uint64_t, int64_t> leases_ RUNAHEAD_GUARDED_BY(mu_);   // number -> tokens that count
  std::map<uint64_t, int64_t> running_ RUNAHEAD_GUARDED_BY(mu_);  // lease -> tokens that its sequence has left
  std::map<uint64_t, v1::ReserveRequest> reserved_ RUNAHEAD_GUARDED_BY(mu_);  // by lease, those of the past too
  struct Kept {
    std::string salt;
    std::vector<int32_t> ids;
    int64_t prompt = 0;  // of these, the prompt's
  };
  std::vector<uint64_t> evicted_ RUNAHEAD_GUARDED_BY(mu_);  // BeginningHash of all that went in this epoch
  std::vector<Kept> kept_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t next_lease_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  bool drained_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int reservations_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int unanswered_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int decodes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<v1::ReserveRequest> reserve_requests_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<v1::DecodeRequest> decode_requests_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<v1::ForgetKeptRequest> forget_requests_ RUNAHEAD_GUARDED_BY(mu_);
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::unique_ptr<WorkerService> worker_service_;
  std::unique_ptr<DecodeService> decode_service_;
  std::unique_ptr<KeptKvService> kept_service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace runahead::testing
