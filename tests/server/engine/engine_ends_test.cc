// How calls of the engine service end before their answers do: aborts, clients that go away or take nothing, drains.
#include <grpcpp/support/client_interceptor.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/engine/engine_fixture.h"
#include "tests/testing/await.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;
using testing::Draining;
using testing::EngineCall;
using testing::EngineServiceTest;
using testing::FakeBehaviour;
using ::testing::HasSubstr;

TEST_F(EngineServiceTest, AClientThatGoesAwayEndsItsRequest) {
  StartConnected();
  EngineCall call(*stub_of_engine_, Endless("gone"));
  ASSERT_TRUE(call.Read().has_value());
  decode_[0]->AwaitDecodes(1);
  call.Cancel();
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
  decode_[0]->AwaitLeases(0);
}

TEST_F(EngineServiceTest, TheDeadlineIsThePublicServicesToo) {
  StartConnected();
  EngineCall call(*stub_of_engine_, Endless("late"), {}, absl::Milliseconds(300));
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kDeadlineExceeded);
  decode_[0]->AwaitLeases(0);
}

TEST_F(EngineServiceTest, AbortEndsAllOfAName) {
  StartConnected();
  EngineCall first(*stub_of_engine_, Endless("twice")), second(*stub_of_engine_, Endless("twice")),
      other(*stub_of_engine_, Endless("other")), unnamed(*stub_of_engine_, Endless(""));
  decode_[0]->AwaitDecodes(4);
  ASSERT_TRUE(Abort({"twice", "nobody's", ""}).ok());
  for (EngineCall* const call : {&first, &second}) {
    const absl::Status ended = call->Finish();
    EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(std::string(ended.message()), HasSubstr("aborted"));
  }
  decode_[0]->AwaitLeases(2);
  for (EngineCall* const call : {&other, &unnamed}) call->Cancel();
  decode_[0]->AwaitLeases(0);
}

TEST_F(EngineServiceTest, AbortEndsNoRequestOfAnotherKey) {
  StartConnected();
  EngineCall call(*stub_of_engine_, Endless("mine"), {{"authorization", "Bearer alice"}});
  decode_[0]->AwaitDecodes(1);
  ASSERT_TRUE(Abort({"mine"}, {{"authorization", "Bearer bob"}}).ok());
  ASSERT_TRUE(Abort({"mine"}).ok());
  ASSERT_TRUE(call.Read().has_value());
  EXPECT_EQ(decode_[0]->leases(), 1u);
  ASSERT_TRUE(Abort({"mine"}, {{"authorization", "Bearer alice"}}).ok());
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineServiceTest, WhoTakesNothingIsCutOff) {
  StartConnected(PatientRouter());
  const auto stub = StubThatReadsNothing();
  EngineCall call(*stub, MoreThanAWindow());
  ASSERT_TRUE(MetricBecomes("runahead_requests_in_flight", 1));
  ASSERT_TRUE(testing::Await("the request has ended", [&] {
    clock_.Advance(absl::Seconds(31));
    return Metric("runahead_requests_in_flight") == 0;
  }));
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
}

TEST_F(EngineServiceTest, WhoTakesNothingIsCutOffWhileTheServerDrains) {
  archive_ = std::string(size_t{8} << 20, 'z');
  StartConnected(PatientRouter());
  const auto stub = StubThatReadsNothing();
  EngineCall call(*stub, MoreThanAWindow());
  grpc::ClientContext context;
  const auto tokenizer = stub->GetTokenizer(&context, {});
  ASSERT_TRUE(testing::Await("both calls are there", [&] { return engine_server_->gate().inside() == 2; }));
  Draining draining(*engine_server_, [&] {
    context.TryCancel();
    call.Cancel();
  });
  ASSERT_TRUE(testing::Await("it has drained", [&] {
    clock_.Advance(absl::Seconds(31));
    return engine_server_->gate().inside() == 0;
  }));
  EXPECT_TRUE(draining.AllEnded());
}

