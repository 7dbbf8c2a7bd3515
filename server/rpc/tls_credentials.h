// A certificate as gRPC takes it: credentials for servers and channels, of which each new connection takes the
// certificate that is in use then.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/descriptor.h"
#include "server/base/tls_files.h"

namespace runahead {

// What a server asks of its clients: nothing; a certificate that is judged where there is one; or always one.
enum class ClientAuth { kNone, kRequest, kRequire };

// Whether the first certificate of this PEM text had its end before `now`. Not where there is none.
bool HasRunOut(const std::string& certificate, absl::Time now);

// gRPC reads certificates from files, by a thread of its own, and asks only for names of them. These are files in
// memory: what they hold is whole, was checked, and is nowhere on a disk. Used by one thread, but for the credentials.
class TlsCredentials {
 public:
  // With `material` for now.
  static absl::StatusOr<std::unique_ptr<TlsCredentials>> Create(const TlsMaterial& material);

  // gRPC takes it within two seconds, for connections that are made then. Those that are there go on. Or, where there
  // is no memory or descriptor for it, an error, and all of the one from before stays.
  absl::Status Replace(const TlsMaterial& material);

  // For a server that anybody calls. Clients' certificates are judged by the material's authorities.
  std::shared_ptr<grpc::ServerCredentials> ForServer(ClientAuth auth) const;
  // For the two ends of connections between members of a cluster, who all have certificates for `name`, wherever they
  // are: the other one's is asked for, and must be of the material's authorities and have that DNS name.
  std::shared_ptr<grpc::ServerCredentials> ForMembersServer(const std::string& name) const;
  std::shared_ptr<grpc::ChannelCredentials> ForMembersChannel(const std::string& name) const;

 private:
  TlsCredentials() = default;

  Descriptor identity_, ca_;  // gRPC opens them by their names in /proc; ca_ is not valid where none is judged
  uint64_t version_ = 0;
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider_;  // before the descriptors go
};

}  // namespace runahead
