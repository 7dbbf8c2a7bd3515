#include "server/rpc/credentials.h"

namespace runahead {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials() {
  return grpc::InsecureServerCredentials();
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials() {
  return grpc::InsecureChannelCredentials();
}

}  // namespace runahead
