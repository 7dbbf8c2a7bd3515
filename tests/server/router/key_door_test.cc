// A router that takes calls with an API key only.
#include "server/router/key_door.h"

#include <grpcpp/generic/generic_stub.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/metric_values.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using ::testing::AllOf;
using testing::Call;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using testing::FakeWorker;
using testing::Got;
using ::testing::HasSubstr;
using testing::kInVain;
using ::testing::Not;
using Metadata = std::map<std::string, std::string>;

constexpr char kAlice[] = "runahead_alices-secret";
constexpr char kBob[] = "runahead_bobs-secret";
constexpr char kGuess[] = "runahead_guessed-secret";

Metadata Bearer(const std::string& key) {
  return {{"authorization", absl::StrCat("Bearer ", key)}};
}

class KeyDoorTest : public testing::RouterFixture {
 protected:
  void TearDown() override {
    RouterFixture::TearDown();
    std::filesystem::remove(path_);
  }

  // With a key of Alice's that has these limits, and one of Bob's that has none.
  void StartWith(const std::string& limits, testing::RouterSetup setup = {.prefill = 1}) {
    Write(limits);
    auto ring = KeyRing::Open(path_, key_metrics_, clock_);
    ASSERT_TRUE(ring.ok()) << ring.status();
    ring_ = *std::move(ring);
    door_.emplace(*ring_, key_metrics_, clock_);
    setup.keys = &*door_;
    Start(setup);
  }
  void Write(const std::string& limits) {
    const auto entry = [](const char* name, const char* key, const std::string& more) {
      return absl::StrCat("  - {name: ", name, ", hash: ", ApiKeyHashText(HashOfApiKey(key)), more, "}\n");
    };
    ASSERT_TRUE(
        WriteTextFile(path_, absl::StrCat("keys:\n", entry("alice", kAlice, limits), entry("bob", kBob, ""))).ok());
  }
  Got Generate(const v1::GenerateRequest& request, const Metadata& metadata) {
    return Call(*stub_, request, kInVain, {}, "", metadata).Finish();
  }
  absl::Status Status(const Metadata& metadata) { return Generate(Ids(5, 3), metadata).status; }
  double Refused(const std::string& limit) {
    return testing::Value(metric_registry_,
                          absl::StrCat("runahead_key_refusals_total{key=\"alice\",limit=\"", limit, "\"}"));
  }
  double Tokens(const std::string& kind) {
    return testing::Value(metric_registry_,
                          absl::StrCat("runahead_key_tokens_total{key=\"alice\",kind=\"", kind, "\"}"));
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/key_door_test_", getpid(), ".yaml");
  testing::FakeClock clock_{absl::FromUnixSeconds(1'800'000'000)};  // 2027-01-15
  KeyMetrics key_metrics_{metric_registry_};
  std::unique_ptr<KeyRing> ring_;
  std::optional<KeyDoor> door_;
};

TEST_F(KeyDoorTest, TakesAKeyInEitherHeader) {
  StartWith("");
  EXPECT_TRUE(Status(Bearer(kAlice)).ok());
  EXPECT_TRUE(Status({{"authorization", absl::StrCat("bearer  ", kBob)}}).ok());
  EXPECT_TRUE(Status({{"x-api-key", kAlice}}).ok());
  EXPECT_EQ(testing::Value(metric_registry_, "runahead_key_requests_total{key=\"alice\"}"), 2);
}

TEST_F(KeyDoorTest, TheLogSaysWhoseARequestWasByTheKeysName) {
  StartWith("");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(Status(Bearer(kAlice)).ok());
  server_.reset();
  service_.reset();  // whose last line is written
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(" tenant=alice code=OK"), Not(HasSubstr("secret"))));
}

// Also what is almost one, or two at once; and nothing of it is in any answer or in the log.
TEST_F(KeyDoorTest, RefusesAllElseInTheSameWordsAndRepeatsNothing) {
  StartWith("");
  ::testing::internal::CaptureStderr();
  const absl::Status missing = Status({});
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("authorization: Bearer KEY"));
  for (const Metadata& metadata :
       {Metadata{{"authorization", kAlice}}, Metadata{{"authorization", absl::StrCat("Basic ", kAlice)}},
        Metadata{{"authorization", absl::StrCat("Bearer ", kAlice)}, {"x-api-key", kAlice}}}) {
    EXPECT_EQ(Status(metadata), missing);
  }
  const absl::Status unknown = Status(Bearer(kGuess));
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_NE(unknown, missing);
  for (const std::string& key :
       {std::string(), absl::StrCat(kAlice, "x"), std::string(kAlice, 5), std::string(4000, 'k')}) {
    EXPECT_EQ(Status(Bearer(key)), unknown) << key;
  }
  EXPECT_EQ(testing::Value(metric_registry_, "runahead_unauthenticated_calls_total{reason=\"missing\"}"), 4);
  EXPECT_EQ(testing::Value(metric_registry_, "runahead_unauthenticated_calls_total{reason=\"unknown\"}"), 5);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      log, HasSubstr("calls without a good API key were refused: 1 since this was said last; the latest, from ipv4"));
  EXPECT_EQ(log.find("good API key"), log.rfind("good API key")) << "rarely: " << log;
  EXPECT_THAT(absl::StrCat(log, metric_registry_.Serialize(), unknown.message()), Not(HasSubstr("secret")));
}

