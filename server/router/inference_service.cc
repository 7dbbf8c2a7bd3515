#include "server/router/inference_service.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/answer_limits.h"
#include "server/router/chat_input.h"
#include "server/router/request_log.h"
#include "server/router/validation.h"
#include "server/rpc/status.h"
#include "server/rpc/take_memory.h"

namespace runahead {
namespace {

// What JSON takes once it is parsed, for each of its bytes (kMaxChatJsonBytes).
constexpr size_t kParsedJson = 40;

// What a request that waits for its session keeps.
struct WaitingRequest {
  v1::GenerateRequest request;
  ByteBudget::Lease memory;
};

// A call whose answer comes from a session thread; holds its pass until gRPC is done with it.
class HoldingReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit HoldingReactor(DrainGate::Pass pass) : pass_(std::move(pass)) {}

  // Cancelled when the client goes away or its deadline passes.
  CancelToken& cancel() { return cancel_; }

 private:
  void OnCancel() override { cancel_.Cancel(absl::CancelledError("the call has ended")); }
  void OnDone() override { delete this; }

  DrainGate::Pass pass_;
  CancelToken cancel_;
};

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

// One that never became a session: what it asks for is not looked at but for its id.
void LogRefused(const std::string& given_id, const absl::Status& status, absl::Duration took) {
  RequestRecord record;
  record.request_id = given_id.empty() ? DrawRequestId() : given_id.substr(0, kMaxRequestIdBytes);
  record.status = status;
  record.total = took;
  LogRequest(record);
}

}  // namespace

InferenceService::InferenceService(const RouterParts& parts, const ServiceLimits& limits, CallDoor door)
    : MessageService(std::move(door)), parts_(parts), limits_(limits), pool_(limits.max_sessions, limits.max_streams) {
  Stream("Generate", &InferenceService::Begin);
  Unary("Tokenize", &InferenceService::Tokenize);
  Unary("Detokenize", &InferenceService::Detokenize);
  Unary("ListModels", &InferenceService::ListModels);
  Unary("GetTrace", &InferenceService::GetTrace);
}

absl::StatusOr<DrainGate::Pass> InferenceService::Enter() {
  DrainGate* const gate = gate_;
  if (gate == nullptr) return absl::UnavailableError("the router is starting");
  return gate->Enter();
}

absl::Status InferenceService::Submit(CancelToken& cancel, SessionPool::Work work) {
  if (!pool_.busy()) {
    pool_.Submit(cancel, std::move(work));
    return absl::OkStatus();
  }
  RUNAHEAD_RETURN_IF_ERROR(parts_.fleet.EnterQueue());
  pool_.Submit(cancel, [this, work = std::move(work)](const std::function<void()>& settled) {
    parts_.fleet.LeaveQueue();
    work(settled);
  });
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* InferenceService::Reply(std::function<absl::Status(CancelToken& cancel)> work,
                                                  absl::Status status) {
  absl::StatusOr<DrainGate::Pass> pass = Enter();
  if (!pass.ok()) status = pass.status();
  auto* const reactor = new HoldingReactor(pass.ok() ? *std::move(pass) : DrainGate::Pass());
  if (status.ok()) {
    status = Submit(reactor->cancel(), [reactor, work = std::move(work)](const auto&) {
      reactor->Finish(ClientStatus(work(reactor->cancel())));
    });
  }
  if (!status.ok()) reactor->Finish(ClientStatus(status));
  return reactor;
}

absl::Status InferenceService::Check(const v1::GenerateRequest& request, ByteBudget::Lease& memory) const {
  RUNAHEAD_RETURN_IF_ERROR(CheckInputSize(request, *parts_.tokenizer, parts_.model));
  // It is parsed to be checked, and again to be rendered.
  const auto json = static_cast<int64_t>(kParsedJson * ChatJsonBytes(request));
  RUNAHEAD_RETURN_IF_ERROR(TakeMemory(memory, memory.bytes() + json));
  return ValidateRequest(request, parts_.model, parts_.experiments);
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
  if (status.ok()) {
    {
      MutexLock lock(mu_);
      calls_.insert(reactor);
      if (!cut_.ok()) reactor->cancel().Cancel(cut_);
    }
    // Shared, for a function must be one that can be copied.
    const auto kept = std::make_shared<WaitingRequest>(WaitingRequest{std::move(request), std::move(memory)});
    status = Submit(reactor->cancel(),
                    [this, reactor, kept, arrival, caller = CallerOf(*context)](const std::function<void()>& settled) {
                      RunSession(reactor, std::move(kept->request), arrival, caller, std::move(kept->memory), settled);
                    });
    if (!status.ok()) parts_.metrics.CountAdmissionRejection(AdmissionRejection::kQueueFull);
  }
  if (!status.ok()) {
    parts_.metrics.RequestFinished(status.code(), parts_.clock.Now() - arrival);
    LogRefused(given_id, status, parts_.clock.Now() - arrival);
    reactor->End(status);
    MutexLock lock(mu_);
    calls_.erase(reactor);
  }
  return reactor.get();
}

void InferenceService::RunSession(const std::shared_ptr<GenerateReactor>& reactor, v1::GenerateRequest request,
                                  absl::Time arrival, const std::optional<TraceContext>& caller,
                                  ByteBudget::Lease memory, const std::function<void()>& settled) {
  Session session(parts_, std::move(request), arrival, reactor->deadline(), reactor->cancel(), *reactor, caller,
                  std::move(memory));
  const absl::Status status = session.Run(settled);
  parts_.metrics.RequestFinished(status.code(), parts_.clock.Now() - arrival);
  RequestRecord record = session.Record(status);
  reactor->End(status);
  // Where it stalled earlier, the session has ended with that.
  if (const absl::Status taken = reactor->AwaitEnd(); status.ok() && !taken.ok()) {
    record.status = absl::Status(taken.code(), absl::StrCat("cut off: ", taken.message()));
  }
  LogRequest(record);
  MutexLock lock(mu_);
  calls_.erase(reactor);
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

absl::StatusOr<std::vector<int32_t>> InferenceService::IdsOf(const v1::TokenizeRequest& request, CancelToken& cancel) {
  RUNAHEAD_RETURN_IF_ERROR(ValidateTokenize(request, parts_.model));
  RUNAHEAD_ASSIGN_OR_RETURN(const LargeTextTurns::Turn turn,
                            parts_.large_text_turns->Await(TextBytes(request), cancel));
  const auto keep_going = [&cancel] { return cancel.status(); };
  if (request.has_chat()) {
    RUNAHEAD_RETURN_IF_ERROR(parts_.chat_template.status());
    return EncodeChat(*parts_.chat_template, *parts_.tokenizer, request.chat(), parts_.clock.Now(), keep_going);
  }
  const EncodeOptions options{.parse_special = request.special(), .add_bos = !request.without_begin()};
  return parts_.tokenizer->Encode(request.text(), options, keep_going);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* /*context*/,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  return Reply(
      [this, request, response](CancelToken& cancel) -> absl::Status {
        RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOf(*request, cancel));
        response->mutable_ids()->Add(ids.begin(), ids.end());
        return CheckAnswerSize(*response);
      },
      CheckTextSize(*request, parts_.model));
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* /*context*/,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  return Reply([this, request, response](CancelToken&) -> absl::Status {
    RUNAHEAD_RETURN_IF_ERROR(ValidateDetokenize(*request, parts_.model));
    RUNAHEAD_ASSIGN_OR_RETURN(*response->mutable_text(), TextOf(*request, *parts_.tokenizer));
    return absl::OkStatus();
  });
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
