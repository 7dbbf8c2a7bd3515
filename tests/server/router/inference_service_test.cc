// Who may run, who waits, and who is refused.
#include "server/router/inference_service.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/router/validation.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "server/task/run_here.h"
#include "tests/server/rpc/loopback.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

using testing::Call;
using ::testing::ContainsRegex;
using testing::FakeBehaviour;
using testing::Got;
using ::testing::HasSubstr;
using testing::kInVain;

class InferenceServiceTest : public testing::RouterFixture {
 protected:
  void HoldPrefill() {
    for (auto& worker : prefill_) worker->Change([](FakeBehaviour& b) { b.first_token = b.done = false; });
  }
  void HoldDecode() {
    for (auto& worker : decode_) worker->Change([](FakeBehaviour& b) { b.decode_until = 0; });
  }
  // Whether so many wait, soon.
  ::testing::AssertionResult Waits(int count) {
    return MetricBecomes("runahead_queue_depth{priority=\"normal\"}", count);
  }
};

TEST_F(InferenceServiceTest, WhoIsGoneLeavesTheQueueOfSessionsAtOnce) {
  Start({.prefill = 1, .queue_size = 1, .max_sessions = 1});
  HoldPrefill();
  Call running(*stub_, Ids(5, 1));
  prefill_[0]->AwaitStarts(1);
  Call cancelled(*stub_, Ids(5, 1));
  ASSERT_TRUE(Waits(1));
  cancelled.Cancel();
  EXPECT_EQ(cancelled.Finish().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Waits(0));
  const std::string waited = "runahead_queue_waits_total{cause=\"session\"}";
  const double before = Metric(waited);
  absl::Duration timeout = absl::Milliseconds(150);
  do {  // until one came early enough to wait
    timeout *= 2;
    EXPECT_EQ(Call(*stub_, Ids(5, 1), timeout).Finish().status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Waits(0));
  } while (Metric(waited) == before && timeout < kInVain);
  EXPECT_GT(Metric(waited), before);
  Call next(*stub_, Ids(5, 1), kInVain);
  EXPECT_TRUE(Waits(1));
  running.Cancel();
  prefill_[0]->AwaitStarts(2);
  next.Cancel();
}

TEST_F(InferenceServiceTest, TokenizeCallsThatAreGoneLeaveTheQueueToo) {
  Start({.prefill = 1, .queue_size = 1, .max_sessions = 1});
  HoldPrefill();
  Call running(*stub_, Ids(5, 1));
  prefill_[0]->AwaitStarts(1);
  grpc::ClientContext context;
  SetTimeout(context, absl::Milliseconds(300));
  v1::TokenizeRequest request;
  request.set_text("a");
  v1::TokenizeResponse response;
  EXPECT_EQ(stub_->Tokenize(&context, request, &response).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Waits(0));
  running.Cancel();
}

// The client has gRPC's own limits. Whatever text may be sent, it gets an answer, or is told what is wrong with the
// text; it never comes to RESOURCE_EXHAUSTED, which names no field.
TEST_F(InferenceServiceTest, NoTextMakesAnAnswerThatClientsRefuse) {
  Start({.prefill = 1});
  std::string letters;
  while (letters.size() < kMaxTokenizeBytes) letters += "\xc3\xa9";  // two tokens, whose ids take two bytes each
  const auto tokenize = [&](size_t bytes, v1::TokenizeResponse* response) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(letters.substr(0, bytes));
    return stub_->Tokenize(&context, request, response);
  };
  v1::TokenizeResponse response;
  const grpc::Status longest = tokenize(kMaxTokenizeBytes, &response);
  EXPECT_EQ(longest.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << longest.error_message();
  EXPECT_THAT(longest.error_message(),
              ContainsRegex("text: its [0-9]+ tokens make an answer of [0-9]+ bytes, more than"));
  const grpc::Status quarter = tokenize(kMaxTokenizeBytes / 4, &response);
  EXPECT_TRUE(quarter.ok()) << quarter.error_message();
  EXPECT_GT(response.ids_size(), 500'000);
}

TEST_F(InferenceServiceTest, StreamsThatDecodeDoNotKeepPromptsFromPrefill) {
  Start({.prefill = 1, .queue_size = 0, .max_sessions = 1});
  HoldDecode();
  std::vector<std::unique_ptr<Call>> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(std::make_unique<Call>(*stub_, Ids(5, 4), kInVain));
    ASSERT_TRUE(streams.back()->Read());
    ASSERT_TRUE(streams.back()->Read()) << "no first token beside " << i << " streams";
    decode_[0]->AwaitLeases(i + 1);
    ASSERT_TRUE(MetricBecomes("runahead_requests_in_flight", i + 1));
    decode_[0]->AwaitDecodes(i + 1);
  }
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 100; });
  for (auto& stream : streams) EXPECT_TRUE(stream->Finish().status.ok());
}

