#include "server/router/router_process.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <httplib.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "server/base/address.h"
#include "server/base/descriptor.h"
#include "server/router/inference_service.h"
#include "server/rpc/channel.h"
#include "server/rpc/transport_options.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/utf8.h"
#include "tests/testing/await.h"
#include "tests/testing/connected_channel.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/gguf_builder.h"
#include "tests/testing/router_fixture.h"
#include "tests/testing/synthetic_gguf.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"
#include "worker/format/open_model.h"

namespace runahead {
namespace {

// Of a connection that comes to this process at the port.
int UserTimeoutMs(int port) {
  sockaddr_in to = {}, own = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  char settings;  // gRPC begins with them: then it has the connection
  EXPECT_EQ(recv(client.get(), &settings, 1, 0), 1);
  socklen_t size = sizeof(own);
  getsockname(client.get(), reinterpret_cast<sockaddr*>(&own), &size);
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer = {};
    size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sin_port != own.sin_port) continue;
    int timeout_ms = -1;
    size = sizeof(timeout_ms);
    if (getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &size) == 0) return timeout_ms;
  }
  return -1;
}

TEST(RouterProcess, ClientsMayStandStillForLongerThanOurOwnProcesses) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/router_process_", getpid(), ".gguf");
  ASSERT_TRUE(WriteSyntheticGguf(SyntheticModel(), path).ok());
  RouterOptions options;
  options.model = path;
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  std::filesystem::remove(path);
  ASSERT_TRUE(router.ok()) << router.status();
  EXPECT_EQ(UserTimeoutMs(ParseHostPort((*router)->address())->port), absl::ToInt64Milliseconds(absl::Minutes(4)));
  // Whoever takes nothing of its answer is ended by the router, which says why, long before the transport would do it.
  EXPECT_GT(kPublicKeepAlive.time, ServiceLimits().stall_timeout);
}

// Its own answers and, through its public service, those of the model.
TEST(RouterProcess, AnswersAsAnEngineAtItsPort) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/router_process_engine_", getpid(), ".gguf");
  const SyntheticModel model;
  ASSERT_TRUE(WriteSyntheticGguf(model, path).ok());
  RouterOptions options;
  options.model = path;
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  std::filesystem::remove(path);
  ASSERT_TRUE(router.ok()) << router.status();
  const auto stub = vllm::grpc::engine::VllmEngine::NewStub(testing::Connected(MakeChannel((*router)->address())));
  grpc::ClientContext of_health, of_model;
  vllm::grpc::engine::HealthCheckResponse health;
  ASSERT_TRUE(stub->HealthCheck(&of_health, {}, &health).ok());
  EXPECT_FALSE(health.healthy()) << "there is no worker";
  vllm::grpc::engine::GetModelInfoResponse info;
  ASSERT_TRUE(stub->GetModelInfo(&of_model, {}, &info).ok());
  EXPECT_EQ(info.served_model_name(), model.name);
  EXPECT_EQ(info.max_context_length(), model.context_length);
  EXPECT_GT(info.eos_token_ids_size(), 0);
  EXPECT_NE(info.tokenizer_path(), "") << "where nothing is, so that the archive is asked for";
  grpc::ClientContext of_tokenizer;
  const auto reader = stub->GetTokenizer(&of_tokenizer, {});
  std::string archive;
  for (vllm::grpc::engine::GetTokenizerChunk chunk; reader->Read(&chunk);) archive += chunk.data();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(archive.substr(0, 4), "PK\x03\x04");
}

// A vocabulary of 320 tokens, the last 20 of which were added without rows in the model's table.
std::string WriteWithFewerRows() {
  const SyntheticVocabulary vocabulary = MakeSyntheticVocabulary(320);
  GgufBuilder file;
  file.AddString("general.architecture", "llama");
  file.AddUint32("llama.context_length", 64);
  file.AddString("tokenizer.ggml.model", "gpt2");
  file.AddString("tokenizer.ggml.pre", "smollm");
  file.AddStrings("tokenizer.ggml.tokens", vocabulary.tokens);
  file.AddInts("tokenizer.ggml.token_type", vocabulary.types);
  file.AddStrings("tokenizer.ggml.merges", vocabulary.merges);
  file.AddTensor("token_embd.weight", WeightType::kF32, {2, 300}, std::string(2 * 300 * sizeof(float), '\0'));
  std::string path = absl::StrCat(::testing::TempDir(), "/fewer_rows_", getpid(), ".gguf");
  EXPECT_TRUE(file.Write(path).ok());
  return path;
}

