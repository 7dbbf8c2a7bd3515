// The engine service before a whole router with fake workers, as a gateway of the field sees it.
#include "server/engine/engine_service.h"

#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/testing/await.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/router_fixture.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;
using ::testing::ElementsAre;
using testing::FakeBehaviour;
using ::testing::HasSubstr;
using Metadata = std::map<std::string, std::string>;

// One Generate call.
class EngineCall {
 public:
  EngineCall(engine::VllmEngine::StubInterface& stub, const engine::GenerateRequest& request,
             const Metadata& metadata = {}, absl::Duration timeout = testing::LongestWait()) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    SetTimeout(context_, timeout);
    reader_ = stub.Generate(&context_, request);
  }
  std::optional<engine::GenerateResponse> Read() {
    engine::GenerateResponse response;
    if (!reader_->Read(&response)) return std::nullopt;
    return response;
  }
  void Cancel() { context_.TryCancel(); }
  absl::Status Finish() {
    while (const auto response = Read()) all.push_back(*response);
    return FromGrpcStatus(reader_->Finish());
  }

  std::vector<engine::GenerateResponse> all;  // that Finish read

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<engine::GenerateResponse>> reader_;
};

// Drains a server on a thread of its own. `end_calls` ends those that a test which fails leaves.
class Draining {
 public:
  Draining(RpcServer& server, std::function<void()> end_calls)
      : end_calls_(std::move(end_calls)),
        thread_([this, &server] { all_ended_ = server.Drain(testing::LongestWait()); }) {}
  ~Draining() {
    if (!thread_.joinable()) return;
    end_calls_();
    thread_.join();
  }
  // Waits for its end. Whether all calls had ended by themselves.
  bool AllEnded() {
    thread_.join();
    return all_ended_;
  }

 private:
  const std::function<void()> end_calls_;
  bool all_ended_ = false;
  std::thread thread_;  // the last, for it uses the rest
};

