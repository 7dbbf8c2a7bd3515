#include "server/rpc/member_call.h"

#include <grpcpp/support/client_interceptor.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "server/rpc/channel.h"

namespace runahead {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

constexpr char kMetadataKey[] = "runahead-cluster-proof";

// Empty where there is no key.
std::string CallProof(const ClusterKey& key) {
  return key.given() ? absl::BytesToHexString(key.Proof("runahead rpc v1")) : "";
}

class ProofSender final : public Interceptor {
 public:
  explicit ProofSender(const std::string& proof) : proof_(proof) {}
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace(kMetadataKey, proof_);
    }
    methods->Proceed();
  }

 private:
  const std::string& proof_;  // the factory's, which lives as long as the channel
};

class ProofSenderFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit ProofSenderFactory(std::string proof) : proof_(std::move(proof)) {}
  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override { return new ProofSender(proof_); }

 private:
  const std::string proof_;
};

}  // namespace

std::shared_ptr<grpc::Channel> MakeMemberChannel(const std::string& address, const ClusterKey& key) {
  Interceptors interceptors;
  if (key.given()) interceptors.push_back(std::make_unique<ProofSenderFactory>(CallProof(key)));
  return MakeChannel(address, kProcessKeepAlive, std::move(interceptors));
}

absl::Status CheckMember(const grpc::ServerContextBase& context, const ClusterKey& key) {
  const auto found = context.client_metadata().find(kMetadataKey);
  absl::string_view claimed;
  if (found != context.client_metadata().end()) claimed = {found->second.data(), found->second.size()};
  if (SameProof(claimed, CallProof(key))) return absl::OkStatus();
  return absl::UnauthenticatedError(
      "the caller does not have this worker's cluster key: give router and workers the same cluster_key");
}

}  // namespace runahead
