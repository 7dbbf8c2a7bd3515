// Both ends of a gRPC connection prove that they have the cluster's key, and no proof is good for anything else.
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/rpc/channel.h"
#include "server/rpc/member_call.h"
#include "server/rpc/member_door.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;

constexpr char kOurs[] = "a key of this cluster";

// A worker: asks its door about every call, keeps what the calls carried, and answers a control stream's pings.
class GuardedWorker final : public v1::Worker::CallbackService {
 public:
  explicit GuardedWorker(MemberDoor& door) : door_(door) {}

  grpc::ServerUnaryReactor* GetCapabilities(grpc::CallbackServerContext* context, const v1::GetCapabilitiesRequest*,
                                            v1::Capabilities*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    const absl::Status member = door_.Check(*context);
    {
      MutexLock lock(mu_);
      ++calls_;
      const auto proof = context->client_metadata().find(kCallProofKey);
      if (proof != context->client_metadata().end()) proofs_.insert({proof->second.data(), proof->second.size()});
    }
    reactor->Finish(ToGrpcStatus(member));
    return reactor;
  }

  grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* Control(
      grpc::CallbackServerContext* context) override {
    struct Echo final : grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport> {
      explicit Echo(const absl::Status& member) {
        if (member.ok()) {
          StartRead(&command);
        } else {
          Finish(ToGrpcStatus(member));
        }
      }
      void OnReadDone(bool ok) override {
        if (!ok) return Finish(grpc::Status::OK);
        report.mutable_pong()->set_number(command.ping().number());
        StartWrite(&report);
      }
      void OnWriteDone(bool ok) override {
        if (ok) StartRead(&command);
      }
      void OnDone() override { delete this; }
      v1::ControlCommand command;
      v1::ControlReport report;
    };
    return new Echo(door_.Check(*context));
  }

  int calls() const {
    MutexLock lock(mu_);
    return calls_;
  }
  // Of all calls; each once.
  absl::flat_hash_set<std::string> proofs() const {
    MutexLock lock(mu_);
    return proofs_;
  }

 private:
  MemberDoor& door_;
  mutable Mutex mu_;
  int calls_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::flat_hash_set<std::string> proofs_ RUNAHEAD_GUARDED_BY(mu_);
};

// A worker's process, at a port of its own or at one that was there before.
struct WorkerAt {
  explicit WorkerAt(const ClusterKey& key, Clock& clock = RealClock(), const std::string& listen = "127.0.0.1:0")
      : door(key, open_door, clock), worker(door) {
    auto started =
        RpcServer::Start({.listen = listen, .services = {&door, &worker}, .health_names = {}, .open_door = &open_door});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
  }
  const std::string& address() const { return server->address(); }

  OpenDoor open_door;
  MemberDoor door;
  GuardedWorker worker;
  std::unique_ptr<RpcServer> server;
};

absl::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& proof = "") {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  if (!proof.empty()) context.AddMetadata(kCallProofKey, proof);
  v1::Capabilities reply;
  return FromGrpcStatus(v1::Worker::NewStub(channel)->GetCapabilities(&context, {}, &reply));
}

v1::ProveReply Ask(const std::shared_ptr<grpc::Channel>& channel, const std::string& nonce) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  v1::ProveRequest request;
  request.set_nonce(nonce);
  v1::ProveReply reply;
  EXPECT_TRUE(v1::Membership::NewStub(channel)->Prove(&context, request, &reply).ok());
  return reply;
}

// The proofs that a caller with `key` makes from both nonces.
std::string Proof(const ClusterKey& key, const std::string& callers, const std::string& workers, uint64_t number) {
  return PackCallProof({callers, workers, number, ProofOfCall(SessionKey(key, callers, workers), number)});
}

constexpr absl::StatusCode kOk = absl::StatusCode::kOk, kRefused = absl::StatusCode::kUnauthenticated;

