#include "server/router/decode_lease.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/router/worker_failure.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// For answers that take no work: a worker that is slower hangs, and its connection will notice.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(3);

// Not ended by a cancel, and what it brings is kept until it is released: a lease whose answer nobody read would hold
// its memory until it expires.
absl::StatusOr<v1::LeaseId> Ask(const LiveWorker& worker, const DecodeLease::Need& need) {
  v1::ReserveRequest request;
  request.set_request_id(need.request_id);
  request.set_prompt_tokens(need.prompt_tokens);
  request.set_total_tokens(need.total_tokens);
  request.set_epoch(worker.capabilities.epoch());
  grpc::ClientContext context;
  SetTimeout(context, kAnswerTimeout);
  v1::ReserveReply reply;
  const absl::Status status = FromGrpcStatus(worker.decode->Reserve(&context, request, &reply));
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError("no answer to Reserve");
  RUNAHEAD_RETURN_IF_ERROR(status);
  return reply.lease();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeLease>> DecodeLease::Reserve(
    const Need& need, const Fleet::Ticket& ticket, absl::Span<const std::shared_ptr<const LiveWorker>> chain,
    Fleet& fleet, Sequencer& sequencer, CancelToken& cancel) {
  RUNAHEAD_ASSIGN_OR_RETURN(const auto workers, fleet.RankDecode(ticket, need.total_tokens, chain));
  absl::Status refused;
  for (const std::shared_ptr<const LiveWorker>& worker : workers) {
    const absl::StatusOr<v1::LeaseId> lease = Ask(*worker, need);
    if (lease.ok()) {
      std::unique_ptr<DecodeLease> held(new DecodeLease(fleet, sequencer, worker, *lease, need.total_tokens));
      RUNAHEAD_RETURN_IF_ERROR(cancel.status());
      return held;
    }
    if (absl::IsResourceExhausted(lease.status())) fleet.LeaseRefused(*worker, need.total_tokens);
    RUNAHEAD_RETURN_IF_ERROR(cancel.status());
    if (IsToBlame(lease.status())) fleet.ejections().Judge(WorkerRole::kDecode, worker->index, lease.status());
    // One that is full now is worth waiting for, whatever the others say.
    if (!absl::IsResourceExhausted(refused)) {
      refused = OfWorker(absl::StrCat("decode worker ", worker->capabilities.name()), lease.status());
    }
  }
  return refused;
}

DecodeLease::DecodeLease(Fleet& fleet, Sequencer& sequencer, std::shared_ptr<const LiveWorker> worker, v1::LeaseId id,
                         int32_t tokens)
    : fleet_(fleet), sequencer_(sequencer), worker_(std::move(worker)), id_(std::move(id)), tokens_(tokens) {
  fleet_.LeaseTaken(*worker_, tokens_);
}

DecodeLease::~DecodeLease() {
  sequencer_.Release(worker_->index, id_);
  fleet_.LeaseReturned(*worker_, tokens_);
}

absl::Status DecodeLease::Renew(CancelToken& cancel) {
  v1::RenewRequest request;
  *request.mutable_lease() = id_;
  grpc::ClientContext context;
  SetTimeout(context, kAnswerTimeout);
  const CancelToken::Subscription cancelled = cancel.OnCancel([&context] { context.TryCancel(); });
  v1::RenewReply reply;
  const absl::Status status = FromGrpcStatus(worker_->decode->Renew(&context, request, &reply));
  RUNAHEAD_RETURN_IF_ERROR(cancel.status());
  if (status.ok()) return status;
  return OfWorker(absl::StrCat("decode worker ", worker_->capabilities.name(), ", renewing a lease"),
                  absl::UnavailableError(status.message()));
}

}  // namespace runahead
