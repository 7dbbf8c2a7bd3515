#include "worker/decode/service/decode_service.h"

#include <algorithm>
#include <utility>

#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/base/logging.h"
#include "server/base/printable.h"
#include "server/rpc/status.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

// Sequences end every few seconds on a busy worker; asking more often would only cost round trips.
constexpr absl::Duration kRetryReserve = absl::Seconds(1);

// worker.proto says it, of remaining_tokens.
constexpr size_t kMostRemaining = 64;

// worker.proto says it, of evicted: 2 KiB. With two pings a second, what goes of 128 thousand tokens a second.
constexpr size_t kMostEvicted = 256;

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
  const auto& ids = request.prompt_ids();
  const int prompt = request.has_output_from() ? request.output_from() : ids.size();
  sequence.prompt_ids.assign(ids.begin(), ids.begin() + prompt);
  sequence.output_ids.assign(ids.begin() + prompt, ids.end());
  if (!request.has_output_from()) sequence.output_ids = {request.first_token()};
  if (request.has_moved_tokens()) sequence.moved_tokens = request.moved_tokens();
  sequence.max_tokens = request.max_tokens();
  sequence.sampling = SamplingFromProto(request.sampling());
  sequence.rules = DrawRulesFromProto(request.rules());
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

std::optional<int64_t> DecodeService::KvFrom(const v1::ReserveRequest& request) const {
  const bool comes = !request.has_max_x_tokens() || request.max_x_tokens() >= request.prompt_tokens();
  const bool of_all = !request.has_handed_tokens() && !request.has_arriving_tokens() &&
                      (!request.has_least_known_tokens() || request.rest_handed());
  if (store_.x_arena() == nullptr || !comes || !of_all) return std::nullopt;
  const std::optional<int64_t> from = options_.kv_from ? options_.kv_from(request.prompt_tokens()) : 0;
  if (!from.has_value() || !request.rest_handed()) return from;
  return 0;  // what is known is there as KV
}

absl::Status DecodeService::CheckReserve(const v1::ReserveRequest& request) const {
  if (!reserving_) return absl::UnavailableError("this worker drains before it stops");
  const int32_t prompt = request.prompt_tokens(), total = request.total_tokens();
  if (prompt < 1) return InvalidField("prompt_tokens", "must be at least 1");
  if (total < prompt) return InvalidField("total_tokens", "must be at least prompt_tokens");
  if (request.max_x_tokens() < 0) return InvalidField("max_x_tokens", "must not be negative");
  if (const int32_t expected = request.expected_tokens();
      request.has_expected_tokens() && (expected < prompt || expected > total)) {
    return InvalidField("expected_tokens", "must be from prompt_tokens to total_tokens");
  }
  if (request.has_handed_tokens()) {
    if (request.handed_tokens() < 0 || request.handed_tokens() >= prompt) {
      return InvalidField("handed_tokens", "must not be negative, and less than prompt_tokens");
    }
    RUNAHEAD_RETURN_IF_ERROR(engine_.CheckRows());
  }
  if (request.has_arriving_tokens()) RUNAHEAD_RETURN_IF_ERROR(engine_.CheckMoves());
  RUNAHEAD_RETURN_IF_ERROR(CheckKnown(request));
  RUNAHEAD_RETURN_IF_ERROR(engine_.CheckTokens(total));
  if (request.epoch() == store_.epoch()) return absl::OkStatus();
  return absl::UnavailableError("epoch: this worker lost its router meanwhile; ask for its capabilities");
}

absl::Status DecodeService::CheckKnown(const v1::ReserveRequest& request) const {
  if (!request.has_least_known_tokens()) {
    if (!request.rest_handed()) return absl::OkStatus();
    return InvalidField("rest_handed", "must be false without least_known_tokens");
  }
  if (request.least_known_tokens() < 1 || request.least_known_tokens() >= request.prompt_tokens()) {
    return InvalidField("least_known_tokens", "must be at least 1, and less than prompt_tokens");
  }
  if (request.has_handed_tokens()) return InvalidField("handed_tokens", "must be absent with least_known_tokens");
  if (request.has_arriving_tokens()) return InvalidField("arriving_tokens", "must be absent with least_known_tokens");
  if (request.prompt_ids_size() != request.prompt_tokens()) {
    return InvalidField("prompt_ids", "must have prompt_tokens ids with least_known_tokens");
  }
  return request.rest_handed() ? engine_.CheckLends() : engine_.CheckKnown();
}