TEST(Member, WhoHasTheKeyIsServedAndNobodyElse) {
  WorkerAt worker{ClusterKey(kOurs)};
  const auto channel = MakeMemberChannel(worker.address(), ClusterKey(kOurs));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Call(channel).code(), kOk);
  EXPECT_EQ(worker.worker.proofs().size(), 5u) << "each call's own";
  for (const std::string& proof : {std::string(), std::string("x"), std::string(96, 'x')}) {
    const absl::Status refused = Call(MakeChannel(worker.address()), proof);
    EXPECT_EQ(refused.code(), kRefused);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the same cluster_key"));
  }
}

TEST(Member, WithoutAKeyOnlyThoseWithoutOneAreServed) {
  WorkerAt worker{ClusterKey()};
  EXPECT_EQ(Call(MakeMemberChannel(worker.address(), ClusterKey())).code(), kOk);
  EXPECT_EQ(Call(MakeMemberChannel(worker.address(), ClusterKey(kOurs))).code(), kRefused);
  EXPECT_EQ(worker.worker.calls(), 1) << "the caller did not let it come to that";
}

// Whoever listens at a worker's address: without the key it gets nonces, and no call.
TEST(Member, WhoCannotProveItselfHearsNoCall) {
  for (const ClusterKey& key : {ClusterKey(), ClusterKey("a key of another cluster")}) {
    WorkerAt impostor{key};
    const absl::Status refused = Call(MakeMemberChannel(impostor.address(), ClusterKey(kOurs)));
    EXPECT_EQ(refused.code(), kRefused);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("the same cluster_key"));
    EXPECT_EQ(impostor.worker.calls(), 0);
    EXPECT_TRUE(impostor.worker.proofs().empty());
  }
}

