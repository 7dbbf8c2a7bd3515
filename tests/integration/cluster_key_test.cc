// Who does not have the cluster's key gets nothing from a worker: real processes, as a stranger finds them.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <future>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/kept.grpc.pb.h"
#include "runahead/v1/member.grpc.pb.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/rpc/channel.h"
#include "server/rpc/member_call.h"
#include "server/rpc/member_proof.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ServingProcess;
using testing::TestProcess;

constexpr char kOurs[] = "a key of this cluster";
constexpr char kAnother[] = "a key of another cluster";

std::string KeyFileOf(const std::string& secret) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/", getpid(), "-", absl::StrReplaceAll(secret, {{" ", "_"}}));
  std::ofstream(path) << secret << "\n";
  chmod(path.c_str(), 0600);
  return path;
}

class ClusterKeyTest : public ::testing::Test {
 protected:
  std::vector<std::string> Worker(const std::vector<std::string>& more) const {
    std::vector<std::string> args = {RUNAHEAD_WORKER, "--role", "both",    "--threads", "1",
                                     "--dtype",       "f32",    "--model", model_};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }
  std::vector<std::string> Router(const std::string& worker, const std::vector<std::string>& more) const {
    std::vector<std::string> args = {RUNAHEAD_ROUTER, "--model", model_, "--workers",
                                     absl::StrCat("role=both,address=", worker)};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  const std::string model_ = WriteSynthetic(SmallModel(), "cluster_key");
  const std::string ours_ = KeyFileOf(kOurs), another_ = KeyFileOf(kAnother);
};

// Any method, with an empty request.
grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  const grpc::Slice nothing;
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> ended;
  grpc::GenericStub(channel).UnaryCall(&context, method, {}, &request, &reply,
                                       [&](grpc::Status status) { ended.set_value(std::move(status)); });
  return ended.get_future().get();
}

// "/runahead.v1.Decode/Reserve" and all others that a worker offers.
std::vector<std::string> WorkersMethods() {
  std::vector<std::string> methods;
  for (const auto* file : {v1::Capabilities::descriptor()->file(), v1::LookKeptRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      const auto* const service = file->service(s);
      for (int m = 0; m < service->method_count(); ++m) {
        methods.push_back(absl::StrCat("/", service->full_name(), "/", service->method(m)->name()));
      }
    }
  }
  return methods;
}

TEST_F(ClusterKeyTest, AWorkersMethodsAreForMembersOnly) {
  const ServingProcess worker(Worker({"--cluster-key", ours_}));
  const std::vector<std::string> methods = WorkersMethods();
  EXPECT_GE(methods.size(), 7u);
  for (const std::string& method : methods) {
    for (const ClusterKey& key : {ClusterKey(), ClusterKey(kAnother)}) {
      const grpc::Status stranger = Call(MakeMemberChannel(worker.address, key), method);
      EXPECT_EQ(stranger.error_code(), grpc::StatusCode::UNAUTHENTICATED) << method << ": " << stranger.error_message();
      EXPECT_THAT(stranger.error_message(), AllOf(HasSubstr("cluster_key"), Not(HasSubstr(kOurs))));
    }
    const grpc::StatusCode member = Call(MakeMemberChannel(worker.address, ClusterKey(kOurs)), method).error_code();
    EXPECT_NE(member, grpc::StatusCode::UNAUTHENTICATED) << method;
    EXPECT_NE(member, grpc::StatusCode::UNIMPLEMENTED) << method;
  }
  EXPECT_TRUE(Call(MakeChannel(worker.address), "/grpc.health.v1.Health/Check").ok()) << "open to all";
}

