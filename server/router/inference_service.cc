#include "server/router/inference_service.h"

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
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

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* /*context*/,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  absl::StatusOr<DrainGate::Pass> pass = Enter();
  absl::Status status = pass.status();
  auto* const reactor = new HoldingReactor(pass.ok() ? *std::move(pass) : DrainGate::Pass());
  if (status.ok()) status = CheckTextSize(*request);
  const auto tokenize = [this, reactor, request, response]() -> absl::Status {
    RUNAHEAD_RETURN_IF_ERROR(ValidateModel(request->model(), parts_.model));
    CancelToken& cancel = reactor->cancel();
    RUNAHEAD_ASSIGN_OR_RETURN(const LargeTextTurns::Turn turn,
                              parts_.large_text_turns->Await(request->text().size(), cancel));
    const EncodeOptions options{.parse_special = request->special(), .add_bos = false};
    RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                              parts_.tokenizer->Encode(request->text(), options, [&] { return cancel.status(); }));
    response->mutable_ids()->Add(ids.begin(), ids.end());
    return absl::OkStatus();
  };
  if (status.ok()) {
    status = Submit(reactor->cancel(), [reactor, tokenize](const auto&) { reactor->Finish(ClientStatus(tokenize())); });
  }
  if (!status.ok()) reactor->Finish(ClientStatus(status));
  return reactor;
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
  model.set_prefill_workers(parts_.fleet.ready_prefill());
  model.set_decode_workers(parts_.fleet.ready_decode());
  model.set_layers(pool.layers());
  model.set_kv_bytes_per_token(int64_t{pool.layers()} * pool.kv_row_bytes());
  model.set_window_layers(pool.window_layers());
  model.set_window(pool.window());
  for (const std::string& build : parts_.fleet.builds()) model.add_builds(build);
  for (v1::LaneProfile& profile : parts_.fleet.lane_profiles()) *model.add_lane_profiles() = std::move(profile);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetTrace(grpc::CallbackServerContext* context,
                                                     const v1::GetTraceRequest* request, v1::Trace* response) {
  absl::StatusOr<v1::Trace> trace = parts_.tracer->Get(request->request_id());
  if (trace.ok()) *response = *std::move(trace);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(trace.status()));
  return reactor;
}

}  // namespace runahead
