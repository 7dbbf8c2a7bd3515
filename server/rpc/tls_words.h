// What gRPC's words for a connection that did not come about mean for who has the options.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace runahead {

// The options' names, as they are written where the message is read.
struct TlsWords {
  std::string on;    // what has this end speak TLS: "cluster_tls_cert", "--tls-ca"
  std::string ca;    // "cluster_tls_ca"
  std::string cert;  // "cluster_tls_cert"
  std::string name;  // "cluster_tls_name"
};

// UNAVAILABLE where a connection failed in or before the handshake of TLS gets what to do behind its message. All else
// stays as it is. `speaks_tls`: whether this end does.
absl::Status WithTlsWords(const absl::Status& status, bool speaks_tls, const TlsWords& words);

}  // namespace runahead
