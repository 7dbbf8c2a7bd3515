// Calls between the processes of one cluster: both ends of a connection prove that they have its key
// (server/rpc/member_proof.h). Who is called is the first, so that whoever listens at a worker's address gets neither a
// call nor anything to call others with.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>
#include <utility>

#include "server/base/cluster_key.h"

namespace runahead {

// What makes a process a member.
struct MemberAccess {
  MemberAccess(ClusterKey of_cluster = {}, std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr)  // NOLINT
      : key(std::move(of_cluster)), tls(std::move(credentials)) {}

  ClusterKey key;
  std::shared_ptr<grpc::ChannelCredentials> tls;  // TlsCredentials::ForMembersChannel; null: nothing is encrypted
};

// As MakeChannel. Before the first call over a connection the worker proves itself; each call carries a proof. A call
// that must not be made ends with why (MemberSession), and nothing of it is sent. One that was under way while the
// connection was made anew may end UNAVAILABLE. Where there is no key, calls go out as they are.
std::shared_ptr<grpc::Channel> MakeMemberChannel(const std::string& address, const MemberAccess& access);

}  // namespace runahead
