// A caller's side of membership, over one channel: has the worker prove itself before any call is made, and gives each
// call its proof.
#pragma once

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/member.grpc.pb.h"
#include "server/base/cluster_key.h"
#include "server/rpc/member_proof.h"

namespace runahead {

// Thread-safe. A session is of one connection: when the channel has lost that, the worker proves itself anew.
class MemberSession : public std::enable_shared_from_this<MemberSession> {
 public:
  // Gets what a call carries (kCallProofKey), or why it must not be made: UNAUTHENTICATED where the worker does not
  // have the key, FAILED_PRECONDITION where it knows no such proof, and what else the question ended with.
  using Proved = std::function<void(absl::StatusOr<std::string>)>;

  // `address`: as messages name the worker.
  MemberSession(ClusterKey key, std::string address) : key_(std::move(key)), address_(std::move(address)) {}

  // A proof for one call: at once, or when the worker has answered, on a thread of gRPC's. `channel` leads to the
  // worker without coming by here.
  void Prove(std::unique_ptr<grpc::ChannelInterface> channel, Proved proved) RUNAHEAD_EXCLUDES(mu_);

  // The worker refused `proof`: what it was made in is over.
  void Forget(const std::string& proof) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Question;

  std::string NextProof() RUNAHEAD_REQUIRES(mu_);
  void Ask(std::unique_ptr<grpc::ChannelInterface> channel) RUNAHEAD_EXCLUDES(mu_);
  void OnAnswer(const Question& question, const grpc::Status& status) RUNAHEAD_EXCLUDES(mu_);
  absl::Status Judge(const Question& question, const grpc::Status& status) const;

  const ClusterKey key_;
  const std::string address_;
  Mutex mu_;
  bool proved_ RUNAHEAD_GUARDED_BY(mu_) = false;
  bool asking_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::vector<Proved> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::string callers_ RUNAHEAD_GUARDED_BY(mu_);  // nonces
  std::string workers_ RUNAHEAD_GUARDED_BY(mu_);
  ClusterKey session_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
