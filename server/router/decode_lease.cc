#include "server/router/decode_lease.h"

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/worker_call.h"
#include "server/router/worker_failure.h"

namespace runahead {
namespace {

// Whether a worker is there is for its connection to judge, which gives a silent one up sooner: then the call ends.
// These are for one that answers pings and not this.
constexpr absl::Duration kReservePatience = absl::Seconds(6);
constexpr absl::Duration kRenewPatience = absl::Seconds(1);  // it is asked again

// Not ended by a cancel, and what it brings is kept until it is released: a lease whose answer nobody read would hold
// its memory until it expires.
absl::StatusOr<v1::ReserveReply> Ask(const LiveWorker& worker, const DecodeLease::Need& need, Clock& clock) {
  v1::ReserveRequest request;
  request.set_request_id(need.request_id);
  request.set_prompt_tokens(need.prompt_tokens);
  request.set_total_tokens(need.total_tokens);
  request.set_epoch(worker.capabilities.epoch());
  request.set_max_x_tokens(need.max_x_tokens);
  v1::ReserveReply reply;
  const absl::Status status =
      CallWorker(clock, kReservePatience, {worker.lost.get()}, [&](grpc::ClientContext* context, auto done) {
        worker.decode->async()->Reserve(context, &request, &reply, std::move(done));
      });
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError("no answer to Reserve");
  RUNAHEAD_RETURN_IF_ERROR(status);
  return reply;
}

}  // namespace

int32_t MaxXTokens(const Placement& placement) {
  const std::vector<int64_t>& parts = placement.plan.parts;
  const int64_t prompt = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  int64_t end = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    end += parts[i];
    const int64_t held = IsTsp(placement.plan.schedule) ? prompt : end;
    if (held > placement.chain[i]->capabilities.max_prefix_tokens_with_x()) return 0;
  }
  return static_cast<int32_t>(prompt);
}

absl::StatusOr<std::unique_ptr<DecodeLease>> DecodeLease::Reserve(
    const Need& need, const Fleet::Ticket& ticket, absl::Span<const std::shared_ptr<const LiveWorker>> chain,
    Fleet& fleet, Sequencer& sequencer, Clock& clock, CancelToken& cancel) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto workers, fleet.RankDecode(ticket, need.total_tokens, chain));
  absl::Status refused = absl::UnavailableError("the decode workers were lost, or began to drain, just now");
  for (const std::shared_ptr<const LiveWorker>& worker : workers) {
    if (!fleet.LeaseAsked(*worker)) continue;
    const absl::StatusOr<v1::ReserveReply> lease = Ask(*worker, need, clock);
    std::unique_ptr<DecodeLease> held;
    if (lease.ok()) held.reset(new DecodeLease(fleet, sequencer, clock, worker, *lease, need.total_tokens));
    fleet.LeaseAnswered(*worker);
    if (absl::IsResourceExhausted(lease.status())) fleet.LeaseRefused(*worker, need.total_tokens);
    RUNAHEAD_RETURN_IF_ERROR(cancel.status());
    if (held != nullptr) return held;
    if (IsToBlame(lease.status())) fleet.ejections().Judge(WorkerRole::kDecode, worker->index, lease.status());
    // One that is full now is worth waiting for, whatever the others say.
    if (absl::IsResourceExhausted(refused)) continue;
    refused = lease.status();
    if (refused == worker->lost->status()) continue;  // which names the worker
    refused = OfWorker(absl::StrCat("decode worker ", worker->capabilities.name()), refused);
  }
  return refused;
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
      tokens_(tokens) {
  fleet_.LeaseTaken(*worker_, tokens_);
}

DecodeLease::~DecodeLease() {
  GiveUp();
  fleet_.LeaseReturned(*worker_, tokens_);
}

absl::StatusOr<bool> DecodeLease::Renew(CancelToken& cancel) {
  v1::RenewRequest request;
  *request.mutable_lease() = id_;
  v1::RenewReply reply;
  const absl::Status status =
      CallWorker(clock_, kRenewPatience, {&cancel, worker_->lost.get()}, [&](grpc::ClientContext* context, auto done) {
        worker_->decode->async()->Renew(context, &request, &reply, std::move(done));
      });
  RUNAHEAD_RETURN_IF_ERROR(cancel.status());
  if (status.ok()) return true;
  RUNAHEAD_RETURN_IF_ERROR(worker_->lost->status());
  if (absl::IsDeadlineExceeded(status)) return false;
  return OfWorker(absl::StrCat("decode worker ", worker_->capabilities.name(), ", renewing a lease"),
                  absl::UnavailableError(status.message()));
}

}  // namespace runahead