TEST_F(ClusterKeyTest, WhatUpStartsServesItsRouterAndNobodyElse) {
  LocalCluster cluster(model_, {"--dtype", "f32"});
  EXPECT_TRUE(cluster.Generate(Uncached(RequestOf(SyntheticIds(40, 1), 5))).status.ok());
  const std::string log = cluster.Log();
  const std::string serving = "decode-0 [main] serving on ";
  const size_t begin = log.find(serving);
  ASSERT_NE(begin, std::string::npos) << log;
  const std::string address = log.substr(begin + serving.size(), log.find(',', begin) - begin - serving.size());
  EXPECT_EQ(Call(MakeChannel(address), "/runahead.v1.Worker/Control").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  v1::ReserveRequest request;
  request.set_prompt_tokens(1);
  request.set_total_tokens(100);
  grpc::ClientContext context;
  v1::ReserveReply reply;
  EXPECT_EQ(v1::Decode::NewStub(MakeChannel(address))->Reserve(&context, request, &reply).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(cluster.Metric("decode-0", "runahead_kv_leases"), 0);
}

TEST_F(ClusterKeyTest, ARouterWithAnotherKeySaysOnceWhatToDo) {
  const ServingProcess worker(Worker({"--cluster-key", ours_}));
  for (const std::vector<std::string>& key : {std::vector<std::string>{}, {"--cluster-key", another_}}) {
    ServingProcess router(Router(worker.address, key));
    const auto refused = [&] {
      httplib::Client client("http://" + router.metrics);
      const auto reply = client.Get("/metrics");
      return reply && reply->body.find("runahead_workers{role=\"decode\",state=\"refused\"} 1") != std::string::npos;
    };
    EXPECT_TRUE(Eventually(refused));
    router.process.Signal(SIGTERM);
    EXPECT_EQ(router.process.Wait(), 0);
    const std::string& log = router.process.err();
    const size_t first = log.find("the same cluster_key");
    EXPECT_NE(first, std::string::npos) << log;
    EXPECT_EQ(log.find("the same cluster_key", first + 1), std::string::npos) << log;
  }
}

// Stands at a worker's address and keeps all metadata that it is sent. Where `relayed` is not null, it has the real
// worker behind that channel prove itself in its place.
class RecordingWorker {
 public:
  explicit RecordingWorker(std::shared_ptr<grpc::Channel> relayed) : membership_(std::move(relayed)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&membership_);
    builder.RegisterService(&worker_);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int proofs_asked() const { return membership_.asked; }
  // Of each call but Prove.
  std::vector<std::multimap<std::string, std::string>> calls() {
    MutexLock lock(worker_.mu);
    return worker_.calls;
  }

 private:
  struct Membership final : v1::Membership::Service {
    explicit Membership(std::shared_ptr<grpc::Channel> to) : relayed(std::move(to)) {}
    grpc::Status Prove(grpc::ServerContext*, const v1::ProveRequest* request, v1::ProveReply* reply) override {
      ++asked;
      if (relayed != nullptr) {
        grpc::ClientContext context;
        return v1::Membership::NewStub(relayed)->Prove(&context, *request, reply);
      }
      reply->set_nonce(std::string(kWorkersNonceBytes, 'n'));
      reply->set_proof(std::string(kMemberProofBytes, 'p'));
      return grpc::Status::OK;
    }
    const std::shared_ptr<grpc::Channel> relayed;
    std::atomic<int> asked = 0;
  };
  struct Worker final : v1::Worker::Service {
    grpc::Status GetCapabilities(grpc::ServerContext* context, const v1::GetCapabilitiesRequest*,
                                 v1::Capabilities*) override {
      MutexLock lock(mu);
      auto& call = calls.emplace_back();
      for (const auto& [key, value] : context->client_metadata()) {
        call.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
      }
      return {grpc::StatusCode::UNAVAILABLE, "recorded"};
    }
    Mutex mu;
    std::vector<std::multimap<std::string, std::string>> calls RUNAHEAD_GUARDED_BY(mu);
  };

  int port_ = 0;
  Membership membership_;
  Worker worker_;
  std::unique_ptr<grpc::Server> server_;
};

// A call with recorded metadata.
grpc::StatusCode Replay(const std::shared_ptr<grpc::Channel>& channel,
                        const std::multimap<std::string, std::string>& recorded) {
  grpc::ClientContext context;
  SetTimeout(context, absl::Seconds(30));
  for (const auto& [key, value] : recorded) {
    if (key.rfind("runahead-", 0) == 0) context.AddMetadata(key, value);
  }
  v1::Capabilities reply;
  return v1::Worker::NewStub(channel)->GetCapabilities(&context, {}, &reply).error_code();
}

TEST_F(ClusterKeyTest, WhoListensAtAWorkersAddressGetsNothingThatARealWorkerTakes) {
  const ServingProcess worker(Worker({"--cluster-key", ours_}));
  RecordingWorker impostor(nullptr);
  ServingProcess router(Router(impostor.address(), {"--cluster-key", ours_}));
  EXPECT_TRUE(Eventually([&] { return impostor.proofs_asked() > 2; }));
  EXPECT_TRUE(impostor.calls().empty()) << "it could not prove itself, so nothing was asked of it";
  router.process.Signal(SIGTERM);
  EXPECT_EQ(router.process.Wait(), 0);
  EXPECT_THAT(router.process.err(), AllOf(HasSubstr("the same cluster_key"), Not(HasSubstr(kOurs))));
}

// It has the real worker prove itself in its place: what it gets is good for its own connection to that worker, once. A
// relay that passes on what both say while they say it is not kept out without TLS.
TEST_F(ClusterKeyTest, ARecordedProofIsGoodNowhereElseAndNeverAgain) {
  const ServingProcess worker(Worker({"--cluster-key", ours_})), another(Worker({"--cluster-key", ours_}));
  const std::shared_ptr<grpc::Channel> relayed = MakeChannel(worker.address);
  RecordingWorker relay(relayed);
  const ServingProcess router(Router(relay.address(), {"--cluster-key", ours_}));
  ASSERT_TRUE(Eventually([&] { return !relay.calls().empty(); }));
  const auto recorded = relay.calls().front();
  EXPECT_EQ(Replay(MakeChannel(worker.address), recorded), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Replay(MakeChannel(another.address), recorded), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Replay(relayed, recorded), grpc::StatusCode::OK) << "the test shows nothing";
  EXPECT_EQ(Replay(relayed, recorded), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(ClusterKeyTest, ARouterWithTheKeyIsServed) {
  const ServingProcess worker(Worker({"--cluster-key", ours_, "--listen", "0.0.0.0:0", "--link-host", "127.0.0.1"}));
  const std::string port = worker.address.substr(worker.address.rfind(':'));
  const ServingProcess router(Router("127.0.0.1" + port, {"--cluster-key", ours_}));
  EXPECT_TRUE(Eventually([&] { return Call(MakeChannel(router.address), "/grpc.health.v1.Health/Check").ok(); }));
  const auto stub = v1::Inference::NewStub(MakeChannel(router.address));
  v1::GenerateResponse response;
  const auto answered = [&] {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, Uncached(RequestOf(SyntheticIds(40, 1), 5)));
    while (reader->Read(&response)) {
    }
    return reader->Finish().ok();
  };
  EXPECT_TRUE(Eventually(answered));
  EXPECT_EQ(response.finished().usage().completion_tokens(), 5);
}

TEST_F(ClusterKeyTest, WithoutAKeyAWorkerRefusesToListenToOtherHosts) {
  for (const std::vector<std::string>& reach :
       {std::vector<std::string>{"--listen", "0.0.0.0:0"}, {"--listen", "[::]:0"}, {"--link-host", "192.0.2.1"}}) {
    TestProcess worker(Worker(reach));
    worker.ReadErrUntil("serving on");  // or to its end, as it should be
    worker.Signal(SIGTERM);
    EXPECT_EQ(worker.Wait(), 1) << reach[1];
    EXPECT_THAT(worker.err(), AllOf(HasSubstr("the same cluster_key"), Not(HasSubstr("serving on")))) << reach[1];
  }
}

TEST_F(ClusterKeyTest, AKeyThatIsNoneIsRefusedAtStart) {
  const std::string short_key = KeyFileOf("too short");
  TestProcess worker(Worker({"--cluster-key", short_key}));
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.err(), AllOf(HasSubstr("cluster_key: " + short_key), HasSubstr("openssl rand")));
  TestProcess router(Router("127.0.0.1:9", {"--cluster-key", "/nowhere/key"}));
  EXPECT_EQ(router.Wait(), 1);
  EXPECT_THAT(router.err(), HasSubstr("cluster_key: cannot read /nowhere/key"));
}

}  // namespace
}  // namespace runahead
