#include "server/router/decode_lease.h"

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/router/known_index.h"
#include "server/router/worker_call.h"
#include "server/router/worker_failure.h"
#include "server/task/co_status.h"

namespace runahead {
namespace {

// As kReservePatience; it is asked again.
constexpr absl::Duration kRenewPatience = absl::Seconds(1);

// Not ended by a cancel, and what it brings is kept until it is released: a lease whose answer nobody read would hold
// its memory until it expires. DEADLINE_EXCEEDED where none came in time.
Task<absl::StatusOr<v1::ReserveReply>> Ask(const LiveWorker& worker, const DecodeLease::Need& need, Clock& clock) {
  v1::ReserveRequest request;
  request.set_request_id(need.request_id);
  request.set_prompt_tokens(need.prompt_tokens);
  request.set_total_tokens(need.total_tokens);
  request.set_epoch(worker.capabilities.epoch());
  request.set_max_x_tokens(need.max_x_tokens);
  if (need.expected_tokens) request.set_expected_tokens(*need.expected_tokens);
  request.set_parked_first(need.parked_first);
  if (need.arriving_tokens) request.set_arriving_tokens(*need.arriving_tokens);
  request.set_salt(need.salt);
  request.set_not_kept(need.not_kept);
  if (need.known) {
    request.set_least_known_tokens(need.known->least_tokens);
    request.mutable_prompt_ids()->Add(need.known->prompt.begin(), need.known->prompt.end());
    request.set_rest_handed(need.known->rest_handed);
  }
  v1::ReserveReply reply;
  const StartUnary start = [&](grpc::ClientContext* context, auto done) {
    worker.decode->async()->Reserve(context, &request, &reply, std::move(done));
  };
  const std::vector<CancelToken*> ends = {worker.lost.get()};
  const absl::Status status = co_await CallWorker(clock, *worker.hearing, need.patience, ends, start);
  RUNAHEAD_CO_RETURN_IF_ERROR(status);
  co_return reply;
}

absl::Status CheckAble(const LiveWorker& worker, const DecodeLease::Need& need) {
  if (need.arriving_tokens && !worker.capabilities.moves()) {
    return absl::FailedPreconditionError("takes no sequences that run elsewhere");
  }
  if (need.keeps && !KeepsPrompts(worker)) return absl::FailedPreconditionError("keeps no prompts");
  return absl::OkStatus();
}

// A worker that does not say how many it counts gave memory for all.
int32_t CountedTokens(const v1::ReserveReply& reply, const DecodeLease::Need& need) {
  return reply.counted_tokens() > 0 ? reply.counted_tokens() : need.total_tokens;
}

}  // namespace

int32_t MaxXTokens(const Placement& placement) {
  const std::vector<int64_t>& parts = placement.plan.parts;
  int64_t end = placement.plan.known_tokens;
  const int64_t prompt = std::accumulate(parts.begin(), parts.end(), end);
  for (size_t i = 0; i < parts.size(); ++i) {
    end += parts[i];
    const int64_t held = IsTsp(placement.plan.schedule) ? prompt : end;
    if (held > placement.chain[i]->capabilities.max_prefix_tokens_with_x()) return 0;
  }
  return static_cast<int32_t>(prompt);
}

bool KeepsPrompts(const LiveWorker& worker) {
  return HasBeginnings(worker.capabilities) && worker.capabilities.window() == 0;
}

KnownWays WaysOfPrompt(const LiveWorker& worker) {
  if (!KeepsPrompts(worker)) return {};
  return {.rows = worker.capabilities.keeps_beginnings(), .chain = worker.capabilities.lends_beginnings()};
}

Task<absl::StatusOr<std::unique_ptr<DecodeLease>>> DecodeLease::Reserve(
    const Need& need, const FleetQueue::Ticket& ticket, absl::Span<const std::shared_ptr<const LiveWorker>> chain,
    FleetQueue& queue, Fleet& fleet, Sequencer& sequencer, Clock& clock, CancelToken& cancel) {
  RUNAHEAD_CO_ASSIGN_OR_RETURN(const auto workers, queue.RankDecode(ticket, need.of_worker(), chain));
  absl::Status refused = absl::UnavailableError("the decode workers were lost, or began to drain, just now");
  for (const std::shared_ptr<const LiveWorker>& worker : workers) {
    if (need.known && worker != need.known->at) continue;
    if (const absl::Status able = CheckAble(*worker, need); !able.ok()) {
      if (absl::IsUnavailable(refused)) refused = able;
      continue;
    }
    if (const absl::Status may_ask = queue.LeaseAsked(ticket, need.of_worker(), *worker); !may_ask.ok()) {
      if (absl::IsResourceExhausted(may_ask)) refused = may_ask;
      continue;
    }
    absl::StatusOr<v1::ReserveReply> lease = co_await Ask(*worker, need, clock);
    if (absl::IsDeadlineExceeded(lease.status())) {
      if (need.avoid_silent) queue.Avoid(ticket, worker->index);
      lease = absl::UnavailableError("no answer to Reserve");
    }
    std::unique_ptr<DecodeLease> held;
    if (lease.ok()) {
      held.reset(new DecodeLease(fleet, sequencer, clock, worker, *lease, CountedTokens(*lease, need)));
    }
    if (absl::IsResourceExhausted(lease.status())) fleet.LeaseRefused(*worker, need.of_worker());
    fleet.LeaseAnswered(*worker);
    RUNAHEAD_CO_RETURN_IF_ERROR(cancel.status());
    if (held != nullptr && need.known && need.known->rest_handed && held->known_tokens() != need.known->least_tokens) {
      co_return absl::InternalError("the lease does not begin with as many known tokens as were asked for");
    }
    if (held != nullptr) co_return held;
    if (IsToBlame(lease.status())) fleet.ejections().Judge(WorkerRole::kDecode, worker->index, lease.status());
    if (need.known) co_return lease.status();
    // One that is full now is worth waiting for, whatever the others say.
    if (absl::IsResourceExhausted(refused)) continue;
    refused = lease.status();
    if (refused == worker->lost->status()) continue;  // which names the worker
    refused = OfWorker(absl::StrCat("decode worker ", worker->capabilities.name()), refused);
  }
  co_return refused;
}

DecodeLease::DecodeLease(Fleet& fleet, Sequencer& sequencer, Clock& clock, std::shared_ptr<const LiveWorker> worker,
                         const v1::ReserveReply& reply, int32_t tokens)
    : fleet_(fleet),
      sequencer_(sequencer),
      clock_(clock),
      worker_(std::move(worker)),
      id_(reply.lease()),
      x_tokens_(reply.x_tokens()),
      kv_from_(reply.kv_from()),
      known_tokens_(reply.known_tokens()),
      known_output_tokens_(reply.known_output_tokens()),
      lost_recompute_s_(reply.lost_recompute_s()),
      tokens_(tokens),
      taken_(clock.Now()) {
  fleet_.LeaseTaken(*worker_, tokens_);
}

DecodeLease::~DecodeLease() {
  GiveUp();
  std::optional<absl::Duration> held;
  if (decodes_) held = clock_.Now() - taken_;
  fleet_.LeaseReturned(*worker_, tokens_, held);
}

Task<absl::StatusOr<bool>> DecodeLease::Renew(CancelToken& cancel) {
  v1::RenewRequest request;
  *request.mutable_lease() = id_;
  v1::RenewReply reply;
  const StartUnary start = [&](grpc::ClientContext* context, auto done) {
    worker_->decode->async()->Renew(context, &request, &reply, std::move(done));
  };
  const std::vector<CancelToken*> ends = {&cancel, worker_->lost.get()};
  const absl::Status status = co_await CallWorker(clock_, *worker_->hearing, kRenewPatience, ends, start);
  RUNAHEAD_CO_RETURN_IF_ERROR(cancel.status());
  if (status.ok()) co_return true;
  RUNAHEAD_CO_RETURN_IF_ERROR(worker_->lost->status());
  if (absl::IsDeadlineExceeded(status)) co_return false;
  co_return OfWorker(absl::StrCat("decode worker ", worker_->capabilities.name(), ", renewing a lease"),
                     absl::UnavailableError(status.message()));
}

}  // namespace runahead