TEST_F(KeyDoorTest, EveryMethodNeedsOne) {
  StartWith("");
  for (const auto& [metadata, let_in] : {std::pair(Metadata(), false), {Bearer(kGuess), false}, {Bearer(kBob), true}}) {
    const auto code = [&, metadata = metadata](auto method, const auto& request, auto response) {
      grpc::ClientContext context;
      for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
      return ((*stub_).*method)(&context, request, &response).error_code();
    };
    using Stub = v1::Inference::StubInterface;
    v1::TokenizeRequest text;
    text.set_text("a");
    const grpc::StatusCode refused = grpc::StatusCode::UNAUTHENTICATED, ok = grpc::StatusCode::OK;
    EXPECT_EQ(code(&Stub::Tokenize, text, v1::TokenizeResponse()), let_in ? ok : refused);
    EXPECT_EQ(code(&Stub::Detokenize, v1::DetokenizeRequest(), v1::DetokenizeResponse()), let_in ? ok : refused);
    EXPECT_EQ(code(&Stub::ListModels, v1::ListModelsRequest(), v1::ListModelsResponse()), let_in ? ok : refused);
    EXPECT_EQ(code(&Stub::GetTrace, v1::GetTraceRequest(), v1::Trace()),
              let_in ? grpc::StatusCode::NOT_FOUND : refused);
  }
}

TEST_F(KeyDoorTest, IsJudgedBeforeItsMessageIsRead) {
  StartWith("");
  grpc::ClientContext context;
  SetTimeout(context, kInVain);
  grpc::GenericStub stub(MakeChannel(server_->address()));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, "/runahead.v1.Inference/Generate", &queue);
  grpc::Status status;
  call->StartCall(nullptr);
  call->Finish(&status, nullptr);  // nothing was sent but the headers
  void* tag = nullptr;
  bool ok = false;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
}

TEST_F(KeyDoorTest, AKeyIsTakenUntilItExpires) {
  StartWith(", expires: 2027-01-16");
  EXPECT_TRUE(Status(Bearer(kAlice)).ok());
  clock_.Advance(absl::Hours(24));
  const absl::Status expired = Status(Bearer(kAlice));
  EXPECT_EQ(expired.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(expired.message()), HasSubstr("\"alice\" expired at 2027-01-16T00:00:00"));
  EXPECT_TRUE(Status(Bearer(kBob)).ok());
  EXPECT_EQ(testing::Value(metric_registry_, "runahead_unauthenticated_calls_total{reason=\"expired\"}"), 1);
}