class EngineServiceTest : public testing::RouterFixture {
 protected:
  void StartEngine(const testing::RouterSetup& setup = {}, CallDoor door = {}) {
    Start(setup);
    EngineParts parts{clock_};
    parts.end_ids = {2};
    parts.begin_id = 1;
    parts.load = [] { return EngineParts::Load{3, 2}; };
    parts.tokenizer_archive = [this] { return Archive(); };
    engine_ = std::make_unique<EngineService>(std::move(parts), std::move(door));
    RpcServerOptions rpc;
    rpc.listen = "127.0.0.1:0";
    rpc.services = {engine_.get()};
    auto started = RpcServer::Start(rpc);
    ASSERT_TRUE(started.ok()) << started.status();
    engine_server_ = *std::move(started);
    stub_of_engine_ = engine::VllmEngine::NewStub(MakeChannel(engine_server_->address()));
  }
  void Connect() {
    engine_->Connect(server_->InProcessChannel(), engine_server_->gate(), [this] { return healthy_.load(); });
  }
  void StartConnected(const testing::RouterSetup& setup = {}) {
    StartEngine(setup);
    Connect();
  }
  void TearDown() override {
    engine_server_.reset();
    engine_.reset();
    RouterFixture::TearDown();
  }
  absl::StatusOr<std::shared_ptr<const std::string>> Archive() {
    ++archived_;
    if (!archive_.ok()) return archive_.status();
    return std::make_shared<const std::string>(*archive_);
  }
  // A request of `tokens` that goes on until it is ended.
  engine::GenerateRequest Endless(const std::string& name) {
    decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.decode_until = 2; });
    return Request(name, 100);
  }
  // One whose sessions wait for clients longer than any test: what cuts those off is the engine service.
  static testing::RouterSetup PatientRouter() {
    testing::RouterSetup setup;
    setup.stall_timeout = 2 * testing::LongestWait();
    return setup;
  }
  // A client of it takes nothing of a stream beyond what its window has room for, until it reads.
  std::unique_ptr<engine::VllmEngine::StubInterface> StubThatReadsNothing() {
    return engine::VllmEngine::NewStub(
        MakeChannel(engine_server_->address(), kProcessKeepAlive, {}, {}, /*read_ahead=*/false));
  }
  engine::GenerateRequest MoreThanAWindow() {
    engine::GenerateRequest request = Request("stalled", 4000);
    request.mutable_tokenized()->clear_input_ids();
    request.mutable_tokenized()->add_input_ids(5);
    request.mutable_sampling_params()->set_logprobs(20);
    decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.logprobs = 20; });
    return request;
  }
  static engine::GenerateRequest Request(const std::string& name, uint32_t max_tokens) {
    engine::GenerateRequest request;
    request.set_request_id(name);
    request.set_stream(true);
    for (uint32_t id = 3; id < 20; ++id) request.mutable_tokenized()->add_input_ids(id);
    request.mutable_sampling_params()->set_max_tokens(max_tokens);
    request.mutable_sampling_params()->set_temperature(0);
    return request;
  }
  absl::Status Abort(const std::vector<std::string>& names, const Metadata& metadata = {}) {
    grpc::ClientContext context;
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
    engine::AbortRequest request;
    engine::AbortResponse response;
    for (const std::string& name : names) request.add_request_ids(name);
    return FromGrpcStatus(stub_of_engine_->Abort(&context, request, &response));
  }
  std::vector<engine::GetTokenizerChunk> Tokenizer(absl::Status& status) {
    grpc::ClientContext context;
    const auto reader = stub_of_engine_->GetTokenizer(&context, {});
    std::vector<engine::GetTokenizerChunk> chunks;
    for (engine::GetTokenizerChunk chunk; reader->Read(&chunk);) chunks.push_back(chunk);
    status = FromGrpcStatus(reader->Finish());
    return chunks;
  }

  testing::FakeClock clock_;
  std::atomic<bool> healthy_ = true;
  absl::StatusOr<std::string> archive_ = std::string("zip");
  std::atomic<int> archived_ = 0;
  std::unique_ptr<EngineService> engine_;
  std::unique_ptr<RpcServer> engine_server_;
  std::unique_ptr<engine::VllmEngine::StubInterface> stub_of_engine_;
};

TEST_F(EngineServiceTest, AStreamIsThePublicServicesAnswer) {
  StartConnected();
  v1::GenerateRequest same;
  for (int id = 3; id < 20; ++id) same.mutable_token_ids()->add_ids(id);
  same.mutable_stop()->set_max_tokens(5);
  const testing::Got wanted = Generate(same);
  ASSERT_TRUE(wanted.status.ok()) << wanted.status;
  EngineCall call(*stub_of_engine_, Request("one", 5));
  ASSERT_TRUE(call.Finish().ok());
  ASSERT_GE(call.all.size(), 2u);
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < call.all.size(); ++i) {
    const auto& chunk = call.all[i].chunk();
    ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
    EXPECT_EQ(chunk.completion_tokens(), ids.size());
  }
  EXPECT_EQ(ids, wanted.ids());
  const engine::GenerateComplete& complete = call.all.back().complete();
  EXPECT_EQ(std::vector<int32_t>(complete.output_ids().begin(), complete.output_ids().end()), wanted.ids());
  EXPECT_EQ(complete.finish_reason(), "length");
  EXPECT_EQ(complete.prompt_tokens(), 17u);
  EXPECT_EQ(complete.completion_tokens(), 5u);
}

TEST_F(EngineServiceTest, WhatIsNotStreamedComesAtOnceForEachAnswer) {
  StartConnected();
  engine::GenerateRequest request = Request("several", 4);
  request.set_stream(false);
  request.mutable_sampling_params()->set_n(3);
  EngineCall call(*stub_of_engine_, request);
  ASSERT_TRUE(call.Finish().ok());
  ASSERT_EQ(call.all.size(), 3u);
  std::vector<uint32_t> indices;
  for (const engine::GenerateResponse& response : call.all) {
    EXPECT_EQ(response.complete().output_ids_size(), 4);
    indices.push_back(response.complete().index());
  }
  EXPECT_THAT(indices, ElementsAre(0, 1, 2));
}

