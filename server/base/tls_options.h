// Options about TLS, the same for every program that has them.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/base/config.h"
#include "server/base/tls_files.h"

namespace runahead {

// Declares cluster_tls_cert, cluster_tls_key, cluster_tls_ca and cluster_tls_name.
void DeclareClusterTls(ConfigSchema& schema, TlsFiles& files, std::string& name);

// Declares tls_cert, tls_key, tls_ca and tls_client_auth, of a port that clients call.
void DeclarePortTls(ConfigSchema& schema, TlsFiles& files, std::string& client_auth);

// What the schema cannot say: INVALID_ARGUMENT where the two do not go together.
absl::Status CheckClientAuth(const TlsFiles& files, const std::string& client_auth);

}  // namespace runahead