TEST_F(InferenceServiceTest, WhoHasAnsweredKeepsNobodyOutWhileItsClientReads) {
  Start({.prefill = 1, .queue_size = 0, .max_streams = 1});
  decode_[0]->Change([](FakeBehaviour& b) { b.logprobs = 20; });
  const auto stub =
      v1::Inference::NewStub(testing::Connected(MakeChannel(server_->address(), kProcessKeepAlive, {}, {}, /*read_ahead=*/false)));
  v1::GenerateRequest request = Ids(5, 4000);
  request.mutable_sampling()->set_logprobs(20);  // more than a window has room for
  Call unread(*stub, request);
  ASSERT_TRUE(MetricBecomes("runahead_requests_total{code=\"OK\",model=\"tiny\"}", 1));
  ASSERT_EQ(Metric("runahead_requests_in_flight"), 1) << "its client has taken it all";
  const Got next = Generate(Ids(5, 1));
  EXPECT_TRUE(next.status.ok()) << next.status;
  EXPECT_TRUE(unread.Finish().status.ok());
}

TEST_F(InferenceServiceTest, WhoWaitsForDecodeMemoryDoesNotKeepOthersFromPrefill) {
  Start({.prefill = 1, .queue_size = 16, .max_sessions = 1});
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = false; });
  std::vector<std::unique_ptr<Call>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(std::make_unique<Call>(*stub_, Ids(5, 4)));
    decode_[0]->AwaitReservations(i + 1);
    const Got needs_none = Call(*stub_, Ids(5, 1), kInVain).Finish();
    ASSERT_TRUE(needs_none.status.ok()) << needs_none.status << ", beside " << i + 1 << " that wait for memory";
  }
  decode_[0]->Change([](FakeBehaviour& b) { b.reserve = true; });
  for (auto& call : waiting) EXPECT_TRUE(call->Finish().status.ok());
}

TEST_F(InferenceServiceTest, ARequestThatIsRefusedAtTheDoorHasAnIdInTheLog) {
  Start();
  server_->gate().Close();
  ::testing::internal::CaptureStderr();
  v1::GenerateRequest request = Ids(5, 1);
  EXPECT_EQ(Generate(request).status.code(), absl::StatusCode::kUnavailable);
  request.set_request_id("theirs");
  EXPECT_EQ(Generate(request).status.code(), absl::StatusCode::kUnavailable);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, ContainsRegex("request request_id=[0-9a-f]{16} code=UNAVAILABLE"));
  EXPECT_THAT(log, HasSubstr("request request_id=theirs code=UNAVAILABLE"));
}

