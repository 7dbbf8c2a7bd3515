// A router that takes calls with an API key only: real processes, as clients find them.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/integration/local_cluster.h"
#include "tests/integration/serving_process.h"
#include "tests/testing/model_fixture.h"
#include "tests/testing/small_model.h"
#include "tests/testing/test_process.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MetricOf;
using ::testing::Not;
using testing::ServingProcess;
using testing::TestProcess;

const std::string& KeyOf(const std::string& name) {
  static auto* const keys = new std::map<std::string, std::string>;
  std::string& key = (*keys)[name];
  if (key.empty()) key = DrawApiKey();
  return key;
}

std::string Entry(const std::string& name, const std::string& more = "") {
  return absl::StrCat("  - {name: ", name, ", hash: ", ApiKeyHashText(HashOfApiKey(KeyOf(name))), more, "}\n");
}

class ApiKeysTest : public ::testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }

  void Write(const std::string& entries) { ASSERT_TRUE(WriteTextFile(path_, "keys:\n" + entries).ok()); }
  // In front of one worker, with what `auto` gives.
  void Start(const std::vector<std::string>& more = {}) {
    worker_ = std::make_unique<ServingProcess>(
        std::vector<std::string>{RUNAHEAD_WORKER, "--role", "both", "--threads", "1", "--model", model_});
    std::vector<std::string> args = {RUNAHEAD_ROUTER, "--model", model_, "--workers",
                                     absl::StrCat("role=both,address=", worker_->address)};
    args.insert(args.end(), more.begin(), more.end());
    router_ = std::make_unique<ServingProcess>(args);
    ASSERT_NE(router_->address, "") << router_->process.err();
    const std::vector<std::string> health = {RUNAHEAD_BINARY, "health", "--address", router_->address};
    ASSERT_TRUE(Eventually([&] { return TestProcess(health).Wait() == 0; })) << "it is open to all";
    stub_ = v1::Inference::NewStub(MakeChannel(router_->address));
  }
  void StartWithKeys(const std::string& entries) {
    Write(entries);
    Start({"--api-keys", path_});
  }
  // Empty: without a key.
  Answer Ask(const std::string& key, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    SetTimeout(context, LocalCluster::kPatience);
    if (!key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    return GenerateOver(*stub_, request, &context);
  }
  double Metric(const std::string& line) const { return MetricOf(router_->metrics, line); }
  // `runahead generate` with this in its environment.
  TestProcess Command(const std::string& environment) const {
    return TestProcess({RUNAHEAD_BINARY, "generate", "--router", router_->address, "--token-ids", "5,6,7",
                        "--max-tokens", "4", "--json"},
                       {environment});
  }
  // What the router has logged, once it has ended.
  const std::string& LogAtTheEnd() {
    router_->process.Signal(SIGTERM);
    EXPECT_EQ(router_->process.Wait(), 0);
    return router_->process.err();
  }

  const std::string model_ = WriteSynthetic(SmallModel(), "api_keys");
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/api_keys_test_", getpid(), ".yaml");
  const v1::GenerateRequest request_ = Uncached(RequestOf(SyntheticIds(20, 1), 8));
  std::unique_ptr<ServingProcess> worker_, router_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(ApiKeysTest, WithoutAFileNobodyIsAskedAndNothingIsCounted) {
  Start();
  EXPECT_TRUE(Ask("", request_).status.ok());
  EXPECT_TRUE(Ask("any-key", request_).status.ok());
  TestProcess command = Command("RUNAHEAD_API_KEY=any-key");
  EXPECT_EQ(command.Wait(), 0) << command.err();
  httplib::Client client("http://" + router_->metrics);
  const auto page = client.Get("/metrics");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body,
              AllOf(HasSubstr("runahead_requests_total"), Not(HasSubstr("_key_")), Not(HasSubstr("unauthenticated"))));
  EXPECT_THAT(LogAtTheEnd(), Not(HasSubstr("may use this service")));
}

TEST_F(ApiKeysTest, APublicPortThatAsksNobodyIsWarnedOf) {
  Start({"--listen", "0.0.0.0:0"});
  EXPECT_THAT(LogAtTheEnd(), AllOf(HasSubstr(" W router [main] whoever reaches 0.0.0.0:"), HasSubstr("give api_keys")));
}

