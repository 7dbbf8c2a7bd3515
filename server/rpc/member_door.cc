#include "server/rpc/member_door.h"

#include <algorithm>
#include <utility>

#include "server/rpc/status.h"

namespace runahead {
namespace {

absl::Status NoMember() {
  return absl::UnauthenticatedError(
      "the caller does not have this worker's cluster key: give router and workers the same cluster_key");
}

}  // namespace

MemberDoor::MemberDoor(ClusterKey key, OpenDoor& open_door, Clock& clock)
    : MessageService(open_door.door()), key_(std::move(key)), clock_(clock) {
  Unary("Prove", &MemberDoor::Prove);
}

grpc::ServerUnaryReactor* MemberDoor::Prove(grpc::CallbackServerContext* context, const v1::ProveRequest* request,
                                            v1::ProveReply* reply) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (request->nonce().size() != kCallersNonceBytes) {
    reactor->Finish(ToGrpcStatus(absl::InvalidArgumentError("nonce: it has 16 bytes")));
    return reactor;
  }
  const std::string nonce = nonces_.Make(request->nonce(), context->peer(), clock_.Now());
  reply->set_proof(WorkersProof(key_, request->nonce(), nonce));
  reply->set_nonce(nonce);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

absl::Status MemberDoor::Check(const grpc::ServerContextBase& context) {
  const auto found = context.client_metadata().find(kCallProofKey);
  const bool claims = found != context.client_metadata().end();
  if (!key_.given() && !claims) return absl::OkStatus();
  if (!key_.given() || !claims) return NoMember();
  return CheckProof({found->second.data(), found->second.size()}, context.peer());
}

absl::Status MemberDoor::CheckProof(absl::string_view claimed, absl::string_view peer) {
  CallProof proof;
  if (!UnpackCallProof(claimed, proof)) return NoMember();
  const std::string right = ProofOfCall(SessionKey(key_, proof.callers, proof.workers), proof.number);
  if (!SameProof(proof.proof, right)) return NoMember();
  if (nonces_.IsOurs(proof.workers, proof.callers, peer) && TakeNote(proof)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      "the call's proof of the cluster_key is of another connection, or was used before: prove it anew");
}

bool MemberDoor::TakeNote(const CallProof& proof) {
  const absl::Time now = clock_.Now();
  MutexLock lock(mu_);
  Session* const session = Find(proof, now);
  if (session == nullptr || proof.number + kWindow < session->next || proof.number + 1 == 0) return false;
  if (proof.number < session->next && session->seen[proof.number % kWindow]) return false;
  if (proof.number >= session->next + kWindow) session->seen.reset();
  for (uint64_t skipped = session->next; skipped < proof.number && proof.number - skipped < kWindow; ++skipped) {
    session->seen[skipped % kWindow] = false;
  }
  session->seen[proof.number % kWindow] = true;
  session->next = std::max(session->next, proof.number + 1);
  session->called_at = now;
  return true;
}

MemberDoor::Session* MemberDoor::Find(const CallProof& proof, absl::Time now) {
  const auto found = sessions_.find(proof.workers);
  if (found != sessions_.end()) return &found->second;
  // An older one may have been here, and its calls forgotten.
  if (now - NonceMaker::MadeAt(proof.workers) >= kFirstCall) return nullptr;
  if (sessions_.size() >= kMostSessions) MakeRoom(now);
  if (sessions_.size() >= kMostSessions) return nullptr;
  return &sessions_[proof.workers];
}

void MemberDoor::MakeRoom(absl::Time now) {
  auto oldest = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (now - NonceMaker::MadeAt(it->first) < kFirstCall) continue;  // its proofs would be good again
    if (oldest == sessions_.end() || it->second.called_at < oldest->second.called_at) oldest = it;
  }
  if (oldest != sessions_.end()) sessions_.erase(oldest);
}

}  // namespace runahead
