// What links are encrypted with: a certificate at both ends, by TLS 1.3 of OpenSSL.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/mutex.h"
#include "server/base/tls_files.h"
#include "worker/link/tcp/tls_stream.h"

namespace runahead {

// Thread-safe.
class LinkTls {
 public:
  // `name`: the DNS name that the certificates of all members have. `key_bytes`: TlsStream's.
  explicit LinkTls(std::string name, uint64_t key_bytes = TlsStream::kKeyBytes)
      : name_(std::move(name)), key_bytes_(key_bytes) {}

  // From now on new connections take it. It was judged (CheckTls). INTERNAL where OpenSSL does not take it: the one
  // from before stays.
  absl::Status Use(const TlsMaterial& material) RUNAHEAD_EXCLUDES(mu_);

  // Speaks TLS 1.3 over the socket. `calls`: this end made the connection. INTERNAL: OpenSSL has no memory.
  absl::StatusOr<std::unique_ptr<TcpStream>> Over(Descriptor socket, bool calls) const RUNAHEAD_EXCLUDES(mu_);

 private:
  const std::string name_;
  const uint64_t key_bytes_;
  mutable Mutex mu_;
  std::shared_ptr<SSL_CTX> context_ RUNAHEAD_GUARDED_BY(mu_);  // null until there is one
};

}  // namespace runahead
