// Who may talk to whom: the one place that chooses credentials. For now everybody, unencrypted.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

namespace runahead {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials();
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials();

}  // namespace runahead
