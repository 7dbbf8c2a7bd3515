#include "server/rpc/bidi_message_call.h"

#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "server/rpc/message_service.h"
#include "tests/server/rpc/loopback.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/rpc/waiting_calls.h"
#include "tests/testing/await_change.h"
#include "tests/testing/raw_http2.h"

namespace runahead {
namespace {

using ::testing::HasSubstr;
using testing::RawHttp2;

constexpr char kControl[] = "/runahead.v1.Worker/Control";
constexpr char kLongWord[] = "long";
constexpr size_t kLongAnswerBytes = 3 << 20;

// Answers each order with a report of the same number, until the stream ends: then with OK.
class Echo final : public MessageService<v1::Worker> {
 public:
  explicit Echo(CallDoor door = {}) : MessageService(std::move(door)) { Bidi("Control", &Echo::Control); }
  grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport>* Control(grpc::CallbackServerContext*) override {
    return new Stream(*this);
  }
  // So many streams are done.
  void AwaitDone(int count) {
    MutexLock lock(mu_);
    testing::ChangeWait wait(absl::StrCat(count, " streams are done"));
    while (done_ < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }

 private:
  class Stream final : public grpc::ServerBidiReactor<v1::ControlCommand, v1::ControlReport> {
   public:
    explicit Stream(Echo& echo) : echo_(echo) { StartRead(&command_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      report_.set_number(command_.order());
      if (command_.start().request_id() == kLongWord) {
        report_.mutable_pong()->add_progress()->set_name(std::string(kLongAnswerBytes, 'a'));
      }
      StartWrite(&report_);
    }
    void OnWriteDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      StartRead(&command_);
    }
    void OnDone() override {
      {
        MutexLock lock(echo_.mu_);
        ++echo_.done_;
        echo_.changed_.NotifyAll();
      }
      delete this;
    }

   private:
    Echo& echo_;
    v1::ControlCommand command_;
    v1::ControlReport report_;
  };

  Mutex mu_;
  CondVar changed_;
  int done_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

// The service behind a door, and one stream to it.
class BidiCallTest : public ::testing::Test {
 protected:
  void Serve(CallDoor door = {}) {
    service_ = std::make_unique<Echo>(std::move(door));
    server_ = testing::StartServer(*service_);
    channel_ = MakeChannel(server_->address());
    SetTimeout(context_, absl::Seconds(30));
    stream_ = v1::Worker::NewStub(channel_)->Control(&context_);
  }
  // Its answer; 0 where there is none.
  uint64_t Ask(uint64_t number) {
    v1::ControlCommand command;
    command.set_order(number);
    v1::ControlReport report;
    return stream_->Write(command) && stream_->Read(&report) ? report.number() : 0;
  }

  std::unique_ptr<Echo> service_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ControlCommand, v1::ControlReport>> stream_;
};

TEST_F(BidiCallTest, MessagesGoBothWaysUntilTheClientEnds) {
  Serve();
  for (uint64_t i = 1; i < 100; ++i) ASSERT_EQ(Ask(i), i);
  stream_->WritesDone();
  EXPECT_TRUE(stream_->Finish().ok());
  service_->AwaitDone(1);
}

TEST_F(BidiCallTest, TheServiceHearsOfTheEndWhenTheClientHasGone) {
  Serve();
  ASSERT_EQ(Ask(1), 1u);
  context_.TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  service_->AwaitDone(1);
}

// gRPC's own answer is OK: it takes them for the end of the stream.
TEST_F(BidiCallTest, SaysWhatIsWrongWithAMessageThatCannotBeParsed) {
  Serve();
  std::string response;
  const grpc::Status garbage = testing::CallRaw(channel_, kControl, "\xff\xff\xff", &response);
  EXPECT_EQ(garbage.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(garbage.error_message(), HasSubstr("the 3 bytes of the request are no runahead.v1.ControlCommand"));
  service_->AwaitDone(1);
}

TEST_F(BidiCallTest, JudgesACallBeforeItIsServed) {
  Serve({.admit = [](const grpc::ServerContextBase&) { return absl::UnauthenticatedError("no key"); }});
  EXPECT_EQ(Ask(1), 0u);
  const grpc::Status status = stream_->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(status.error_message(), "no key");
}

TEST_F(BidiCallTest, RefusesALongMessage) {
  Serve({.longest = 100});
  v1::ControlCommand command;
  command.mutable_start()->set_request_id(std::string(101, 'a'));
  ASSERT_TRUE(stream_->Write(command));
  v1::ControlReport report;
  EXPECT_FALSE(stream_->Read(&report));
  const grpc::Status status = stream_->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("it may have 100"));
  service_->AwaitDone(1);
}

// Every message has to come, not only the first.
TEST_F(BidiCallTest, AStreamWhoseNextMessageDoesNotComeEnds) {
  Arrivals arrivals({.bytes = 1, .message_bytes = 1, .patience = absl::Seconds(2), .short_patience = absl::Seconds(1)},
                    {}, RealClock(), [](const std::string&) { return 0; });
  Serve({.arrivals = &arrivals});
  ASSERT_EQ(Ask(1), 1u);
  const absl::Status status = FromGrpcStatus(stream_->Finish());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(status));
  service_->AwaitDone(1);
  server_.reset();
}

TEST_F(BidiCallTest, WhoIsRefusedOrGoneWhileItsMessageWaitsIsForgotten) {
  testing::WaitingCalls waiting;
  Arrivals arrivals({.bytes = 1,
                     .message_bytes = 1,
                     .max_waiting = 1,
                     .patience = absl::Minutes(1),
                     .short_patience = absl::Minutes(1)},
                    waiting.watcher(), RealClock(), [](const std::string&) { return 0; });
  Serve({.arrivals = &arrivals});
  ASSERT_EQ(Ask(1), 1u);  // its next message is read: others wait
  grpc::ClientContext second, third;
  const auto stub = v1::Worker::NewStub(channel_);
  const auto waits = stub->Control(&second);
  waiting.Await(1);
  const auto refused = stub->Control(&third);
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  second.TryCancel();
  EXPECT_EQ(waits->Finish().error_code(), grpc::StatusCode::CANCELLED);
  waiting.Await(0);
  EXPECT_EQ(Ask(2), 2u);
  stream_->WritesDone();
  EXPECT_TRUE(stream_->Finish().ok());
  service_->AwaitDone(3);
  server_.reset();
}

TEST_F(BidiCallTest, AnAnswerThatIsNotTakenIsCutOff) {
  std::promise<void> cut;
  Departures departures({.bytes = 8 << 20, .min_rate = 8 << 20, .patience = absl::Milliseconds(100)},
                        {.cut = [&](DepartureWatcher::Cut) { cut.set_value(); }}, RealClock());
  Serve({.departures = &departures});
  ASSERT_EQ(Ask(1), 1u);
  RawHttp2 client(server_->address());
  const uint32_t call = client.Call(kControl);
  v1::ControlCommand command;
  command.mutable_start()->set_request_id(kLongWord);
  const std::string asks = command.SerializeAsString();
  client.Send(call, RawHttp2::Prefix(static_cast<uint32_t>(asks.size())) + asks);
  while (!client.Ended(call) && client.Pump(absl::Milliseconds(100))) {
  }
  EXPECT_TRUE(client.Ended(call));
  cut.get_future().wait();
  EXPECT_EQ(Ask(2), 2u);
  server_.reset();
}

}  // namespace
}  // namespace runahead
