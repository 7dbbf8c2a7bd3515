#include "server/router/inference_service.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/base/cpu_limit.h"
#include "server/router/answer_group.h"
#include "server/router/answer_limits.h"
#include "server/router/chat_input.h"
#include "server/router/request_log.h"
#include "server/router/request_timeout.h"
#include "server/router/validation.h"
#include "server/rpc/status.h"
#include "server/rpc/take_memory.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

// What JSON takes once it is parsed, for each of its bytes (kMaxChatJsonBytes).
constexpr size_t kParsedJson = 40;

// The span that a call comes from. A header that is there twice is as wrong as one that cannot be read.
std::optional<TraceContext> CallerOf(const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range(kTraceparent);
  if (begin == end || std::next(begin) != end) return std::nullopt;
  return ParseTraceparent(absl::string_view(begin->second.data(), begin->second.size()));
}

// INVALID_ARGUMENT where it is too long, before it takes memory.
absl::StatusOr<std::string> TextOf(const v1::DetokenizeRequest& request, const Tokenizer& tokenizer) {
  size_t bytes = 0;
  for (const int32_t id : request.ids()) bytes += tokenizer.TokenBytes(id).size();
  std::string text;
  if (bytes <= kMaxDetokenizedBytes) text = tokenizer.Decode(request.ids(), /*skip_special=*/!request.special());
  if (std::max(bytes, text.size()) <= kMaxDetokenizedBytes) return text;  // U+FFFD is longer than what it stands for
  return InvalidField("ids",
                      absl::StrCat("their text has more than ", kMaxDetokenizedBytes, " bytes; send them in parts"));
}

// Its JSON is parsed to be checked, and again to be rendered.
absl::Status TakeChat(const v1::ChatMessages& chat, ByteBudget::Lease& memory) {
  return TakeMemory(memory, memory.bytes() + static_cast<int64_t>(kParsedJson * ChatJsonBytes(chat)));
}

// One that never became a session: what it asks for is not looked at but for its id.
void LogRefused(const std::string& given_id, const absl::Status& status, absl::Duration took) {
  RequestRecord record;
  record.request_id = given_id.empty() ? DrawRequestId() : given_id.substr(0, kMaxRequestIdBytes);
  record.status = status;
  record.total = took;
  LogRequest(record);
}

// For the steps of all requests, which are short: so few that a router of thousands has few threads in all.
int StepThreads() {
  return std::clamp(UsableCores(), 2, 8);
}

}  // namespace

InferenceService::InferenceService(const RouterParts& parts, const ServiceLimits& limits, CallDoor door, KeyDoor* keys)
    : MessageService(WithKeys(std::move(door), keys)),
      parts_(parts),
      limits_(limits),
      keys_(keys),
      places_(limits.max_sessions, limits.max_streams, parts.queue),
      steps_("session", StepThreads()) {
  Stream("Generate", &InferenceService::Begin);
  Unary("Tokenize", &InferenceService::BeginTokenize);
  Unary("Detokenize", &InferenceService::Detokenize);
  Unary("ListModels", &InferenceService::ListModels);
  Unary("GetTrace", &InferenceService::GetTrace);
}

InferenceService::~InferenceService() {
  ends_.Cancel(absl::CancelledError("the router ends"));
}

absl::StatusOr<DrainGate::Pass> InferenceService::Enter() {
  DrainGate* const gate = gate_;
  if (gate == nullptr) return absl::UnavailableError("the router is starting");
  return gate->Enter();
}

grpc::ServerUnaryReactor* InferenceService::Reply(Work work, absl::Status status) {
  absl::StatusOr<DrainGate::Pass> pass = Enter();
  if (!pass.ok()) status = pass.status();
  auto* const reactor = new HoldingReactor(pass.ok() ? *std::move(pass) : DrainGate::Pass());
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<SessionPlaces::Place>> place = places_.Enter();
    status = place.status();
    if (status.ok()) steps_.Start(RunReply(reactor, *std::move(place), std::move(work)));
  }
  if (!status.ok()) reactor->Finish(ClientStatus(status));
  return reactor;
}

Task<> InferenceService::RunReply(HoldingReactor* reactor, std::unique_ptr<SessionPlaces::Place> place, Work work) {
  co_await place->Await(reactor->cancel());
  const absl::Status status = co_await work(reactor->cancel());
  reactor->Finish(ClientStatus(status));  // with which it may go
}

absl::Status InferenceService::Check(const v1::GenerateRequest& request, ByteBudget::Lease& memory) const {
  RUNAHEAD_RETURN_IF_ERROR(CheckInputSize(request, *parts_.tokenizer, parts_.model));
  RUNAHEAD_RETURN_IF_ERROR(TakeChat(request.chat(), memory));
  return ValidateRequest(request, parts_.model, parts_.experiments);
}

