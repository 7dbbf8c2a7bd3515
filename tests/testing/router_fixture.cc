#include "tests/testing/router_fixture.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"
#include "tests/testing/await.h"
#include "tests/testing/synthetic_gguf.h"
#include "worker/format/gguf.h"

namespace runahead::testing {

std::vector<int32_t> Got::ids() const {
  std::vector<int32_t> ids;
  for (const v1::GenerateResponse& response : responses) {
    ids.insert(ids.end(), response.tokens().ids().begin(), response.tokens().ids().end());
  }
  return ids;
}

std::string Got::text() const {
  std::string text;
  for (const v1::GenerateResponse& response : responses) {
    absl::StrAppend(&text, response.tokens().text(), response.finished().text());
  }
  return text;
}

Call::Call(v1::Inference::StubInterface& stub, const v1::GenerateRequest& request, absl::Duration timeout,
           const std::vector<std::string>& traceparents, const std::string& tenant,
           const std::map<std::string, std::string>& metadata) {
  SetTimeout(context_, timeout);
  if (!tenant.empty()) context_.AddMetadata("runahead-tenant", tenant);
  for (const auto& [key, value] : metadata) context_.AddMetadata(key, value);
  for (const std::string& header : traceparents) context_.AddMetadata(kTraceparent, header);
  reader_ = stub.Generate(&context_, request);
}

std::optional<v1::GenerateResponse> Call::Read() {
  v1::GenerateResponse response;
  if (!reader_->Read(&response)) return std::nullopt;
  got_.responses.push_back(response);
  return response;
}

Got Call::Finish() {
  while (Read()) {
  }
  got_.status = FromGrpcStatus(reader_->Finish());
  return got_;
}

void RouterFixture::SetUp() {
  const std::string path = absl::StrCat(::testing::TempDir(), "/router_fixture_", getpid(), ".gguf");
  SyntheticModel model;
  model.context_length = kFixtureContext;
  ASSERT_TRUE(WriteSyntheticGguf(model, path).ok());
  const auto file = OpenGguf(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove(path);
  tokenizer_ = *Tokenizer::FromModel(**file);
  chat_template_ = ChatTemplate::FromModel(**file, *tokenizer_);
  model_ = {"tiny", absl::StrFormat("%016x", (*file)->fingerprint()), kFixtureContext,
            static_cast<int>(tokenizer_->vocab_size())};
  model_.tokenizer_fingerprint = absl::StrFormat("%016x", (*file)->tokenizer_fingerprint());
  model_.chat_template_fingerprint = absl::StrFormat("%016x", (*file)->chat_template_fingerprint());
}

v1::Capabilities RouterFixture::Able(const std::string& name, v1::WorkerRole role) {
  v1::Capabilities able = FakeWorker::Able(name, {role}, model_.fingerprint, kFixtureContext);
  able.set_tokenizer_fingerprint(model_.tokenizer_fingerprint);
  able.set_chat_template_fingerprint(model_.chat_template_fingerprint);
  return able;
}

void RouterFixture::Start(const RouterSetup& setup) {
  std::vector<WorkerSpec> specs;
  const auto start = [&](int count, const char* role, v1::WorkerRole which, auto& workers) {
    for (int i = 0; i < count; ++i) {
      v1::Capabilities able = Able(absl::StrCat(role, "-", i), which);
      if (setup.able) setup.able(able);
      workers.push_back(std::make_unique<FakeWorker>(able));
      if (setup.before) setup.before(*workers.back());
      specs.push_back({role, workers.back()->address()});
    }
  };
  start(setup.prefill, "prefill", v1::WORKER_ROLE_PREFILL, prefill_);
  start(setup.decode, "decode", v1::WORKER_ROLE_DECODE, decode_);
  specs.insert(specs.end(), setup.vacant, {"prefill", "", "_worker._tcp.prefill"});
  metrics_ = std::make_unique<RouterMetrics>(metric_registry_, model_.name);
  fleet_ = std::make_unique<Fleet>(specs, *metrics_, RealClock());
  queue_ = std::make_unique<FleetQueue>(*fleet_, setup.queue_size, *metrics_, RealClock());
  sequencer_ = std::make_unique<Sequencer>();
  Clock& clock = setup.clock != nullptr ? *setup.clock : RealClock();
  parts_.reset(new RouterParts{
      *fleet_, *queue_, *sequencer_, *metrics_, clock, model_, tokenizer_, chat_template_, table_, Schedule::kKvr,
      setup.experiments, Tracer::Create(ParseTraceMode(setup.trace), 16, setup.exported), false, setup.absence_timeout,
      /*tenant_weights=*/{}, std::make_unique<OutputForecast>(setup.reserve),
      std::make_unique<KnownIndex>(setup.known_beginnings, *fleet_, *metrics_)});
  parts_->move_patience = setup.move_patience;
  parts_->keep_patience = kInVain;
  registry_ = std::make_unique<WorkerRegistry>(*fleet_, *sequencer_, model_, setup.dtype, RealClock(), MemberAccess(),
                                               AlwaysHears(), parts_->known.get());
  service_ = std::make_unique<InferenceService>(
      *parts_, ServiceLimits{setup.max_sessions, setup.stall_timeout, setup.max_streams}, CallDoor(), setup.keys);
  cache_ = std::make_unique<CacheService>(*parts_, CallDoor(), setup.keys);
  RpcServerOptions rpc;
  rpc.listen = "127.0.0.1:0";
  rpc.services = {service_.get(), cache_.get()};
  server_ = *RpcServer::Start(rpc);
  service_->SetGate(&server_->gate());
  cache_->SetGate(&server_->gate());
  // As clients have it, with gRPC's own limits; but for a connection of its own, as ports come again.
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(), own);
  stub_ = v1::Inference::NewStub(channel);
  cache_stub_ = v1::Cache::NewStub(channel);
  if (!setup.able) AwaitReady(setup.prefill, setup.decode);
}

void RouterFixture::AwaitReady(int prefill, int decode) {
  EXPECT_TRUE(Await(absl::StrCat(prefill, " prefill workers and ", decode, " decode workers are ready"),
                    [&] { return fleet_->ready_prefill() == prefill && fleet_->ready_decode() == decode; }))
      << fleet_->ready_prefill() << " and " << fleet_->ready_decode() << " are";
}

void RouterFixture::TearDown() {
  server_.reset();
  cache_.reset();
  service_.reset();
  registry_.reset();
}

v1::GenerateRequest RouterFixture::Prompt(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_prompt(text);
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

v1::GenerateRequest RouterFixture::Ids(int tokens, int max_tokens) {
  v1::GenerateRequest request;
  for (int i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(3 + i % 300);
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

double RouterFixture::Metric(const std::string& name) const {
  for (absl::string_view line : absl::StrSplit(metric_registry_.Serialize(), '\n')) {
    double value = 0;
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ") && absl::SimpleAtod(line, &value)) {
      return value;
    }
  }
  ADD_FAILURE() << "no metric " << name;
  return 0;
}

::testing::AssertionResult RouterFixture::MetricBecomes(const std::string& name, double value) const {
  return Await(absl::StrCat(name, " is ", value), [&] { return Metric(name) == value; });
}

}  // namespace runahead::testing
