// The engine service before a whole router with fake workers, as a gateway of the field sees it: what it answers.
#include "server/engine/engine_service.h"

#include <unistd.h>

#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/base/api_key.h"
#include "server/base/text_file.h"
#include "tests/server/engine/engine_fixture.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;
using ::testing::ElementsAre;
using testing::EngineCall;
using testing::EngineServiceTest;

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
  const testing::EngineMetadata guessed = {{"authorization", "Bearer guessed"}};
  EXPECT_EQ(EngineCall(*stub_of_engine_, Request("bad", 2), guessed).Finish().code(),
            absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Abort({"good"}, guessed).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(Metric("runahead_unauthenticated_calls_total{reason=\"unknown\"}"), 2);
  TearDown();  // before the keys
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

}  // namespace
}  // namespace runahead