// What comes of it the client does not see, for it is gone: the service is called without gRPC between.
TEST_F(InferenceServiceTest, ATokenizeCallThatIsGoneIsWorkedOnNoMore) {
  Start();
  CancelToken none;
  auto others_turn = RunHere(parts_->large_text_turns->Await(1 << 20, none));
  DrainGate gate;
  auto service = std::make_unique<InferenceService>(*parts_, ServiceLimits{.max_sessions = 1});
  service->SetGate(&gate);
  v1::TokenizeRequest large, small;
  v1::TokenizeResponse of_large, of_small;
  ByteBudget::Lease memory;
  while (large.text().size() < (1 << 20)) large.mutable_text()->append("ab ");
  while (small.text().size() < 60'000) small.mutable_text()->append("ab ");
  grpc::ServerUnaryReactor* const holds_the_session = service->BeginTokenize(nullptr, &large, &of_large, memory);
  grpc::ServerUnaryReactor* const waits = service->BeginTokenize(nullptr, &small, &of_small, memory);
  waits->OnCancel();
  holds_the_session->OnCancel();
  service.reset();  // when both have run
  EXPECT_EQ(of_large.ids_size(), 0);
  EXPECT_EQ(of_small.ids_size(), 0) << "it was tokenized though nobody asks any more";
  waits->OnDone();
  holds_the_session->OnDone();
}

// Parsed, JSON takes many times its bytes: an array of a hundred thousand empty objects some 10 MB. Was: Generate took
// that from the budget before it parsed it, Tokenize parsed it at once.
TEST_F(InferenceServiceTest, TheJsonOfAChatIsTakenFromTheBudgetWhicheverCallBringsIt) {
  Start({.prefill = 1});
  ByteBudget memory(10 << 20);
  InferenceService service(*parts_, {}, {.memory = &memory});
  const std::unique_ptr<RpcServer> server = testing::StartServer(service);
  service.SetGate(&server->gate());
  const auto stub = v1::Inference::NewStub(testing::Connected(MakeChannel(server->address())));
  v1::ChatMessages chat;
  chat.add_messages()->set_role("user");
  const auto statuses = [&](size_t json_bytes) {
    chat.set_tools(absl::StrCat("[", std::string(json_bytes - 2, ' '), "]"));
    v1::TokenizeRequest tokenize;
    v1::GenerateRequest generate;
    *tokenize.mutable_chat() = *generate.mutable_chat() = chat;
    generate.mutable_stop()->set_max_tokens(1);
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return std::vector<absl::Status>{FromGrpcStatus(stub->Tokenize(&context, tokenize, &response)),
                                     Call(*stub, generate).Finish().status};
  };
  for (const absl::Status& status : statuses(100 << 10)) EXPECT_EQ(status, absl::OkStatus());
  for (const absl::Status& status : statuses(300 << 10)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("request_memory"));
  }
  for (const absl::Status& status : statuses(kMaxChatJsonBytes + 1)) {
    EXPECT_EQ(status.message(), "chat.tools: 1048577 bytes of JSON in the chat are more than 1048576");
    EXPECT_EQ(BlamedField(status), "chat.tools");
  }
  server->Drain(absl::Seconds(30));
  EXPECT_EQ(memory.taken(), 0);
}

TEST_F(InferenceServiceTest, AllThatRunAreBoundedAndWhoIsRefusedHearsWhenToTryAgain) {
  Start({.prefill = 1, .queue_size = 1, .max_sessions = 4, .max_streams = 2});
  HoldDecode();
  Call one(*stub_, Ids(5, 4)), two(*stub_, Ids(5, 4));
  decode_[0]->AwaitDecodes(2);
  Call waits(*stub_, Ids(5, 4));
  ASSERT_TRUE(Waits(1));
  const Got refused = Generate(Ids(5, 4));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status.message(), HasSubstr("queue_size is 1"));
  EXPECT_TRUE(RetryAfter(refused.status).has_value());
  one.Cancel();
  EXPECT_TRUE(waits.Read()->has_started());
  decode_[0]->Change([](FakeBehaviour& b) { b.decode_until = 100; });
  EXPECT_TRUE(waits.Finish().status.ok());
  EXPECT_TRUE(two.Finish().status.ok());
}

TEST_F(InferenceServiceTest, SaysWhatIsWrongWithBytesThatAreNoRequest) {
  Start({.prefill = 1});
  const auto channel = MakeChannel(server_->address());
  for (const char* method : {"Generate", "Tokenize", "ListModels", "GetTrace"}) {
    std::string response;
    const grpc::Status status =
        testing::CallRaw(channel, absl::StrCat("/runahead.v1.Inference/", method), "\xff", &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("the 1 bytes of the request are no runahead.v1.")) << method;
  }
  std::string response;
  const grpc::Status text = testing::CallRaw(channel, "/runahead.v1.Inference/Generate", "\x12\x01\xff", &response);
  EXPECT_EQ(text.error_message(), "prompt: it is not UTF-8; text must be");
  EXPECT_EQ(BlamedField(FromGrpcStatus(text)), "prompt");
}

}  // namespace
}  // namespace runahead
