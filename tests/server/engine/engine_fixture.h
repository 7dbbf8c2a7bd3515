// The engine service before a whole router with fake workers, and clients of it as gateways of the field are.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "server/engine/engine_service.h"
#include "server/rpc/channel.h"
#include "server/rpc/server.h"
#include "server/rpc/status.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/patience.h"
#include "tests/testing/router_fixture.h"

namespace runahead::testing {

using EngineMetadata = std::map<std::string, std::string>;

// One Generate call.
class EngineCall {
 public:
  EngineCall(vllm::grpc::engine::VllmEngine::StubInterface& stub, const vllm::grpc::engine::GenerateRequest& request,
             const EngineMetadata& metadata = {}, absl::Duration timeout = LongestWait()) {
    for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
    SetTimeout(context_, timeout);
    reader_ = stub.Generate(&context_, request);
  }
  std::optional<vllm::grpc::engine::GenerateResponse> Read() {
    vllm::grpc::engine::GenerateResponse response;
    if (!reader_->Read(&response)) return std::nullopt;
    return response;
  }
  void Cancel() { context_.TryCancel(); }
  absl::Status Finish() {
    while (const auto response = Read()) all.push_back(*response);
    return FromGrpcStatus(reader_->Finish());
  }

  std::vector<vllm::grpc::engine::GenerateResponse> all;  // that Finish read

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderInterface<vllm::grpc::engine::GenerateResponse>> reader_;
};

// Drains a server on a thread of its own. `end_calls` ends those that a test which fails leaves.
class Draining {
 public:
  Draining(RpcServer& server, std::function<void()> end_calls)
      : end_calls_(std::move(end_calls)), thread_([this, &server] { all_ended_ = server.Drain(LongestWait()); }) {}
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

class EngineServiceTest : public RouterFixture {
 protected:
  void StartEngine(const RouterSetup& setup = {}, CallDoor door = {}) {
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
    stub_of_engine_ = vllm::grpc::engine::VllmEngine::NewStub(testing::Connected(MakeChannel(engine_server_->address())));
  }
  void Connect() {
    engine_->Connect(server_->InProcessChannel(), engine_server_->gate(), [this] { return healthy_.load(); });
  }
  void StartConnected(const RouterSetup& setup = {}) {
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
  vllm::grpc::engine::GenerateRequest Endless(const std::string& name) {
    decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.decode_until = 2; });
    return Request(name, 100);
  }
  // One whose sessions wait for clients longer than any test: what cuts those off is the engine service.
  static RouterSetup PatientRouter() {
    RouterSetup setup;
    setup.stall_timeout = 2 * LongestWait();
    return setup;
  }
  // A client of it takes nothing of a stream beyond what its window has room for, until it reads.
  std::unique_ptr<vllm::grpc::engine::VllmEngine::StubInterface> StubThatReadsNothing() {
    return vllm::grpc::engine::VllmEngine::NewStub(
        MakeChannel(engine_server_->address(), kProcessKeepAlive, {}, {}, /*read_ahead=*/false));
  }
  vllm::grpc::engine::GenerateRequest MoreThanAWindow() {
    vllm::grpc::engine::GenerateRequest request = Request("stalled", 4000);
    request.mutable_tokenized()->clear_input_ids();
    request.mutable_tokenized()->add_input_ids(5);
    request.mutable_sampling_params()->set_logprobs(20);
    decode_[0]->Change([](FakeBehaviour& behaviour) { behaviour.logprobs = 20; });
    return request;
  }
  static vllm::grpc::engine::GenerateRequest Request(const std::string& name, uint32_t max_tokens) {
    vllm::grpc::engine::GenerateRequest request;
    request.set_request_id(name);
    request.set_stream(true);
    for (uint32_t id = 3; id < 20; ++id) request.mutable_tokenized()->add_input_ids(id);
    request.mutable_sampling_params()->set_max_tokens(max_tokens);
    request.mutable_sampling_params()->set_temperature(0);
    return request;
  }
  absl::Status Abort(const std::vector<std::string>& names, const EngineMetadata& metadata = {}) {
    grpc::ClientContext context;
    for (const auto& [key, value] : metadata) context.AddMetadata(key, value);
    vllm::grpc::engine::AbortRequest request;
    vllm::grpc::engine::AbortResponse response;
    for (const std::string& name : names) request.add_request_ids(name);
    return FromGrpcStatus(stub_of_engine_->Abort(&context, request, &response));
  }
  std::vector<vllm::grpc::engine::GetTokenizerChunk> Tokenizer(absl::Status& status) {
    grpc::ClientContext context;
    const auto reader = stub_of_engine_->GetTokenizer(&context, {});
    std::vector<vllm::grpc::engine::GetTokenizerChunk> chunks;
    for (vllm::grpc::engine::GetTokenizerChunk chunk; reader->Read(&chunk);) chunks.push_back(chunk);
    status = FromGrpcStatus(reader->Finish());
    return chunks;
  }

  FakeClock clock_;
  std::atomic<bool> healthy_ = true;
  absl::StatusOr<std::string> archive_ = std::string("zip");
  std::atomic<int> archived_ = 0;
  std::unique_ptr<EngineService> engine_;
  std::unique_ptr<RpcServer> engine_server_;
  std::unique_ptr<vllm::grpc::engine::VllmEngine::StubInterface> stub_of_engine_;
};

}  // namespace runahead::testing