TEST_F(ApiKeysTest, OnlyWhoHasAGoodKeyIsAnswered) {
  StartWithKeys(Entry("alice") + Entry("gone", ", expires: 2001-01-01"));
  const Answer missing = Ask("", request_), wrong = Ask(DrawApiKey(), request_), gone = Ask(KeyOf("gone"), request_);
  for (const Answer* refused : {&missing, &wrong, &gone}) {
    EXPECT_EQ(refused->status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << refused->status.error_message();
    EXPECT_TRUE(refused->ids.empty());
  }
  EXPECT_THAT(gone.status.error_message(), HasSubstr("\"gone\" expired at 2001-01-01T00:00:00"));
  const Answer answer = Ask(KeyOf("alice"), request_);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids.size(), 8u);
  TestProcess with = Command("RUNAHEAD_API_KEY=" + KeyOf("alice")), without = Command("OTHER=1");
  EXPECT_EQ(with.Wait(), 0) << with.err();
  EXPECT_EQ(without.Wait(), 1);
  EXPECT_THAT(without.err(), HasSubstr("UNAUTHENTICATED: this router takes calls with an API key only"));
  EXPECT_EQ(Metric("runahead_key_requests_total{key=\"alice\"}"), 2);
  EXPECT_EQ(Metric("runahead_key_tokens_total{key=\"alice\",kind=\"prompt\"}"), 20 + 3);
  EXPECT_EQ(Metric("runahead_key_tokens_total{key=\"alice\",kind=\"output\"}"), 8 + 4);
  EXPECT_EQ(Metric("runahead_unauthenticated_calls_total{reason=\"unknown\"}"), 1);
  EXPECT_EQ(Metric("runahead_unauthenticated_calls_total{reason=\"missing\"}"), 2);
  EXPECT_EQ(Metric("runahead_key_requests_total{key=\"gone\"}"), -1) << "no series for who was never let in";
  EXPECT_THAT(LogAtTheEnd(), AllOf(HasSubstr("without a good API key"), Not(HasSubstr(KeyOf("alice"))),
                                   Not(HasSubstr(KeyOf("gone"))), Not(HasSubstr("sha256:"))));
}

