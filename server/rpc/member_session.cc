#include "server/rpc/member_session.h"

#include <grpcpp/client_context.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/channel.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

// As long as a router bears a worker's silence.
constexpr absl::Duration kPatience = absl::Seconds(3);

}  // namespace

// Asked of the worker; lives until it has answered.
struct MemberSession::Question {
  std::unique_ptr<grpc::ChannelInterface> channel;
  grpc::ClientContext context;
  v1::ProveRequest request;
  v1::ProveReply reply;
};

void MemberSession::Prove(std::unique_ptr<grpc::ChannelInterface> channel, Proved proved) {
  std::string proof;
  {
    MutexLock lock(mu_);
    if (proved_ && channel->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_READY) proved_ = false;
    if (!proved_) {
      waiting_.push_back(std::move(proved));
      if (std::exchange(asking_, true)) return;
    } else {
      proof = NextProof();
    }
  }
  if (proof.empty()) return Ask(std::move(channel));
  proved(std::move(proof));
}

std::string MemberSession::NextProof() {
  const uint64_t number = next_++;
  return PackCallProof({callers_, workers_, number, ProofOfCall(session_, number)});
}

void MemberSession::Ask(std::unique_ptr<grpc::ChannelInterface> channel) {
  const auto question = std::make_shared<Question>();
  question->channel = std::move(channel);
  question->request.set_nonce(RandomNonce(kCallersNonceBytes));
  SetTimeout(question->context, kPatience);
  // Not owned: it lives as the question does.
  const std::shared_ptr<grpc::ChannelInterface> borrowed(std::shared_ptr<void>(), question->channel.get());
  v1::Membership::NewStub(borrowed)->async()->Prove(
      &question->context, &question->request, &question->reply,
      [self = shared_from_this(), question](const grpc::Status& status) { self->OnAnswer(*question, status); });
}

absl::Status MemberSession::Judge(const Question& question, const grpc::Status& status) const {
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::FailedPreconditionError(
        absl::StrCat(address_, " does not know how to prove that it has the cluster_key: it is of another version"));
  }
  if (!status.ok()) return FromGrpcStatus(status);
  const std::string& nonce = question.reply.nonce();
  if (nonce.size() == kWorkersNonceBytes &&
      SameProof(question.reply.proof(), WorkersProof(key_, question.request.nonce(), nonce))) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(absl::StrCat("the worker at ", address_,
                                                 " does not have the caller's cluster key: give router and workers the "
                                                 "same cluster_key"));
}

void MemberSession::OnAnswer(const Question& question, const grpc::Status& status) {
  const absl::Status judged = Judge(question, status);
  std::vector<std::pair<Proved, std::string>> proved;
  {
    MutexLock lock(mu_);
    asking_ = false;
    proved_ = judged.ok();
    if (proved_) {
      callers_ = question.request.nonce();
      workers_ = question.reply.nonce();
      session_ = SessionKey(key_, callers_, workers_);
      next_ = 0;
    }
    for (Proved& one : waiting_) proved.emplace_back(std::move(one), proved_ ? NextProof() : "");
    waiting_.clear();
  }
  for (auto& [one, proof] : proved) {
    if (judged.ok()) {
      one(std::move(proof));
    } else {
      one(judged);
    }
  }
}

void MemberSession::Forget(const std::string& proof) {
  CallProof refused;
  if (!UnpackCallProof(proof, refused)) return;
  MutexLock lock(mu_);
  if (refused.workers == workers_) proved_ = false;
}

}  // namespace runahead