absl::Status InferenceService::Check(const v1::TokenizeRequest& request, ByteBudget::Lease& memory) const {
  RUNAHEAD_RETURN_IF_ERROR(CheckInputSize(request, parts_.model));
  RUNAHEAD_RETURN_IF_ERROR(TakeChat(request.chat(), memory));
  return ValidateTokenize(request, parts_.model);
}

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Begin(grpc::CallbackServerContext* context,
                                                                        v1::GenerateRequest& request,
                                                                        ByteBudget::Lease memory) {
  const absl::Time arrival = parts_.clock.Now();
  absl::StatusOr<DrainGate::Pass> pass = Enter();
  absl::Status status = pass.status();
  if (!status.ok()) parts_.metrics.CountAdmissionRejection(AdmissionRejection::kDraining);
  if (status.ok()) status = Check(request, memory);
  const std::shared_ptr<GenerateReactor> reactor = GenerateReactor::Create(
      context, pass.ok() ? *std::move(pass) : DrainGate::Pass(), limits_.stall_timeout, parts_.clock, parts_.metrics);
  const std::string given_id = request.request_id();
  RequestOwner owner;
  if (status.ok()) {
    absl::StatusOr<RequestOwner> found = OwnerOf(*context, keys_, request);
    status = found.status();
    if (status.ok()) owner = *std::move(found);
  }
  if (status.ok()) {
    {
      MutexLock lock(mu_);
      calls_.insert(reactor);
      if (!cut_.ok()) reactor->cancel().Cancel(cut_);
    }
    absl::StatusOr<std::unique_ptr<SessionPlaces::Place>> place = places_.Enter();
    status = place.status();
    if (status.ok()) {
      steps_.Start(RunSession(reactor, *std::move(place), std::move(request), arrival, CallerOf(*context),
                              std::move(memory), std::move(owner)));
    } else {
      parts_.metrics.CountAdmissionRejection(AdmissionRejection::kQueueFull);
    }
  }
  if (!status.ok()) {
    parts_.metrics.RequestFinished(status.code(), parts_.clock.Now() - arrival);
    LogRefused(given_id, status, parts_.clock.Now() - arrival);
    owner = {};  // gives its place back before the client hears
    reactor->End(status);
    Forget(reactor);
  }
  return reactor.get();
}

void InferenceService::Forget(const std::shared_ptr<GenerateReactor>& reactor) {
  MutexLock lock(mu_);
  calls_.erase(reactor);
}

Task<> InferenceService::WatchTimeout([[maybe_unused]] std::shared_ptr<GenerateReactor> reactor,
                                      std::shared_ptr<RequestTimeout> timeout) {
  co_await timeout->Watch();
}

Task<> InferenceService::RunSession(std::shared_ptr<GenerateReactor> reactor,
                                    std::unique_ptr<SessionPlaces::Place> place, v1::GenerateRequest request,
                                    absl::Time arrival, std::optional<TraceContext> caller, ByteBudget::Lease memory,
                                    RequestOwner owner) {
  std::shared_ptr<RequestTimeout> timeout;
  if (const absl::Time at = TimeoutOf(request, arrival); at < absl::InfiniteFuture()) {
    timeout = std::make_shared<RequestTimeout>(parts_.clock, reactor->cancel(), at);
    steps_.Start(WatchTimeout(reactor, timeout));
  }
  co_await place->Await(reactor->cancel());
  if (request.n() > 1) {
    AnswerGroup answers(parts_, steps_, std::move(request), arrival, reactor->deadline(), reactor->cancel(), *reactor,
                        caller, std::move(memory), std::move(owner.tenant), std::move(owner.grant));
    co_await Answer(answers, *reactor, std::move(place), timeout.get(), arrival);
  } else {
    Session session(parts_, std::move(request), arrival, reactor->deadline(), reactor->cancel(), *reactor, caller,
                    std::move(memory), std::move(owner.tenant), std::move(owner.grant));
    co_await Answer(session, *reactor, std::move(place), timeout.get(), arrival);
  }
  Forget(reactor);
}

template <typename Answering>
Task<> InferenceService::Answer(Answering& answering, GenerateReactor& reactor,
                                std::unique_ptr<SessionPlaces::Place> place, RequestTimeout* timeout,
                                absl::Time arrival) {
  const std::function<void()> settled = [&place = *place] { place.Settle(); };
  const absl::Status status = co_await answering.Run(settled);
  place.reset();  // before the client hears of the end: it may send the next one then
  if (timeout != nullptr) timeout->End();
  parts_.metrics.RequestFinished(status.code(), parts_.clock.Now() - arrival);
  RequestRecord record = answering.Record(status);
  if (auto prompt = answering.HandOverPrompt(); prompt != nullptr) steps_.Start(Leave(std::move(prompt)));
  reactor.End(status);
  // Where it stalled earlier, the session has ended with that.
  const absl::Status taken = co_await reactor.AwaitEnd();
  if (status.ok() && !taken.ok()) {
    record.status = absl::Status(taken.code(), absl::StrCat("cut off: ", taken.message()));
  }
  LogRequest(record);
}