LeaseRequest DecodeService::LeaseFor(const v1::ReserveRequest& request) const {
  const std::optional<int64_t> kv_from = KvFrom(request);
  LeaseRequest wanted{.prompt_tokens = request.prompt_tokens(),
                      .total_tokens = request.total_tokens(),
                      .with_x = kv_from.has_value(),
                      .kv_from = kv_from.value_or(0)};
  if (request.has_handed_tokens()) wanted.handed_tokens = request.handed_tokens();
  if (request.has_arriving_tokens()) wanted.arriving_tokens = request.arriving_tokens();
  if (request.has_expected_tokens() && engine_.CheckRows().ok()) wanted.expected_tokens = request.expected_tokens();
  wanted.parked_first = request.parked_first();
  if (request.has_least_known_tokens()) {
    wanted.least_known_tokens = request.least_known_tokens();
    wanted.rest_handed = request.rest_handed();
    wanted.prompt_ids = request.prompt_ids();
  }
  wanted.salt = request.salt();
  wanted.not_kept = request.not_kept();
  return wanted;
}

grpc::ServerUnaryReactor* DecodeService::Reserve(grpc::CallbackServerContext* context,
                                                 const v1::ReserveRequest* request, v1::ReserveReply* reply) {
  if (absl::StatusOr<DrainGate::Pass> pass = Enter(); !pass.ok()) return Reply(context, pass.status());
  if (const absl::Status valid = CheckReserve(*request); !valid.ok()) return Reply(context, valid);
  const LeaseRequest wanted = LeaseFor(*request);
  const absl::StatusOr<LeaseId> lease = store_.Reserve(wanted);
  if (absl::IsResourceExhausted(lease.status())) return Reply(context, WithRetryAfter(lease.status(), kRetryReserve));
  bool with_x = wanted.with_x;
  if (lease.ok() && wanted.least_known_tokens.has_value()) {
    const absl::StatusOr<KvStore::Size> size = store_.SizeOf(*lease);
    if (!size.ok()) return Reply(context, absl::UnavailableError("epoch: this worker lost its router just now"));
    reply->set_known_tokens(static_cast<int32_t>(size->known_tokens));
    reply->set_known_output_tokens(static_cast<int32_t>(size->known_answer_tokens));
    if (!wanted.rest_handed) reply->set_handed_tokens(reply->known_tokens());
    with_x = size->with_x;
    const bool lacks_x = wanted.with_x && !with_x && options_.lost_without_x;
    const double lost_s = lacks_x ? options_.lost_without_x(wanted.prompt_tokens) : 0;
    if (lost_s > 0) reply->set_lost_recompute_s(lost_s);
  }
  if (lease.ok()) {
    *reply->mutable_lease() = LeaseToProto(*lease);
    if (with_x) {
      reply->set_x_tokens(request->prompt_tokens());
      reply->set_kv_from(static_cast<int32_t>(wanted.kv_from));
    }
    if (wanted.handed_tokens.has_value()) reply->set_handed_tokens(request->handed_tokens());
    reply->set_counted_tokens(static_cast<int32_t>(wanted.expected_tokens.value_or(wanted.total_tokens)));
    LogDebug("decode", "request ", Printable(request->request_id()), ": lease ",
             absl::Hex(lease->number, absl::kZeroPad16), " for ", request->total_tokens(), " tokens, counted as ",
             reply->counted_tokens());
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
  } else if (request->output_from() < 0 || request->output_from() > request->prompt_ids_size()) {
    reactor->Refuse(InvalidField("output_from", "must be from 0 to the number of prompt_ids"));
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

v1::DecodeLoad DecodeService::Load(uint64_t evictions_heard) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  {
    MutexLock lock(mu_);
    streams = OpenStreams();
  }
  std::vector<int64_t> remaining;
  for (const std::shared_ptr<TokenStream>& stream : streams) {
    if (const std::optional<int64_t> left = stream->Remaining()) remaining.push_back(*left);
  }
  std::sort(remaining.begin(), remaining.end());
  const KvStore::Stats stats = store_.stats();
  const int64_t block_bytes = stats.capacity_bytes / store_.arena().blocks();
  v1::DecodeLoad load;
  load.set_slots_used(static_cast<int32_t>(stats.leases));
  load.set_slots_free(static_cast<int32_t>(std::max<int64_t>(0, options_.max_batch - stats.leases)));
  load.set_running(static_cast<int32_t>(remaining.size()));
  load.set_parked(static_cast<int32_t>(engine_.parked()));
  load.set_blocks_used(stats.promised_bytes / block_bytes);
  load.set_blocks_growable(stats.growable_bytes / block_bytes);
  load.set_leases_grow(engine_.CheckRows().ok());
  if (options_.step_time != nullptr) load.set_step_ns(absl::ToInt64Nanoseconds(options_.step_time->Expect()));
  if (remaining.size() > kMostRemaining) remaining.resize(kMostRemaining);
  for (const int64_t left : remaining) load.add_remaining_tokens(static_cast<int32_t>(left));
  const EvictionNews::Some evicted = store_.EvictedSince(evictions_heard, kMostEvicted);
  load.mutable_evicted()->Add(evicted.hashes.begin(), evicted.hashes.end());
  load.set_evictions(evicted.serial);
  return load;
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
  NameThread("stalls");
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