TEST(RouterProcess, RefusesTokensThatTheModelHasNoRowFor) {
  RouterOptions options;
  options.model = WriteWithFewerRows();
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  std::filesystem::remove(options.model);
  ASSERT_TRUE(router.ok()) << router.status();
  const auto stub =
      v1::Inference::NewStub(grpc::CreateChannel((*router)->address(), grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(300);
  grpc::ClientContext context;
  v1::GenerateResponse response;
  const auto reader = stub->Generate(&context, request);
  EXPECT_FALSE(reader->Read(&response));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(status.error_message(), "token_ids.ids[0]: 300 is not in [0, 300)");
}

// What Tokenize gives, Generate and Detokenize take.
TEST(RouterProcess, TokenizeGivesNoTokensThatTheModelHasNoRowFor) {
  RouterOptions options;
  options.model = WriteWithFewerRows();
  options.workers = {{"both", "127.0.0.1:1"}};
  const auto router = RouterProcess::Start(options);
  const auto tokenizer = *Tokenizer::FromModel(**OpenModelFile(options.model));
  std::filesystem::remove(options.model);
  ASSERT_TRUE(router.ok()) << router.status();
  const auto stub =
      v1::Inference::NewStub(grpc::CreateChannel((*router)->address(), grpc::InsecureChannelCredentials()));
  int refused = 0;
  for (int32_t id = 0; id < 320; ++id) {
    grpc::ClientContext context;
    v1::TokenizeRequest request;
    request.set_text(tokenizer->Decode({id}, /*skip_special=*/false));
    v1::TokenizeResponse response;
    const grpc::Status status = stub->Tokenize(&context, request, &response);
    for (const int32_t given : response.ids()) EXPECT_LT(given, 300);
    if (status.ok()) continue;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::OUT_OF_RANGE);
    EXPECT_EQ(status.error_message(), absl::StrCat("text: its token ", id, " is none of the 300 that the model has"));
    ++refused;
  }
  EXPECT_EQ(refused, 20);
}

// A fresh router of the model, and workers that agree with it.
struct Cluster {
  Cluster(int prefill, int decode, const SyntheticModel& model = {}) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/router_series_", getpid(), ".gguf");
    EXPECT_TRUE(WriteSyntheticGguf(model, path).ok());
    const auto file = *OpenModelFile(path);
    RouterOptions options;
    options.model = path;
    for (int i = 0; i < prefill + decode; ++i) {
      const bool prefills = i < prefill;
      v1::Capabilities able =
          testing::FakeWorker::Able(absl::StrCat(prefills ? "prefill-" : "decode-", i),
                                    {prefills ? v1::WORKER_ROLE_PREFILL : v1::WORKER_ROLE_DECODE},
                                    absl::StrFormat("%016x", file->fingerprint()), SyntheticModel().context_length);
      able.set_tokenizer_fingerprint(absl::StrFormat("%016x", file->tokenizer_fingerprint()));
      able.set_chat_template_fingerprint(absl::StrFormat("%016x", file->chat_template_fingerprint()));
      if (!prefills) able.set_max_batch(8);
      workers.push_back(std::make_unique<testing::FakeWorker>(able));
      options.workers.push_back({prefills ? "prefill" : "decode", workers.back()->address()});
    }
    router = *RouterProcess::Start(options);
    std::filesystem::remove(path);
    stub = v1::Inference::NewStub(grpc::CreateChannel(router->address(), grpc::InsecureChannelCredentials()));
  }
  std::string MetricsPage() const {
    const auto page = httplib::Client("http://" + router->metrics_address()).Get("/metrics");
    return page ? page->body : "";
  }
  // Of each metric, by its name.
  std::map<std::string, int> CountSeries() const {
    const std::string page = MetricsPage();
    std::map<std::string, int> series;
    for (const absl::string_view line : absl::StrSplit(page, '\n', absl::SkipEmpty())) {
      if (line[0] != '#') ++series[std::string(line.substr(0, line.find_first_of("{ ")))];
    }
    return series;
  }

  std::vector<std::unique_ptr<testing::FakeWorker>> workers;
  std::unique_ptr<RouterProcess> router;
  std::unique_ptr<v1::Inference::Stub> stub;
};

