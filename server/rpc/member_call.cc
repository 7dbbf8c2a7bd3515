#include "server/rpc/member_call.h"

#include <grpcpp/support/client_interceptor.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "server/rpc/channel.h"
#include "server/rpc/member_session.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

// What a call knows of its proof, and what it wants to send until it has one. Outlives the call where its proof does.
struct Gate {
  Mutex mu;
  bool open RUNAHEAD_GUARDED_BY(mu) = false;
  std::vector<InterceptorBatchMethods*> held RUNAHEAD_GUARDED_BY(mu);  // in order
  absl::Status refused RUNAHEAD_GUARDED_BY(mu);
  std::string proof RUNAHEAD_GUARDED_BY(mu);
};

// Lets the call go on with its proof, or ends it unsent. None overtakes `first`. What is held lives, as its call does,
// until it has gone on.
void Open(Gate& gate, InterceptorBatchMethods* first, grpc::ClientContext* context, absl::StatusOr<std::string> proof) {
  {
    MutexLock lock(gate.mu);
    if (proof.ok()) {
      gate.proof = *proof;
    } else {
      gate.refused = proof.status();
    }
  }
  if (proof.ok()) {
    first->GetSendInitialMetadata()->emplace(kCallProofKey, *std::move(proof));
  } else {
    context->TryCancel();  // so nothing goes out
  }
  first->Proceed();
  for (;;) {
    std::vector<InterceptorBatchMethods*> held;
    {
      MutexLock lock(gate.mu);
      held.swap(gate.held);
      gate.open = held.empty();
    }
    if (held.empty()) return;
    for (InterceptorBatchMethods* const methods : held) methods->Proceed();
  }
}

// Of one call.
class ProofSender final : public Interceptor {
 public:
  ProofSender(std::shared_ptr<MemberSession> session, ClientRpcInfo* info)
      : session_(std::move(session)), context_(info->client_context()) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_CANCEL)) return methods->Proceed();
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_STATUS)) Judge(*methods->GetRecvStatus());
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      return session_->Prove(methods->GetInterceptedChannel(),
                             [gate = gate_, methods, context = context_](absl::StatusOr<std::string> proof) {
                               Open(*gate, methods, context, std::move(proof));
                             });
    }
    {
      MutexLock lock(gate_->mu);
      if (!gate_->open) return gate_->held.push_back(methods);
    }
    methods->Proceed();
  }

 private:
  void Judge(grpc::Status& status) const {
    MutexLock lock(gate_->mu);
    if (!gate_->refused.ok()) {
      status = ToGrpcStatus(gate_->refused);
    } else if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
      // It has our key, as it proved: it does not know this connection.
      session_->Forget(gate_->proof);
      status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the connection to the worker was made anew meanwhile");
    }
  }

  const std::shared_ptr<MemberSession> session_;
  grpc::ClientContext* const context_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
};

class ProofSenderFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit ProofSenderFactory(std::shared_ptr<MemberSession> session) : session_(std::move(session)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo* info) override { return new ProofSender(session_, info); }

 private:
  const std::shared_ptr<MemberSession> session_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeMemberChannel(const std::string& address, const MemberAccess& access) {
  Interceptors interceptors;
  if (access.key.given()) {
    interceptors.push_back(std::make_unique<ProofSenderFactory>(std::make_shared<MemberSession>(access.key, address)));
  }
  return MakeChannel(address, kProcessKeepAlive, std::move(interceptors), {.credentials = access.tls});
}

}  // namespace runahead