TEST_F(ApiKeysTest, TheFileIsFollowedAndWhatRunsGoesOn) {
  StartWithKeys(Entry("alice"));
  grpc::ClientContext context;
  SetTimeout(context, LocalCluster::kPatience);
  context.AddMetadata("x-api-key", KeyOf("alice"));
  const auto running = stub_->Generate(&context, Uncached(RequestOf(SyntheticIds(20, 1), 1500)));
  v1::GenerateResponse response;
  ASSERT_TRUE(running->Read(&response));
  Write(Entry("bob"));
  EXPECT_TRUE(Eventually([&] { return Ask(KeyOf("bob"), request_).status.ok(); }));
  EXPECT_EQ(Ask(KeyOf("alice"), request_).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  while (running->Read(&response)) {
  }
  EXPECT_TRUE(running->Finish().ok()) << "it had begun before";
  EXPECT_EQ(response.finished().usage().completion_tokens(), 1500);
  Write(Entry("carol") + "  - {name: dave}\n");
  EXPECT_TRUE(Eventually([&] { return Metric("runahead_api_key_reloads_total{result=\"error\"}") == 1; }));
  EXPECT_EQ(Ask(KeyOf("carol"), request_).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(Ask(KeyOf("bob"), request_).status.ok()) << "the keys from before stay";
  EXPECT_EQ(Metric("runahead_api_key_reloads_total{result=\"ok\"}"), 1);
  EXPECT_THAT(LogAtTheEnd(), HasSubstr(":3: keys[1].hash is missing"));
}

TEST_F(ApiKeysTest, TokensAreCountedByWhatCame) {
  StartWithKeys(Entry("alice", ", tokens_per_minute: 1000"));
  v1::GenerateRequest request = Uncached(RequestOf(SyntheticIds(200, 1), 1));
  const Answer first = Ask(KeyOf("alice"), request);
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  request.mutable_stop()->set_max_tokens(500);
  request.mutable_stop()->add_stop_ids(first.ids[0]);
  const Answer second = Ask(KeyOf("alice"), request);
  ASSERT_TRUE(second.status.ok()) << "200 + 500 were free: " << second.status.error_message();
  EXPECT_EQ(second.ids.size(), 1u);
  request.mutable_stop()->set_max_tokens(800);
  const Answer third = Ask(KeyOf("alice"), request);
  EXPECT_EQ(third.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "402 tokens fill again in 24 s";
  EXPECT_THAT(third.status.error_message(), HasSubstr("\"alice\": tokens_per_minute is 1000"));
  const std::optional<absl::Duration> retry_after = RetryAfter(FromGrpcStatus(third.status));
  ASSERT_TRUE(retry_after);
  EXPECT_LE(*retry_after, absl::Seconds(25));
  request.mutable_stop()->set_max_tokens(801);
  EXPECT_EQ(Ask(KeyOf("alice"), request).status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Metric("runahead_key_tokens_total{key=\"alice\",kind=\"prompt\"}"), 400);
  EXPECT_EQ(Metric("runahead_key_tokens_total{key=\"alice\",kind=\"output\"}"), 2);
  EXPECT_EQ(Metric("runahead_key_refusals_total{key=\"alice\",limit=\"tokens\"}"), 2);
}

TEST_F(ApiKeysTest, RequestsAreCountedByMinute) {
  StartWithKeys(Entry("alice", ", requests_per_minute: 2") + Entry("bob"));
  EXPECT_TRUE(Ask(KeyOf("alice"), request_).status.ok());
  EXPECT_TRUE(Ask(KeyOf("alice"), request_).status.ok());
  const Answer refused = Ask(KeyOf("alice"), request_);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "one more comes in 30 s";
  const std::optional<absl::Duration> retry_after = RetryAfter(FromGrpcStatus(refused.status));
  ASSERT_TRUE(retry_after);
  EXPECT_GT(*retry_after, absl::ZeroDuration());
  EXPECT_LE(*retry_after, absl::Seconds(30));
  EXPECT_TRUE(Ask(KeyOf("bob"), request_).status.ok());
}

// The worker stands still, so that none of them ends meanwhile.
TEST_F(ApiKeysTest, OfManyAtOnceAsManyRunAsMayAndACancelMakesRoom) {
  constexpr int kCalls = 200, kMay = 4;
  StartWithKeys(Entry("alice", absl::StrCat(", concurrent_requests: ", kMay)));
  worker_->process.Signal(SIGSTOP);
  Mutex mu;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (int i = 0; i < kCalls + 1; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    SetTimeout(*contexts.back(), LocalCluster::kPatience);
    contexts.back()->AddMetadata("authorization", absl::StrCat("Bearer ", KeyOf("alice")));
  }
  std::vector<std::optional<grpc::Status>> ends(contexts.size());  // under `mu`
  const auto call = [&](int i) {
    const grpc::Status end = GenerateOver(*stub_, request_, contexts[i].get()).status;
    MutexLock lock(mu);
    ends[i] = end;
  };
  const auto count = [&](grpc::StatusCode code) {
    MutexLock lock(mu);
    int ended = 0;
    for (const auto& end : ends) ended += end.has_value() && end->error_code() == code ? 1 : 0;
    return ended;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kCalls; ++i) threads.emplace_back(call, i);
  EXPECT_TRUE(Eventually([&] { return count(grpc::StatusCode::RESOURCE_EXHAUSTED) == kCalls - kMay; }));
  int running = 0;
  {
    MutexLock lock(mu);
    while (ends[running].has_value()) ++running;
  }
  contexts[running]->TryCancel();
  EXPECT_TRUE(Eventually([&] { return Metric("runahead_requests_in_flight") == kMay - 1; }));
  threads.emplace_back(call, kCalls);
  EXPECT_TRUE(Eventually([&] { return Metric("runahead_requests_in_flight") == kMay; })) << "there was no room for it";
  worker_->process.Signal(SIGCONT);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count(grpc::StatusCode::OK), kMay);
  EXPECT_EQ(count(grpc::StatusCode::CANCELLED), 1);
  EXPECT_EQ(count(grpc::StatusCode::RESOURCE_EXHAUSTED), kCalls - kMay);
  EXPECT_EQ(Metric("runahead_key_refusals_total{key=\"alice\",limit=\"concurrent\"}"), kCalls - kMay);
}

TEST_F(ApiKeysTest, UpHandsTheFileOn) {
  Write(Entry("alice"));
  TestProcess up({RUNAHEAD_BINARY, "up", "--json", "--model", model_, "--threads", "1", "--api-keys", path_});
  ASSERT_TRUE(up.ReadOutUntil("\n")) << up.err();
  const std::string router = nlohmann::json::parse(up.out()).at("router");
  const auto models = [&](const std::string& environment) {
    TestProcess command({RUNAHEAD_BINARY, "models", "--router", router}, {environment});
    const int code = command.Wait();
    EXPECT_THAT(command.err(), Not(HasSubstr(KeyOf("alice"))));
    return code;
  };
  EXPECT_EQ(models("OTHER=1"), 1);
  EXPECT_EQ(models("RUNAHEAD_API_KEY=" + KeyOf("alice")), 0);
  up.Signal(SIGTERM);
  EXPECT_EQ(up.Wait(), 0) << up.err();
}

TEST_F(ApiKeysTest, AFileThatIsNoneIsRefusedAtStart) {
  Write("  - {name: alice}\n");
  for (const auto& [file, words] : {std::pair<std::string, std::string>{path_, ":2: keys[0].hash is missing"},
                                    {"/nowhere/keys.yaml", "api_keys: cannot read /nowhere/keys.yaml"}}) {
    TestProcess router(
        {RUNAHEAD_ROUTER, "--model", model_, "--workers", "role=both,address=127.0.0.1:9", "--api-keys", file});
    EXPECT_EQ(router.Wait(), 1);
    EXPECT_THAT(router.err(), HasSubstr(words));
  }
}

}  // namespace
}  // namespace runahead