TEST_F(EngineServiceTest, ErrorsAreThePublicServicesAndNameFields) {
  StartConnected();
  engine::GenerateRequest request = Request("wrong", 4);
  request.mutable_sampling_params()->set_top_p(2);
  const absl::Status ours = EngineCall(*stub_of_engine_, request).Finish();
  EXPECT_EQ(ours.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BlamedField(ours), "sampling.top_p") << ours;
  request.mutable_sampling_params()->clear_top_p();
  request.mutable_mm_inputs();
  const absl::Status unknown = EngineCall(*stub_of_engine_, request).Finish();
  EXPECT_EQ(BlamedField(unknown), "mm_inputs") << unknown;
  const absl::Status too_long = EngineCall(*stub_of_engine_, Request("long", 100'000)).Finish();
  EXPECT_EQ(BlamedField(too_long), "stop.max_tokens") << too_long;
}

TEST_F(EngineServiceTest, OverloadSaysWhenToTryAgain) {
  testing::RouterSetup setup;
  setup.max_streams = 1;
  setup.queue_size = 0;
  StartConnected(setup);
  EngineCall first(*stub_of_engine_, Endless("first"));
  decode_[0]->AwaitDecodes(1);
  const absl::Status refused = EngineCall(*stub_of_engine_, Request("second", 4)).Finish();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_TRUE(RetryAfter(refused).has_value());
  first.Cancel();
  EXPECT_EQ(first.Finish().code(), absl::StatusCode::kCancelled);
}

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

TEST_F(EngineServiceTest, KeysGoOnToThePublicServiceAndCountOnce) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/engine_service_test_", getpid(), ".yaml");
  ASSERT_TRUE(WriteTextFile(
                  path, absl::StrCat("keys:\n  - {name: alice, hash: ", ApiKeyHashText(HashOfApiKey("secret")), "}\n"))
                  .ok());
  KeyMetrics key_metrics(metric_registry_);
  const auto ring = KeyRing::Open(path, key_metrics, RealClock());
  std::filesystem::remove(path);
  ASSERT_TRUE(ring.ok()) << ring.status();
  KeyDoor keys(**ring, key_metrics, RealClock());
  testing::RouterSetup setup;
  setup.keys = &keys;
  CallDoor door;
  door.admit = [&keys](const grpc::ServerContextBase& context) { return keys.Recognize(context); };
  StartEngine(setup, std::move(door));
  Connect();
  EXPECT_TRUE(EngineCall(*stub_of_engine_, Request("good", 2), {{"authorization", "Bearer secret"}}).Finish().ok());
  EXPECT_EQ(Metric("runahead_key_requests_total{key=\"alice\"}"), 1);
  const Metadata guessed = {{"authorization", "Bearer guessed"}};
  EXPECT_EQ(EngineCall(*stub_of_engine_, Request("bad", 2), guessed).Finish().code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Abort({"good"}, guessed).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Metric("runahead_unauthenticated_calls_total{reason=\"unknown\"}"), 2);
  TearDown();  // before the keys
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

TEST_F(EngineServiceTest, BeforeItIsConnectedItIsNotHealthyAndAnswersNothing) {
  StartEngine();
  EXPECT_EQ(EngineCall(*stub_of_engine_, Request("early", 2)).Finish().code(), absl::StatusCode::kUnavailable);
  grpc::ClientContext context, again, other;
  engine::HealthCheckResponse health;
  ASSERT_TRUE(stub_of_engine_->HealthCheck(&context, {}, &health).ok());
  EXPECT_FALSE(health.healthy());
  Connect();
  ASSERT_TRUE(stub_of_engine_->HealthCheck(&again, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
  healthy_ = false;
  ASSERT_TRUE(stub_of_engine_->HealthCheck(&other, {}, &health).ok());
  EXPECT_FALSE(health.healthy());
  EXPECT_NE(health.message(), "");
}

TEST_F(EngineServiceTest, SaysWhatItServesAndItsLoad) {
  model_.advice.sampling.set_temperature(0.6F);
  model_.advice.sampling.set_top_k(20);
  StartConnected();
  grpc::ClientContext of_model, of_server, of_loads, of_rank;
  engine::GetModelInfoResponse model;
  ASSERT_TRUE(stub_of_engine_->GetModelInfo(&of_model, {}, &model).ok());
  EXPECT_EQ(model.served_model_name(), model_.name);
  EXPECT_TRUE(model.is_generation());
  EXPECT_EQ(model.tokenizer_path(), "/dev/null/GetTokenizer");
  EXPECT_EQ(model.max_context_length(), static_cast<uint32_t>(testing::kFixtureContext));
  EXPECT_EQ(model.vocab_size(), static_cast<uint32_t>(model_.vocabulary_size));
  EXPECT_THAT(model.eos_token_ids(), ElementsAre(2));
  EXPECT_EQ(model.bos_token_id(), 1);
  EXPECT_EQ(model.default_sampling_params_json(), R"({"temperature": 0.6, "top_k": 20})");
  engine::GetServerInfoResponse server;
  clock_.Advance(absl::Seconds(5));
  ASSERT_TRUE(stub_of_engine_->GetServerInfo(&of_server, {}, &server).ok());
  EXPECT_EQ(server.active_requests(), 5u);
  EXPECT_EQ(server.uptime_seconds(), 5);
  engine::GetLoadsResponse loads;
  ASSERT_TRUE(stub_of_engine_->GetLoads(&of_loads, {}, &loads).ok());
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).num_running_reqs(), 3);
  EXPECT_EQ(loads.loads(0).num_waiting_reqs(), 2);
  EXPECT_EQ(loads.loads(0).num_total_reqs(), 5);
  engine::GetLoadsRequest rank;
  rank.set_dp_rank(1);
  ASSERT_TRUE(stub_of_engine_->GetLoads(&of_rank, rank, &loads).ok());
  EXPECT_EQ(loads.loads_size(), 0) << "there is no other rank";
}

TEST_F(EngineServiceTest, TheTokenizerComesInPiecesWithItsSum) {
  archive_ = std::string(TokenizerStream::kChunkBytes * 2 + 5, 'z');
  StartConnected();
  for (int i = 0; i < 2; ++i) {
    absl::Status status;
    const std::vector<engine::GetTokenizerChunk> chunks = Tokenizer(status);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(chunks.size(), 3u);
    std::string bytes;
    for (const engine::GetTokenizerChunk& chunk : chunks) bytes += chunk.data();
    EXPECT_EQ(bytes, *archive_);
    EXPECT_EQ(chunks[0].sha256(), "");
    EXPECT_EQ(chunks[2].sha256(), "d242cbf0c3397fbbd4ef7bcf45c83f870d0a60cb1376a2b9eb29f92b7ef59d21");
  }
  EXPECT_EQ(archived_, 1);
}

TEST_F(EngineServiceTest, ATokenizerThatCannotBeMadeIsAnErrorAndTriedAgain) {
  archive_ = absl::UnimplementedError("not of this vocabulary");
  StartConnected();
  absl::Status status;
  EXPECT_TRUE(Tokenizer(status).empty());
  EXPECT_EQ(status, absl::UnimplementedError("not of this vocabulary"));
  archive_ = std::string("zip");
  EXPECT_EQ(Tokenizer(status).size(), 1u);
  EXPECT_TRUE(status.ok()) << status;
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

}  // namespace
}  // namespace runahead