TEST_F(EngineServiceTest, TokenizersThatNobodyTakesAreBounded) {
  archive_ = std::string(size_t{8} << 20, 'z');
  ByteBudget memory(TokenizerStream::kMemory * 3 / 2);
  CallDoor door;
  door.memory = &memory;
  StartEngine({}, std::move(door));
  Connect();
  const auto stub = StubThatReadsNothing();
  grpc::ClientContext context;
  const auto reader = stub->GetTokenizer(&context, {});
  ASSERT_TRUE(testing::Await("it has its memory", [&] { return memory.taken() >= TokenizerStream::kMemory; }));
  absl::Status refused;
  EXPECT_TRUE(Tokenizer(refused).empty());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_TRUE(RetryAfter(refused).has_value());
  context.TryCancel();
  EXPECT_TRUE(testing::Await("it has given its memory back", [&] { return memory.taken() == 0; }));
  EXPECT_FALSE(Tokenizer(refused).empty());
  EXPECT_TRUE(refused.ok()) << refused;
  TearDown();  // before the memory
}

TEST_F(EngineServiceTest, CallsThatRunMayEndWhileTheServerDrains) {
  StartConnected();
  EngineCall call(*stub_of_engine_, Endless("last"));
  ASSERT_TRUE(call.Read().has_value());
  Draining draining(*engine_server_, [&] { call.Cancel(); });
  ASSERT_TRUE(testing::Await("the gate is closed", [&] { return engine_server_->gate().closed(); }));
  const absl::Status refused = EngineCall(*stub_of_engine_, Request("new", 2)).Finish();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryAfter(refused).has_value());
  grpc::ClientContext of_model;
  engine::GetModelInfoResponse info;
  EXPECT_EQ(stub_of_engine_->GetModelInfo(&of_model, {}, &info).error_code(), grpc::StatusCode::UNAVAILABLE);
  decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.decode_until = 1 << 30; });
  ASSERT_TRUE(Abort({"last"}).ok());
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(draining.AllEnded());
}

// Calls `on_begin` when a call of Generate has been made and has not begun.
class AtBegin final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit AtBegin(std::function<void()> on_begin) : on_begin_(std::move(on_begin)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(grpc::experimental::ClientRpcInfo* info) override {
    if (absl::EndsWith(info->method(), "/Generate")) on_begin_();
    return nullptr;
  }

 private:
  const std::function<void()> on_begin_;
};

TEST_F(EngineServiceTest, AnAbortBeforeThePublicServicesCallBeginsIsNotLost) {
  StartEngine();
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<AtBegin>([this] { EXPECT_TRUE(Abort({"early"}).ok()); }));
  engine_->Connect(MakeChannel(server_->address(), kProcessKeepAlive, std::move(interceptors)), engine_server_->gate(),
                   [] { return true; });
  const absl::Status ended = EngineCall(*stub_of_engine_, Endless("early")).Finish();
  EXPECT_EQ(ended.code(), absl::StatusCode::kCancelled) << ended;
  EXPECT_THAT(std::string(ended.message()), HasSubstr("aborted"));
}

TEST_F(EngineServiceTest, ARequestsMemoryIsGivenBackWhenItsAnswerBegins) {
  ByteBudget memory(int64_t{64} << 20);
  CallDoor door;
  door.memory = &memory;
  StartEngine({}, std::move(door));
  Connect();
  engine::GenerateRequest request = Endless("long");
  for (int i = 0; i < 2000; ++i) request.mutable_tokenized()->add_input_ids(5);
  decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.answers_leases = false; });
  EngineCall call(*stub_of_engine_, request, {}, 2 * testing::LongestWait());
  decode_[0]->AwaitUnanswered(1);  // nothing is said yet
  ASSERT_TRUE(testing::Await("the request has its memory", [&] { return memory.taken() >= 8000; }));
  decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.answers_leases = true; });
  ASSERT_TRUE(call.Read().has_value());
  EXPECT_TRUE(testing::Await("only what is kept of the answer is counted", [&] { return memory.taken() < 4000; }));
  call.Cancel();
  EXPECT_EQ(call.Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(testing::Await("nothing is", [&] { return memory.taken() == 0; }));
  TearDown();  // before the memory
}

}  // namespace
}  // namespace runahead