Task<> InferenceService::Leave(std::unique_ptr<LeavingPrompt> prompt) {
  co_await prompt->Run(ends_);
}

void InferenceService::CutOff(const absl::Status& why) {
  std::vector<std::shared_ptr<GenerateReactor>> calls;
  {
    MutexLock lock(mu_);
    cut_ = why;
    calls.assign(calls_.begin(), calls_.end());
  }
  for (const std::shared_ptr<GenerateReactor>& call : calls) call->cancel().Cancel(why);
}

Task<absl::StatusOr<std::vector<int32_t>>> InferenceService::IdsOf(const v1::TokenizeRequest& request,
                                                                   CancelToken& cancel) {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const LargeTextTurns::Turn turn,
                               co_await parts_.large_text_turns->Await(TextBytes(request), cancel));
  const auto keep_going = [&cancel] { return cancel.status(); };
  if (request.has_chat()) {
    RUNAHEAD_CO_RETURN_IF_ERROR(parts_.chat_template.status());
    co_return EncodeChat(*parts_.chat_template, *parts_.tokenizer, request.chat(), parts_.clock.Now(), keep_going);
  }
  const EncodeOptions options{.parse_special = request.special(), .add_bos = !request.without_begin()};
  co_return parts_.tokenizer->Encode(request.text(), options, keep_going);
}

Task<absl::Status> InferenceService::AnswerTokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse& response,
                                                    CancelToken& cancel) {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, co_await On(*parts_.work, IdsOf(request, cancel)));
  // As Generate does, and Detokenize, which would have to take them.
  RUNAHEAD_CO_RETURN_IF_ERROR(CheckTokens(request.has_chat() ? "chat" : "text", ids, parts_.model));
  response.mutable_ids()->Add(ids.begin(), ids.end());
  co_return CheckAnswerSize(response);
}

Task<absl::Status> InferenceService::AnswerDetokenize(const v1::DetokenizeRequest& request,
                                                      v1::DetokenizeResponse& response) {
  RUNAHEAD_CO_RETURN_IF_ERROR(ValidateDetokenize(request, parts_.model));
  RUNAHEAD_CO_ASSIGN_OR_RETURN(*response.mutable_text(), TextOf(request, *parts_.tokenizer));
  co_return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::BeginTokenize(grpc::CallbackServerContext* /*context*/,
                                                          const v1::TokenizeRequest* request,
                                                          v1::TokenizeResponse* response, ByteBudget::Lease& memory) {
  return Reply([this, request, response](CancelToken& cancel) { return AnswerTokenize(*request, *response, cancel); },
               Check(*request, memory));
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* /*context*/,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Reply(
      [this, request, response](CancelToken&) { return On(*parts_.work, AnswerDetokenize(*request, *response)); });
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest* /*request*/,
                                                       v1::ListModelsResponse* response) {
  v1::Model& model = *response->add_models();
  model.set_name(parts_.model.name);
  model.set_context_length(parts_.model.context_length);
  model.set_vocabulary_size(parts_.model.vocabulary_size);
  const v1::Capabilities pool = parts_.fleet.capabilities();
  model.set_dtype(pool.compute_dtype());
  model.set_kv_dtype(pool.kv_dtype());
  model.set_fingerprint(parts_.model.fingerprint);
  model.set_weights_fingerprint(pool.weights_fingerprint());
  model.set_prefill_workers(parts_.fleet.ready_prefill());
  model.set_decode_workers(parts_.fleet.ready_decode());
  model.set_layers(pool.layers());
  model.set_kv_bytes_per_token(int64_t{pool.layers()} * pool.kv_row_bytes());
  model.set_window_layers(pool.window_layers());
  model.set_window(pool.window());
  model.set_tool_format(parts_.model.advice.tool_format);
  model.set_reasoning_format(parts_.model.advice.reasoning_format);
  *model.mutable_recommended() = parts_.model.advice.sampling;
  for (const std::string& build : parts_.fleet.builds()) model.add_builds(build);
  for (std::string& refusal : parts_.fleet.refusals()) model.add_refused_workers(std::move(refusal));
  for (v1::LaneProfile& profile : parts_.fleet.lane_profiles()) *model.add_lane_profiles() = std::move(profile);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetTrace(grpc::CallbackServerContext* context,
                                                     const v1::GetTraceRequest* request, v1::Trace* response) {
  absl::StatusOr<v1::Trace> trace = parts_.tracer->Get(request->request_id());
  if (trace.ok()) {
    *response = *std::move(trace);
    FitAnswer(*response);
  }
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(trace.status()));
  return reactor;
}

}  // namespace runahead
