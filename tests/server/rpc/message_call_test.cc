#include "server/rpc/message_call.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runahead/v1/inference.grpc.pb.h"
#include "server/base/clock.h"
#include "server/rpc/message_service.h"
#include "tests/server/rpc/loopback.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/waiting_calls.h"
#include "tests/testing/raw_http2.h"

namespace runahead {
namespace {

using testing::CallRaw;
using ::testing::HasSubstr;

constexpr int kAnswers = 20;
constexpr int64_t kLongAnswer = 3 << 20;

// Says once that a call has begun, was cancelled, and is done.
struct CallLife {
  std::promise<void> begun, cancelled, done;
};

// Tokenize answers with the length of the text, or waits for a cancel where that is "wait"; Generate with kAnswers
// messages, or with a failure in their midst where the prompt is "fail"; Detokenize with kLongAnswer bytes.
class Lengths final : public MessageService<v1::Inference> {
 public:
  explicit Lengths(CallDoor door = {}) : MessageService(std::move(door)) {
    Unary("Tokenize", &Lengths::Tokenize);
    Stream("Generate", &Lengths::Generate);
    Unary("Detokenize", &Lengths::Detokenize);
    Unary("GetTrace", &Lengths::GetTrace);
  }
  CallLife& life() { return life_; }

 private:
  class Held final : public grpc::ServerUnaryReactor {
   public:
    explicit Held(CallLife& life) : life_(life) { life.begun.set_value(); }
    void OnCancel() override {
      life_.cancelled.set_value();
      Finish(grpc::Status::CANCELLED);
    }
    void OnDone() override {
      life_.done.set_value();
      delete this;
    }

   private:
    CallLife& life_;
  };
  class Counting final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
   public:
    explicit Counting(bool fails) : fails_(fails) { Next(); }
    void OnWriteDone(bool ok) override { ok ? Next() : Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

   private:
    void Next() {
      response_.mutable_tokens()->set_index(index_++);
      if (fails_ && index_ == kAnswers / 2) return Finish({grpc::StatusCode::ABORTED, "enough"});
      if (index_ < kAnswers) return StartWrite(&response_);
      StartWriteAndFinish(&response_, {}, grpc::Status::OK);
    }
    const bool fails_;
    int index_ = 0;
    v1::GenerateResponse response_;
  };

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override {
    if (request->text() == "wait") return new Held(life_);
    response->add_ids(static_cast<int32_t>(request->text().size()));
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context, const v1::DetokenizeRequest*,
                                       v1::DetokenizeResponse* response) override {
    response->set_text(std::string(kLongAnswer, 'a'));
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest* request) override {
    return new Counting(request->prompt() == "fail");
  }

  CallLife life_;
};

// A call of Tokenize of which only the headers are sent.
class OpenCall {
 public:
  explicit OpenCall(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {
    SetTimeout(context_, absl::Seconds(30));
    call_ = stub_.PrepareCall(&context_, "/runahead.v1.Inference/Tokenize", &queue_);
    call_->StartCall(nullptr);
    Await();
  }
  void HalfClose() {
    call_->WritesDone(nullptr);
    Await();
  }
  void Cancel() { context_.TryCancel(); }
  grpc::Status AwaitEnd() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Await();
    return status;
  }

 private:
  void Await() {
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue_.Next(&tag, &ok));
  }

  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

class MessageCallTest : public ::testing::Test {
 protected:
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const std::string& text,
                                                grpc_compression_algorithm folded_by = GRPC_COMPRESS_NONE) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    context.set_compression_algorithm(folded_by);
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    const absl::Status status = FromGrpcStatus(stub_->Tokenize(&context, request, &response));
    if (!status.ok()) return status;
    return response;
  }

  Lengths service_;
  const std::unique_ptr<RpcServer> server_ = testing::StartServer(service_);
  const std::shared_ptr<grpc::Channel> channel_ = MakeChannel(server_->address());
  const std::unique_ptr<v1::Inference::Stub> stub_ = v1::Inference::NewStub(channel_);
};

TEST_F(MessageCallTest, AnswersOneMessageWithOne) {
  for (const size_t size : {size_t{0}, size_t{5}, size_t{5} << 20}) {
    const auto response = Tokenize(std::string(size, 'a'));
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->ids(0), static_cast<int32_t>(size));
  }
}

TEST_F(MessageCallTest, AnswersACompressedMessageAsThePlainOne) {
  for (const grpc_compression_algorithm folded_by : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    const auto response = Tokenize(std::string(size_t{5} << 20, 'a'), folded_by);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->ids(0), 5 << 20);
    std::string answer;
    const grpc::Status garbage =
        CallRaw(channel_, "/runahead.v1.Inference/Generate", std::string(1000, '\xff'), &answer, folded_by);
    EXPECT_EQ(garbage.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(garbage.error_message(), HasSubstr("the 1000 bytes of the request are no runahead.v1."));
  }
}

