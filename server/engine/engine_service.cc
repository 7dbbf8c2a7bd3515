#include "server/engine/engine_service.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "server/base/version.h"
#include "server/engine/engine_caller.h"
#include "server/engine/engine_generate.h"
#include "server/rpc/status.h"
#include "server/rpc/take_memory.h"

namespace runahead {
namespace {

namespace engine = vllm::grpc::engine;

// A gateway asks GetTokenizer where it finds nothing at the path that it is told. What is no absolute path it would
// search a hub for.
constexpr char kNowhere[] = "/dev/null/GetTokenizer";

// What has become of a drain, or of a start, is seen within about this time.
constexpr absl::Duration kTryAgainAfter = absl::Seconds(1);

// How often it is looked for streams whose clients take nothing.
constexpr absl::Duration kSoonestLook = absl::Milliseconds(50);
constexpr absl::Duration kLatestLook = absl::Seconds(1);

std::string Sha256Hex(absl::string_view bytes) {
  std::string hash(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  RUNAHEAD_CHECK(EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()), &size,
                            EVP_sha256(), nullptr) == 1);
  hash.resize(size);
  return absl::BytesToHexString(hash);
}

// As the model's files have it; empty where they recommend nothing.
std::string DefaultsJson(const v1::SamplingParams& recommended) {
  std::vector<std::string> members;
  const auto add = [&members](bool given, const char* name, auto value) {
    if (given) members.push_back(absl::StrCat("\"", name, "\": ", value));
  };
  add(recommended.has_temperature(), "temperature", recommended.temperature());
  add(recommended.has_top_k(), "top_k", recommended.top_k());
  add(recommended.has_top_p(), "top_p", recommended.top_p());
  add(recommended.has_min_p(), "min_p", recommended.min_p());
  add(recommended.has_repetition_penalty(), "repetition_penalty", recommended.repetition_penalty());
  return members.empty() ? "" : absl::StrCat("{", absl::StrJoin(members, ", "), "}");
}

grpc::ServerUnaryReactor* Answered(grpc::CallbackServerContext& context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace

struct EngineService::Connection {
  const std::unique_ptr<v1::Inference::StubInterface> stub;
  DrainGate& gate;
  const std::function<bool()> serving;
};

EngineService::EngineService(EngineParts parts, CallDoor door)
    : MessageService(std::move(door)),
      parts_(std::move(parts)),
      began_(parts_.clock.Now()),
      steps_("engine", /*threads=*/1) {
  Stream("Generate", &EngineService::BeginGenerate);
  Stream("GetTokenizer", &EngineService::BeginTokenizer);
  Unary("HealthCheck", &EngineService::HealthCheck);
  Unary("Abort", &EngineService::Abort);
  Unary("GetModelInfo", &EngineService::GetModelInfo);
  Unary("GetServerInfo", &EngineService::GetServerInfo);
  Unary("GetLoads", &EngineService::GetLoads);
  steps_.Start(CutStalled());
}

EngineService::~EngineService() {
  ending_ = true;
  at_end_.Notify();
}

Task<> EngineService::CutStalled() {
  const absl::Duration period = std::clamp(parts_.stall_timeout / 4, kSoonestLook, kLatestLook);
  while (!ending_) {
    open_.CutStalled(parts_.clock.Now(), parts_.stall_timeout);
    co_await at_end_.Until(parts_.clock, parts_.clock.Now() + period);
  }
}

void EngineService::Connect(std::shared_ptr<grpc::Channel> channel, DrainGate& gate, std::function<bool()> serving) {
  MutexLock lock(mu_);
  connection_.reset(new Connection{v1::Inference::NewStub(channel), gate, std::move(serving)});
}

std::shared_ptr<const EngineService::Connection> EngineService::connection() const {
  MutexLock lock(mu_);
  return connection_;
}

absl::StatusOr<EngineService::Entered> EngineService::Enter() const {
  const std::shared_ptr<const Connection> to = connection();
  absl::StatusOr<DrainGate::Pass> pass =
      to != nullptr ? to->gate.Enter() : absl::UnavailableError("the router is starting");
  if (!pass.ok()) return WithRetryAfter(pass.status(), kTryAgainAfter);
  return Entered{to, *std::move(pass)};
}

grpc::ServerWriteReactor<engine::GenerateResponse>* EngineService::BeginGenerate(Context* context,
                                                                                 engine::GenerateRequest& request,
                                                                                 ByteBudget::Lease memory) {
  absl::StatusOr<Entered> entered = Enter();
  const auto call = EngineGenerate::Create(
      *context, {open_, parts_.clock, entered.ok() ? std::move(entered->pass) : DrainGate::Pass(), std::move(memory)});
  if (entered.ok()) {
    call->Start(request, *entered->to->stub);
  } else {
    call->Finish(ToGrpcStatus(entered.status()));
  }
  return call.get();
}

grpc::ServerUnaryReactor* EngineService::HealthCheck(Context* context, const engine::HealthCheckRequest* /*request*/,
                                                     engine::HealthCheckResponse* response) {
  const std::shared_ptr<const Connection> to = connection();
  response->set_healthy(to != nullptr && to->serving());
  if (!response->healthy()) response->set_message("not serving: it starts or ends, or has too few workers");
  return Answered(*context, absl::OkStatus());
}

grpc::ServerUnaryReactor* EngineService::Abort(Context* context, const engine::AbortRequest* request,
                                               engine::AbortResponse* /*response*/) {
  const EngineCaller caller(*context);
  for (const std::string& id : request->request_ids()) {
    open_.Abort(id, caller, absl::CancelledError("the client aborted the request"));
  }
  return Answered(*context, absl::OkStatus());
}

grpc::ServerUnaryReactor* EngineService::AnswerByModel(Context* context, Fill fill) {
  struct Asked {
    Entered entered;  // the first member, so that it ends last
    grpc::ClientContext context;
    v1::ListModelsRequest request;
    v1::ListModelsResponse response;
  };
  absl::StatusOr<Entered> entered = Enter();
  if (!entered.ok()) return Answered(*context, entered.status());
  const auto asked = std::make_shared<Asked>();
  asked->entered = *std::move(entered);
  EngineCaller(*context).Describe(asked->context);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  asked->entered.to->stub->async()->ListModels(&asked->context, &asked->request, &asked->response,
                                               [asked, reactor, fill = std::move(fill)](const grpc::Status& status) {
                                                 if (status.ok() && asked->response.models_size() > 0) {
                                                   fill(asked->response.models(0));
                                                 }
                                                 reactor->Finish(status);
                                               });
  return reactor;
}

grpc::ServerUnaryReactor* EngineService::GetModelInfo(Context* context, const engine::GetModelInfoRequest* /*request*/,
                                                      engine::GetModelInfoResponse* response) {
  return AnswerByModel(context, [this, response](const v1::Model& model) {
    response->set_served_model_name(model.name());
    if (parts_.tokenizer_archive) response->set_tokenizer_path(kNowhere);
    response->set_is_generation(true);
    response->set_max_context_length(static_cast<uint32_t>(model.context_length()));
    response->set_max_req_input_len(model.context_length() - 1);  // one token is left for the answer
    response->set_vocab_size(static_cast<uint32_t>(model.vocabulary_size()));
    for (const int32_t id : parts_.end_ids) response->add_eos_token_ids(id);
    response->set_bos_token_id(parts_.begin_id.value_or(0));
    response->set_default_sampling_params_json(DefaultsJson(model.recommended()));
  });
}

EngineParts::Load EngineService::LoadNow() const {
  return parts_.load ? parts_.load() : EngineParts::Load();
}

grpc::ServerUnaryReactor* EngineService::GetServerInfo(Context* context,
                                                       const engine::GetServerInfoRequest* /*request*/,
                                                       engine::GetServerInfoResponse* response) {
  return AnswerByModel(context, [this, response](const v1::Model& model) {
    const EngineParts::Load load = LoadNow();
    response->set_active_requests(static_cast<uint32_t>(load.running + load.waiting));
    response->set_uptime_seconds(absl::ToDoubleSeconds(parts_.clock.Now() - began_));
    response->set_server_type("runahead");
    response->set_data_parallel_size(1);
    response->set_kv_cache_dtype(model.kv_dtype());
    response->set_model_dtype(model.dtype());
    response->set_constrained_decoding_start("first_token");
  });
}

grpc::ServerUnaryReactor* EngineService::GetLoads(Context* context, const engine::GetLoadsRequest* request,
                                                  engine::GetLoadsResponse* response) {
  response->set_timestamp(absl::FormatTime(absl::RFC3339_full, parts_.clock.Now(), absl::UTCTimeZone()));
  response->set_version(std::string(Version()));
  response->set_dp_rank_count(1);
  if (request->dp_rank() == 0) {
    const EngineParts::Load load = LoadNow();
    engine::SchedulerLoad& told = *response->add_loads();
    told.set_num_running_reqs(static_cast<int32_t>(load.running));
    told.set_num_waiting_reqs(static_cast<int32_t>(load.waiting));
    told.set_num_total_reqs(static_cast<int32_t>(load.running + load.waiting));
  }
  return Answered(*context, absl::OkStatus());
}

grpc::ServerWriteReactor<engine::GetTokenizerChunk>* EngineService::BeginTokenizer(
    Context* context, engine::GetTokenizerRequest& /*request*/, ByteBudget::Lease memory) {
  absl::StatusOr<Entered> entered = Enter();
  absl::Status status = entered.status();
  if (status.ok()) status = TakeMemory(memory, TokenizerStream::kMemory);
  const auto stream = TokenizerStream::Create(
      *context, {open_, parts_.clock, entered.ok() ? std::move(entered->pass) : DrainGate::Pass(), std::move(memory)});
  if (status.ok()) {
    steps_.Start(SendTokenizer(stream));
  } else {
    stream->Send(status);
  }
  return stream.get();
}

Task<> EngineService::SendTokenizer(std::shared_ptr<TokenizerStream> stream) {
  stream->Send(Archive());
  co_return;
}

absl::StatusOr<std::shared_ptr<const SummedArchive>> EngineService::Archive() {
  if (archive_ != nullptr) return archive_;
  if (!parts_.tokenizer_archive) {
    return absl::UnimplementedError("this router gives no tokenizer: give the gateway the model's folder");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(std::shared_ptr<const std::string> bytes, parts_.tokenizer_archive());
  std::string sha256 = Sha256Hex(*bytes);
  archive_ = std::make_shared<const SummedArchive>(SummedArchive{std::move(bytes), std::move(sha256)});
  return archive_;
}

}  // namespace runahead