v1::Model OnlyModel(const Cluster& cluster) {
  grpc::ClientContext context;
  v1::ListModelsResponse response;
  const grpc::Status status = cluster.stub->ListModels(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.models_size() == 1 ? response.models(0) : v1::Model();
}

// Prometheus refuses a whole page for one byte, and gRPC a whole message.
TEST(RouterProcess, AModelWhoseNameIsNoUtf8IsServedUnderOneThatIs) {
  SyntheticModel latin1;
  latin1.name = "Mod\xe8le \x1b[31m";
  const Cluster cluster(1, 1, latin1);
  const std::string name = "Mod\\xe8le \\x1b[31m";
  EXPECT_EQ(OnlyModel(cluster).name(), name);
  const std::string page = cluster.MetricsPage();
  EXPECT_TRUE(ReplaceInvalidUtf8(page) == page);
  EXPECT_NE(page.find("model=\"Mod\\\\xe8le \\\\x1b[31m\""), std::string::npos);
  v1::TokenizeRequest request;
  request.set_model(name);
  request.set_text("a");
  grpc::ClientContext context;
  v1::TokenizeResponse response;
  EXPECT_TRUE(cluster.stub->Tokenize(&context, request, &response).ok()) << "it is called as it is announced";
}

// The last 20 rows of the model's tables are of no token, and are drawn all the same.
TEST(RouterProcess, WhatAPaddedHeadDrawsIsTakenAgain) {
  SyntheticModel padded;
  padded.tokens = 300;
  const Cluster cluster(1, 1, padded);
  for (const auto& worker : cluster.workers) {
    worker->Change([](testing::FakeBehaviour& behaviour) { behaviour.token = [](int64_t) { return 310; }; });
  }
  EXPECT_EQ(OnlyModel(cluster).vocabulary_size(), 320);
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(5);
  request.mutable_stop()->set_max_tokens(2);
  const auto drawn = [&] { return testing::Call(*cluster.stub, request).Finish(); };
  EXPECT_TRUE(testing::Await("the workers have joined", [&] {
    return OnlyModel(cluster).prefill_workers() == 1 && OnlyModel(cluster).decode_workers() == 1;
  }));
  const testing::Got first = drawn();
  ASSERT_TRUE(first.status.ok()) << first.status;
  ASSERT_EQ(first.ids(), (std::vector<int32_t>{310, 310}));
  EXPECT_EQ(first.text(), "");
  request.mutable_token_ids()->add_ids(310);
  request.add_output_ids(310);
  const testing::Got next = drawn();
  EXPECT_TRUE(next.status.ok()) << next.status;
  request.clear_output_ids();
  request.mutable_stop()->add_stop_ids(310);
  const testing::Got stopped = drawn();
  EXPECT_TRUE(stopped.status.ok()) << stopped.status;
  EXPECT_EQ(stopped.ids(), (std::vector<int32_t>{310}));
  v1::DetokenizeRequest ids;
  ids.add_ids(310);
  v1::DetokenizeResponse text;
  grpc::ClientContext context;
  EXPECT_TRUE(cluster.stub->Detokenize(&context, ids, &text).ok());
  EXPECT_EQ(text.text(), "");
}

// Every series is memory in each Prometheus that scrapes this, for as long as it keeps data. Was: 1,020.
TEST(RouterProcess, AFreshRouterOfThirtyTwoWorkersHasFewSeries) {
  const Cluster cluster(16, 16);
  std::map<std::string, int> series;
  EXPECT_TRUE(testing::Await("all decode workers have slots", [&] {
    series = cluster.CountSeries();
    return series["runahead_decode_slots"] >= 16 * 4;
  }));
  EXPECT_EQ(series["runahead_decode_slots"], 16 * 4);
  int all = 0;
  for (const auto& [name, count] : series) all += count;
  EXPECT_EQ(all, 910) << "a new one? docs/metrics.md says how many there are; below 1,000 they stay";
}

}  // namespace
}  // namespace runahead