TEST(Member, WhoKnowsNoProofIsOfAnotherVersion) {
  OpenDoor open_door;
  MemberDoor door{ClusterKey(), open_door};
  GuardedWorker worker{door};
  const auto server = *RpcServer::Start({.listen = "127.0.0.1:0", .services = {&worker}, .health_names = {}});
  EXPECT_EQ(Call(MakeMemberChannel(server->address(), ClusterKey(kOurs))).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(worker.calls(), 0);
}

TEST(Member, AProofIsGoodForOneCallOverOneConnectionToOneProcess) {
  const ClusterKey key(kOurs);
  WorkerAt worker{key}, another{key};
  const auto channel = MakeChannel(worker.address());
  const std::string callers = RandomNonce(kCallersNonceBytes);
  const v1::ProveReply answer = Ask(channel, callers);
  EXPECT_EQ(answer.proof(), WorkersProof(key, callers, answer.nonce()));
  const auto proof = [&](uint64_t number) { return Proof(key, callers, answer.nonce(), number); };
  EXPECT_EQ(Call(channel, proof(0)).code(), kOk);
  EXPECT_EQ(Call(channel, proof(0)).code(), kRefused) << "recorded, the same connection";
  EXPECT_EQ(Call(MakeChannel(worker.address()), proof(1)).code(), kRefused) << "another connection";
  EXPECT_EQ(Call(MakeChannel(another.address()), proof(1)).code(), kRefused) << "another worker";
  EXPECT_EQ(Call(channel, proof(1)).code(), kOk) << "nobody had used it up";
  // Calls overtake each other.
  EXPECT_EQ(Call(channel, proof(5)).code(), kOk);
  EXPECT_EQ(Call(channel, proof(3)).code(), kOk);
  EXPECT_EQ(Call(channel, proof(3)).code(), kRefused);
  EXPECT_EQ(Call(channel, proof(5)).code(), kRefused);
  EXPECT_EQ(Call(channel, proof(4)).code(), kOk);
  // But not by more than is remembered.
  EXPECT_EQ(Call(channel, proof(5 + MemberDoor::kWindow)).code(), kOk);
  EXPECT_EQ(Call(channel, proof(2)).code(), kRefused);
  EXPECT_EQ(Call(channel, proof(6)).code(), kOk);
  EXPECT_EQ(Call(channel, proof(6)).code(), kRefused);
  EXPECT_EQ(Call(channel, proof(uint64_t{1} << 40)).code(), kOk);
  EXPECT_EQ(Call(channel, proof(7)).code(), kRefused);
  EXPECT_EQ(Call(channel, proof(~uint64_t{0})).code(), kRefused);
}

// Each role has proofs of its own, and each nonce counts.
TEST(Member, NoProofPassesForAnother) {
  const ClusterKey key(kOurs);
  WorkerAt worker{key};
  const auto channel = MakeChannel(worker.address());
  const std::string callers = RandomNonce(kCallersNonceBytes), others = RandomNonce(kCallersNonceBytes);
  const std::string workers = Ask(channel, callers).nonce();
  CallProof worker_s{callers, workers, 0, WorkersProof(key, callers, workers)};
  EXPECT_EQ(Call(channel, PackCallProof(worker_s)).code(), kRefused) << "the worker's own proof";
  EXPECT_EQ(Call(channel, Proof(key, others, workers, 0)).code(), kRefused) << "of another caller's nonce";
  EXPECT_EQ(Call(channel, Proof(key, callers, RandomNonce(kWorkersNonceBytes), 0)).code(), kRefused)
      << "nobody's nonce";
  EXPECT_EQ(Call(channel, Proof(ClusterKey("another"), callers, workers, 0)).code(), kRefused);
  CallProof renumbered{callers, workers, 1, ProofOfCall(SessionKey(key, callers, workers), 0)};
  EXPECT_EQ(Call(channel, PackCallProof(renumbered)).code(), kRefused);
  EXPECT_EQ(Call(channel, Proof(key, callers, workers, 0)).code(), kOk);
}

TEST(Member, ANonceThatNobodyUsedIsWorthNothingAfterAWhile) {
  const ClusterKey key(kOurs);
  testing::FakeClock clock;
  WorkerAt worker{key, clock};
  const auto channel = MakeChannel(worker.address());
  const std::string callers = RandomNonce(kCallersNonceBytes);
  const std::string used = Ask(channel, callers).nonce(), unused = Ask(channel, callers).nonce();
  EXPECT_EQ(Call(channel, Proof(key, callers, used, 0)).code(), kOk);
  clock.Advance(MemberDoor::kFirstCall);
  EXPECT_EQ(Call(channel, Proof(key, callers, unused, 0)).code(), kRefused);
  EXPECT_EQ(Call(channel, Proof(key, callers, used, 1)).code(), kOk);
  EXPECT_EQ(Call(channel, Proof(key, callers, used, 0)).code(), kRefused);
}

TEST(Member, ManySessionsMakeRoomForEachOtherAndNothingIsGoodTwice) {
  const ClusterKey key(kOurs);
  testing::FakeClock clock;
  WorkerAt worker{key, clock};
  const auto channel = MakeChannel(worker.address());
  const std::string callers = RandomNonce(kCallersNonceBytes);
  const std::string first = Ask(channel, callers).nonce();
  EXPECT_EQ(Call(channel, Proof(key, callers, first, 0)).code(), kOk);
  clock.Advance(MemberDoor::kFirstCall);
  for (size_t i = 1; i < MemberDoor::kMostSessions; ++i) {
    ASSERT_EQ(Call(channel, Proof(key, callers, Ask(channel, callers).nonce(), 0)).code(), kOk);
  }
  const std::string next = Ask(channel, callers).nonce();
  EXPECT_EQ(Call(channel, Proof(key, callers, next, 0)).code(), kOk) << "the first, an old one, made room";
  EXPECT_EQ(Call(channel, Proof(key, callers, first, 0)).code(), kRefused);
  EXPECT_EQ(Call(channel, Proof(key, callers, Ask(channel, callers).nonce(), 0)).code(), kRefused) << "all are young";
  clock.Advance(MemberDoor::kFirstCall);
  EXPECT_EQ(Call(channel, Proof(key, callers, Ask(channel, callers).nonce(), 0)).code(), kOk);
}

TEST(Member, AConnectionThatWasMadeAnewIsProvedAnew) {
  const ClusterKey key(kOurs);
  auto worker = std::make_unique<WorkerAt>(key);
  const std::string address = worker->address();
  const auto channel = MakeMemberChannel(address, key);
  EXPECT_EQ(Call(channel).code(), kOk);
  for (int life = 0; life < 3; ++life) {
    worker.reset();
    worker = std::make_unique<WorkerAt>(key, RealClock(), address);
    absl::Status called = absl::UnavailableError("");
    for (int i = 0; i < 600 && absl::IsUnavailable(called); ++i) {
      ASSERT_TRUE(WaitReady(*channel, address, testing::LongestWait()).ok());
      called = Call(channel);
    }
    EXPECT_EQ(called.code(), kOk) << called;
    EXPECT_EQ(Call(channel).code(), kOk);
  }
}

TEST(Member, ManyFirstCallsAtOnceAllGoOut) {
  WorkerAt worker{ClusterKey(kOurs)};
  const auto channel = MakeMemberChannel(worker.address(), ClusterKey(kOurs));
  std::vector<std::thread> callers;
  std::atomic<int> served = 0;
  for (int i = 0; i < 16; ++i) {
    callers.emplace_back([&] {
      if (Call(channel).ok()) ++served;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served, 16);
  EXPECT_EQ(worker.worker.proofs().size(), 16u);
}

// Writes and reads until all pings were answered, from the moment of the call: before the worker has proved itself.
class Pinging final : public grpc::ClientBidiReactor<v1::ControlCommand, v1::ControlReport> {
 public:
  static constexpr uint64_t kPings = 20;

  explicit Pinging(v1::Worker::Stub& stub) {
    stub.async()->Control(&context_, this);
    command_.mutable_ping()->set_number(0);
    StartWrite(&command_);
    StartRead(&report_);
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (command_.ping().number() + 1 == kPings) return StartWritesDone();
    command_.mutable_ping()->set_number(command_.ping().number() + 1);
    StartWrite(&command_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    in_order_ = in_order_ && report_.pong().number() == pongs_;
    ++pongs_;
    StartRead(&report_);
  }
  void OnDone(const grpc::Status& status) override { ended_.set_value(status); }
  grpc::Status Await() { return ended_.get_future().get(); }
  uint64_t pongs() const { return in_order_ ? pongs_ : 0; }

 private:
  grpc::ClientContext context_;
  v1::ControlCommand command_;
  v1::ControlReport report_;
  uint64_t pongs_ = 0;
  bool in_order_ = true;
  std::promise<grpc::Status> ended_;
};

TEST(Member, AStreamWaitsForTheProofAndKeepsItsOrder) {
  WorkerAt worker{ClusterKey(kOurs)};
  for (int i = 0; i < 20; ++i) {
    const auto stub = v1::Worker::NewStub(MakeMemberChannel(worker.address(), ClusterKey(kOurs)));
    Pinging stream(*stub);
    EXPECT_TRUE(stream.Await().ok());
    EXPECT_EQ(stream.pongs(), Pinging::kPings);
  }
  WorkerAt impostor{ClusterKey()};
  const auto stub = v1::Worker::NewStub(MakeMemberChannel(impostor.address(), ClusterKey(kOurs)));
  Pinging stream(*stub);
  EXPECT_EQ(stream.Await().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(stream.pongs(), 0u);
}

TEST(Member, NobodyThereIsUnavailable) {
  std::string address;
  { address = WorkerAt{ClusterKey(kOurs)}.address(); }
  EXPECT_EQ(Call(MakeMemberChannel(address, ClusterKey(kOurs))).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace runahead