TEST_F(KeyDoorTest, RequestsAMinute) {
  StartWith(", requests_per_minute: 2");
  EXPECT_TRUE(Status(Bearer(kAlice)).ok());
  EXPECT_TRUE(Status(Bearer(kAlice)).ok());
  const absl::Status refused = Status(Bearer(kAlice));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(refused), absl::Seconds(30));
  EXPECT_TRUE(Status(Bearer(kBob)).ok()) << "Bob has his own";
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(Status(Bearer(kAlice)).ok());
}

TEST_F(KeyDoorTest, TokensAreSettledWhenAnAnswerHasEnded) {
  StartWith(", tokens_per_minute: 100");
  for (int i = 0; i < 3; ++i) {  // together more than a minute has, as they come in
    v1::GenerateRequest request = Ids(10, 60);
    request.mutable_stop()->add_stop_ids(100);  // the first token of a fake worker
    EXPECT_TRUE(Generate(request, Bearer(kAlice)).status.ok()) << i;
  }
  EXPECT_EQ(Tokens("prompt"), 30);
  EXPECT_EQ(Tokens("output"), 3) << "each ended with its first token";
  const absl::Status refused = Generate(Ids(10, 60), Bearer(kAlice)).status;
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(refused), absl::Milliseconds(1800)) << "33 of 100 are taken: three more are wanted";
  EXPECT_EQ(Generate(Ids(10, 91), Bearer(kAlice)).status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Refused("tokens"), 2);
}

// One place, one prompt, and each answer's own tokens.
TEST_F(KeyDoorTest, SeveralAnswersAreOneRequestWithTheTokensOfAll) {
  StartWith(", tokens_per_minute: 20, concurrent_requests: 1");
  v1::GenerateRequest request = Ids(5, 5);
  request.set_n(3);
  EXPECT_TRUE(Generate(request, Bearer(kAlice)).status.ok()) << "5 and 3 times 5";
  EXPECT_EQ(Tokens("prompt"), 5);
  EXPECT_EQ(Tokens("output"), 15);
  request.set_n(4);
  EXPECT_EQ(Generate(request, Bearer(kAlice)).status.code(), absl::StatusCode::kPermissionDenied) << "never there";
  EXPECT_EQ(Refused("tokens"), 1);
  EXPECT_EQ(Refused("concurrent"), 0);
}

TEST_F(KeyDoorTest, ManyAtOnceRunAsManyAsMayAndACancelGivesBack) {
  StartWith(", concurrent_requests: 3");
  prefill_[0]->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  std::vector<std::unique_ptr<Call>> running;
  for (int i = 0; i < 3; ++i) {
    running.push_back(
        std::make_unique<Call>(*stub_, Ids(5, 1), kInVain, std::vector<std::string>(), "", Bearer(kAlice)));
    ASSERT_TRUE(MetricBecomes("runahead_requests_in_flight", i + 1));
  }
  std::vector<std::unique_ptr<Call>> others;
  for (int i = 0; i < 197; ++i) {
    others.push_back(
        std::make_unique<Call>(*stub_, Ids(5, 1), kInVain, std::vector<std::string>(), "", Bearer(kAlice)));
  }
  for (auto& call : others) {
    const absl::Status refused = call->Finish().status;
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("\"alice\": concurrent_requests is 3"));
    EXPECT_TRUE(RetryAfter(refused));
  }
  EXPECT_EQ(Refused("concurrent"), 197);
  running[0]->Cancel();
  EXPECT_EQ(running[0]->Finish().status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(MetricBecomes("runahead_requests_in_flight", 2));
  running[0] = std::make_unique<Call>(*stub_, Ids(5, 1), kInVain, std::vector<std::string>(), "", Bearer(kAlice));
  ASSERT_TRUE(MetricBecomes("runahead_requests_in_flight", 3)) << "its place was given back";
  for (auto& call : running) call->Cancel();
}

TEST_F(KeyDoorTest, OneAfterTheOtherNeverMeetsAConcurrentLimitOfOne) {
  StartWith(", concurrent_requests: 1");
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Status(Bearer(kAlice)).ok()) << i;
}