TEST_F(MessageCallTest, AnswersOneMessageWithAStream) {
  for (const bool fails : {false, true}) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    v1::GenerateRequest request;
    request.set_prompt(fails ? "fail" : "count");
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    int next = 0;
    while (reader->Read(&response)) EXPECT_EQ(response.tokens().index(), next++);
    EXPECT_EQ(next, fails ? kAnswers / 2 - 1 : kAnswers);
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), fails ? grpc::StatusCode::ABORTED : grpc::StatusCode::OK);
    EXPECT_EQ(status.error_message(), fails ? "enough" : "");
  }
}

// gRPC's own answer to them is UNIMPLEMENTED, without a word.
TEST_F(MessageCallTest, SaysWhatIsWrongWithAMessageThatCannotBeParsed) {
  std::string response;
  for (const char* method : {"/runahead.v1.Inference/Tokenize", "/runahead.v1.Inference/Generate"}) {
    const grpc::Status garbage = CallRaw(channel_, method, "\xff\xff\xff", &response);
    EXPECT_EQ(garbage.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(garbage.error_message(), HasSubstr("the 3 bytes of the request are no runahead.v1."));
  }
  const grpc::Status text = CallRaw(channel_, "/runahead.v1.Inference/Tokenize", "\x12\x02\xc3(", &response);
  EXPECT_EQ(text.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(text.error_message(), "text: it is not UTF-8; text must be");
  EXPECT_EQ(BlamedField(FromGrpcStatus(text)), "text");
}

TEST_F(MessageCallTest, RefusesALongerMessageThanTheServerTakes) {
  EXPECT_EQ(Tokenize(std::string(kMaxMessageBytes + 1, 'a')).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Tokenize("after it").ok());
}

TEST_F(MessageCallTest, RefusesACallWithoutAMessage) {
  OpenCall call(channel_);
  call.HalfClose();
  const grpc::Status status = call.AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("before it brought a message"));
}

TEST_F(MessageCallTest, MethodsThatTheServiceLacksAreUnimplemented) {
  grpc::ClientContext context;
  v1::Trace trace;
  EXPECT_EQ(stub_->GetTrace(&context, {}, &trace).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(MessageCallTest, TheServiceHearsThatTheClientHasGone) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("wait");
  v1::TokenizeResponse response;
  std::promise<grpc::Status> status;
  stub_->async()->Tokenize(&context, &request, &response, [&](grpc::Status s) { status.set_value(std::move(s)); });
  service_.life().begun.get_future().wait();
  context.TryCancel();
  EXPECT_EQ(status.get_future().get().error_code(), grpc::StatusCode::CANCELLED);
  service_.life().cancelled.get_future().wait();
  service_.life().done.get_future().wait();
}

// A service behind a door.
struct Doored {
  explicit Doored(CallDoor door) : service(std::move(door)) {}

  grpc::Status Tokenize(const std::string& text, grpc_compression_algorithm folded_by = GRPC_COMPRESS_NONE) {
    grpc::ClientContext context;
    SetTimeout(context, absl::Seconds(30));
    context.set_compression_algorithm(folded_by);
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    return v1::Inference::NewStub(channel)->Tokenize(&context, request, &response);
  }

  Lengths service;
  const std::unique_ptr<RpcServer> server = testing::StartServer(service);
  const std::shared_ptr<grpc::Channel> channel = MakeChannel(server->address());
};

TEST(CallDoor, JudgesACallBeforeAnythingOfItsMessageHasCome) {
  Doored doored({.admit = [](const grpc::ServerContextBase& context) -> absl::Status {
    return context.client_metadata().count("key") > 0 ? absl::OkStatus() : absl::UnauthenticatedError("no key");
  }});
  OpenCall call(doored.channel);
  const grpc::Status status = call.AwaitEnd();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(status.error_message(), "no key");
  grpc::ClientContext context;
  context.AddMetadata("key", "ours");
  v1::TokenizeResponse response;
  EXPECT_TRUE(v1::Inference::NewStub(doored.channel)->Tokenize(&context, {}, &response).ok());
}

TEST(CallDoor, RefusesAMessageThatIsLongerThanItSays) {
  Doored doored({.longest = 100});
  EXPECT_TRUE(doored.Tokenize(std::string(90, 'a')).ok());
  const grpc::Status status = doored.Tokenize(std::string(101, 'a'));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("it may have 100"));
}

TEST(CallDoor, UnfoldsNoMoreOfAMessageThanItSays) {
  Doored doored({.longest = 10'000});
  EXPECT_TRUE(doored.Tokenize(std::string(9'900, 'a'), GRPC_COMPRESS_GZIP).ok());
  const grpc::Status status = doored.Tokenize(std::string(1 << 20, 'a'), GRPC_COMPRESS_DEFLATE);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("more than the 10000 bytes that it may have here, once it is unfolded"));
}

TEST(CallDoor, GivesUpAMessageThatDoesNotComeWhileOthersWait) {
  Arrivals arrivals(
      {.bytes = 1, .message_bytes = 1, .patience = absl::Seconds(20), .short_patience = absl::Milliseconds(100)}, {},
      RealClock(), [](const std::string&) { return 0; });
  Doored doored({.arrivals = &arrivals});
  OpenCall silent(doored.channel);
  EXPECT_TRUE(doored.Tokenize("waits").ok());
  const absl::Status status = FromGrpcStatus(silent.AwaitEnd());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(status));
}

TEST(CallDoor, WhoIsGoneWhileHeWaitsIsForgotten) {
  testing::WaitingCalls waiting;
  Arrivals arrivals({.bytes = 1, .message_bytes = 1, .patience = absl::Minutes(1), .short_patience = absl::Minutes(1)},
                    waiting.watcher(), RealClock(), [](const std::string&) { return 0; });
  Doored doored({.arrivals = &arrivals});
  OpenCall first(doored.channel), second(doored.channel);
  waiting.Await(1);
  second.Cancel();
  waiting.Await(0);
  first.Cancel();
  EXPECT_EQ(first.AwaitEnd().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(second.AwaitEnd().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(doored.Tokenize("after them").ok());
}

TEST(CallDoor, TakesTheMemoryOfARequestAndGivesItBack) {
  ByteBudget memory(10'000);
  Doored doored({.memory = &memory});
  const grpc::Status never = doored.Tokenize(std::string(20'000, 'a'));
  EXPECT_EQ(never.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(never.error_message(), HasSubstr("request_memory"));
  {
    ByteBudget::Lease others = memory.None();
    ASSERT_TRUE(others.Resize(9'000));
    const absl::Status now = FromGrpcStatus(doored.Tokenize(std::string(2'000, 'a')));
    EXPECT_EQ(now.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(RetryAfter(now));
  }
  EXPECT_TRUE(doored.Tokenize(std::string(2'000, 'a')).ok());
  // What it takes when it is unfolded is memory as well.
  const grpc::Status folded = doored.Tokenize(std::string(50'000, 'a'), GRPC_COMPRESS_GZIP);
  EXPECT_EQ(folded.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(folded.error_message(), HasSubstr("request_memory"));
  doored.server->Drain(absl::Seconds(30));  // a call's end comes before its memory is back
  EXPECT_EQ(memory.refusals(), 3);
}

// The client takes nothing of an answer that is longer than gRPC sends unasked: the test's connection grants no more.
TEST(CallDoor, AnAnswerThatIsNotTakenIsCountedAndCutOff) {
  std::promise<void> cut;
  std::atomic<int64_t> most = 0, now = 0;
  ByteBudget memory(100 << 20);
  Departures departures({.bytes = 8 << 20, .min_rate = 8 << 20, .patience = absl::Milliseconds(100)},
                        {.changed = [&](int64_t bytes) { most = std::max(most.load(), now = bytes); },
                         .cut =
                             [&](DepartureWatcher::Cut why) {
                               EXPECT_EQ(why, DepartureWatcher::Cut::kSlow);
                               cut.set_value();
                             }},
                        RealClock());
  Doored doored({.memory = &memory, .departures = &departures});
  testing::RawHttp2 client(doored.server->address());
  const uint32_t call = client.Call("/runahead.v1.Inference/Detokenize");
  const std::string empty = testing::RawHttp2::Prefix(0);
  ASSERT_EQ(client.Send(call, empty), empty.size());
  while (!client.Ended(call) && client.Pump(absl::Milliseconds(100))) {
  }
  EXPECT_TRUE(client.Ended(call)) << "the connection ended instead";
  cut.get_future().wait();
  EXPECT_GT(most, kLongAnswer);
  EXPECT_LT(most, kLongAnswer + (1 << 20));
  EXPECT_EQ(now, 0);
  EXPECT_TRUE(doored.Tokenize("after it").ok());
  doored.server->Drain(absl::Seconds(30));
  EXPECT_EQ(memory.taken(), 0);
}

}  // namespace
}  // namespace runahead
