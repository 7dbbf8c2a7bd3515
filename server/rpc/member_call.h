// Calls between the processes of one cluster. The caller's metadata proves that it has the cluster's key: a proof that
// is always the same, for it is to keep out who reaches the port but sees no traffic.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_context.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/base/cluster_key.h"

namespace runahead {

// As MakeChannel; every call over it carries the proof, or nothing where there is no key.
std::shared_ptr<grpc::Channel> MakeMemberChannel(const std::string& address, const ClusterKey& key);

// UNAUTHENTICATED, saying what to do, unless the caller has the same key, or has none where we have none. Any thread.
absl::Status CheckMember(const grpc::ServerContextBase& context, const ClusterKey& key);

}  // namespace runahead