TEST_F(KeyDoorTest, AnAnswerIsAsLongAsItMayBeWhereNothingIsSaid) {
  StartWith(", max_tokens: 7");
  v1::GenerateRequest request = Ids(5, 1);
  request.mutable_stop()->clear_max_tokens();
  const Got got = Generate(request, Bearer(kAlice));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.finished().usage().completion_tokens(), 7);
  EXPECT_EQ(Generate(Ids(5, 8), Bearer(kAlice)).status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Refused("max_tokens"), 1);
}

TEST_F(KeyDoorTest, WhoComesAsAnotherTenantIsRefused) {
  StartWith("");
  Metadata metadata = Bearer(kAlice);
  metadata["runahead-tenant"] = "alice";
  EXPECT_TRUE(Status(metadata).ok());
  metadata["runahead-tenant"] = "bob";
  EXPECT_EQ(Status(metadata).code(), absl::StatusCode::kPermissionDenied);
}

// One decode worker of one slot, which is taken; prompts say by their length who they are.
class KeyTurnsTest : public KeyDoorTest {
 protected:
  void StartFull(const std::string& limits) {
    StartWith(limits,
              {.prefill = 1,
               .able = [](v1::Capabilities& able) { able.set_max_batch(1); },
               .before = [](FakeWorker& worker) { worker.Change([](FakeBehaviour& b) { b.decode_until = 1; }); }});
    AwaitReady(1, 1);
    calls_.push_back(std::make_unique<Call>(*stub_, Ids(1, 3), kInVain, no_traces_, "", Bearer(kAlice)));
    prefill_[0]->AwaitStarts(1);
    decode_[0]->AwaitLeases(1);
  }
  void Wait(const char* key, int prompt) {
    calls_.push_back(std::make_unique<Call>(*stub_, Ids(prompt, 3), kInVain, no_traces_, "", Bearer(key)));
    ASSERT_TRUE(MetricBecomes("runahead_queue_requests{cause=\"slot\"}", static_cast<double>(calls_.size() - 1)));
  }
  // The lengths of the prompts that waited, in the order of their turns.
  std::vector<int> Turns() {
    decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 1 << 30; });
    for (auto& call : calls_) EXPECT_TRUE(call->Finish().status.ok());
    std::vector<int> lengths;
    for (const v1::StartJob& start : prefill_[0]->AwaitStarts(calls_.size())) lengths.push_back(start.ids_size());
    lengths.erase(lengths.begin());
    return lengths;
  }

  const std::vector<std::string> no_traces_ = {};
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST_F(KeyTurnsTest, AKeysWeightIsThatOfItsTurns) {
  StartFull(", weight: 10");
  for (const int prompt : {20, 21}) Wait(kBob, prompt);
  for (const int prompt : {10, 11, 12}) Wait(kAlice, prompt);
  EXPECT_THAT(Turns(), ElementsAre(20, 10, 11, 12, 21)) << "by equal weights 21 comes before 12";
}

TEST_F(KeyTurnsTest, AKeyOfLowPriorityWaitsBehindOthersWithoutAWord) {
  StartFull(", priority: low");
  Wait(kAlice, 10);
  Wait(kBob, 20);
  EXPECT_EQ(Metric("runahead_queue_depth{priority=\"low\"}"), 1);
  EXPECT_THAT(Turns(), ElementsAre(20, 10));
}

TEST_F(KeyDoorTest, AKeyThatIsTakenAwayEndsWithWhatRuns) {
  StartWith("");
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 0; });
  Call running(*stub_, Ids(5, 4), kInVain, {}, "", Bearer(kAlice));
  ASSERT_TRUE(running.Read());
  ASSERT_TRUE(running.Read());
  ASSERT_TRUE(
      WriteTextFile(path_, absl::StrCat("keys: [{name: bob, hash: ", ApiKeyHashText(HashOfApiKey(kBob)), "}]")).ok());
  ring_->Poll(clock_.Now());
  EXPECT_EQ(Status(Bearer(kAlice)).code(), absl::StatusCode::kUnauthenticated);
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 100; });
  EXPECT_TRUE(running.Finish().status.ok());
  EXPECT_TRUE(Status(Bearer(kBob)).ok());
}

}  // namespace
}  // namespace runahead
