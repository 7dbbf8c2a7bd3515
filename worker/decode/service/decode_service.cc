#include "worker/decode/service/decode_service.h"

#include <utility>

#include "server/base/logging.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

// Sequences end every few seconds on a busy worker; asking more often would only cost round trips.
constexpr absl::Duration kRetryReserve = absl::Seconds(1);

grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status NoLease() {
  return InvalidField("lease", "is absent, and must be one that Reserve gave");
}

DecodeSequence SequenceFromProto(const v1::DecodeRequest& request) {
  DecodeSequence sequence;
  sequence.lease = LeaseFromProto(request.lease());
  sequence.request_id = request.request_id();
  sequence.prompt_ids.assign(request.prompt_ids().begin(), request.prompt_ids().end());
  sequence.first_token = request.first_token();
  sequence.max_tokens = request.max_tokens();
  sequence.sampling = SamplingFromProto(request.sampling());
  sequence.stop_ids.assign(request.stop_ids().begin(), request.stop_ids().end());
  if (!request.traceparent().empty()) sequence.spans = std::make_shared<SpanRecorder>();
  return sequence;
}

}  // namespace

DecodeService::DecodeService(DecodeEngine& engine, KvStore& store, DecodeServiceOptions options, Clock& clock)
    : engine_(engine), store_(store), options_(std::move(options)), clock_(clock), watch_([this] {
        WatchForStalls();
      }) {}

DecodeService::~DecodeService() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  watch_.join();
}

absl::StatusOr<DrainGate::Pass> DecodeService::Enter() {
  DrainGate* gate = gate_;
  if (gate == nullptr) return DrainGate::Pass();
  return gate->Enter();
}

void DecodeService::LeasesChanged() const {
  if (options_.leases_changed) options_.leases_changed();
}

int32_t DecodeService::XTokens(const v1::ReserveRequest& request) const {
  const bool comes = !request.has_max_x_tokens() || request.max_x_tokens() >= request.prompt_tokens();
  return store_.x_arena() != nullptr && comes ? request.prompt_tokens() : 0;
}

grpc::ServerUnaryReactor* DecodeService::Reserve(grpc::CallbackServerContext* context,
                                                 const v1::ReserveRequest* request, v1::ReserveReply* reply) {
  if (absl::StatusOr<DrainGate::Pass> pass = Enter(); !pass.ok()) return Reply(context, pass.status());
  if (!reserving_) return Reply(context, absl::UnavailableError("this worker drains before it stops"));
  if (request->prompt_tokens() < 1) return Reply(context, InvalidField("prompt_tokens", "must be at least 1"));
  if (request->total_tokens() < request->prompt_tokens()) {
    return Reply(context, InvalidField("total_tokens", "must be at least prompt_tokens"));
  }
  if (request->max_x_tokens() < 0) return Reply(context, InvalidField("max_x_tokens", "must not be negative"));
  if (const absl::Status fits = engine_.CheckTokens(request->total_tokens()); !fits.ok()) return Reply(context, fits);
  if (request->epoch() != store_.epoch()) {
    return Reply(context,
                 absl::UnavailableError("epoch: this worker lost its router meanwhile; ask for its capabilities"));
  }
  const int32_t x_tokens = XTokens(*request);
  const int64_t kv_from = x_tokens > 0 && options_.kv_from ? options_.kv_from(x_tokens) : 0;
  const absl::StatusOr<LeaseId> lease =
      store_.Reserve(request->prompt_tokens(), request->total_tokens(), /*share=*/{}, /*with_x=*/x_tokens > 0, kv_from);
  if (absl::IsResourceExhausted(lease.status())) return Reply(context, WithRetryAfter(lease.status(), kRetryReserve));
  if (lease.ok()) {
    *reply->mutable_lease() = LeaseToProto(*lease);
    reply->set_x_tokens(x_tokens);
    reply->set_kv_from(static_cast<int32_t>(kv_from));
    LogDebug("decode", "request ", Printable(request->request_id()), ": lease ",
             absl::Hex(lease->number, absl::kZeroPad16), " for ", request->total_tokens(), " tokens");
    LeasesChanged();
  }
  return Reply(context, lease.status());
}

grpc::ServerUnaryReactor* DecodeService::Renew(grpc::CallbackServerContext* context, const v1::RenewRequest* request,
                                               v1::RenewReply*) {
  if (!request->has_lease()) return Reply(context, NoLease());
  return Reply(context, store_.Renew(LeaseFromProto(request->lease())));
}

grpc::ServerWriteReactor<v1::DecodeReply>* DecodeService::Generate(grpc::CallbackServerContext* context,
                                                                   const v1::DecodeRequest* request) {
  absl::StatusOr<DrainGate::Pass> pass = Enter();
  const absl::Status entered = pass.status();
  auto stream = std::make_shared<TokenStream>(
      *context, engine_, clock_, entered.ok() ? *std::move(pass) : DrainGate::Pass(), [this] { LeasesChanged(); });
  // gRPC's pointer is good until OnDone, whatever has happened to the call meanwhile.
  TokenStream* const reactor = stream.get();
  if (!entered.ok()) {
    reactor->Refuse(entered);
  } else if (!request->has_lease()) {
    reactor->Refuse(NoLease());
  } else {
    {
      MutexLock lock(mu_);
      streams_.push_back(stream);
    }
    reactor->Begin(SequenceFromProto(*request));
  }
  return reactor;
}

std::vector<std::shared_ptr<TokenStream>> DecodeService::OpenStreams() {
  std::vector<std::shared_ptr<TokenStream>> open;
  for (const std::weak_ptr<TokenStream>& stream : streams_) {
    if (auto living = stream.lock()) open.push_back(std::move(living));
  }
  streams_.assign(open.begin(), open.end());
  return open;
}

void DecodeService::CancelAll() {
  std::vector<std::shared_ptr<TokenStream>> streams;
  {
    MutexLock lock(mu_);
    streams = OpenStreams();
  }
  for (const std::shared_ptr<TokenStream>& stream : streams) stream->Cancel();
}

// Looks several times a timeout, so that a stall is noticed at most a quarter late.
void DecodeService::WatchForStalls() {
  while (true) {
    std::vector<std::shared_ptr<TokenStream>> streams;
    {
      MutexLock lock(mu_);
      const absl::Time next = clock_.Now() + options_.stall_timeout / 4;
      while (!stop_ && clock_.Now() < next) clock_.WaitUntil(mu_, stop_changed_, next);
      if (stop_) return;
      streams = OpenStreams();
    }
    for (const std::shared_ptr<TokenStream>& stream : streams) {
      if (stream->CancelIfStalled(options_.stall_timeout)) {
        LogWarning("decode", "cancelled a token stream whose reader took nothing for ",
                   absl::FormatDuration(options_.stall_timeout));
      }
    }
  }
}

}  // namespace runahead
