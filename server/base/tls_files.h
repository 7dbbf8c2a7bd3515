// A certificate of this process, with its private key and with the authorities (CA) whose certificates it trusts: how
// it is read from files, and judged before anything uses it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace runahead {

// Paths of PEM files, as the options <prefix>_cert, <prefix>_key and <prefix>_ca say them. Empty: not given.
struct TlsFiles {
  std::string cert = {};  // the certificate, and behind it those that lead from it to its authority
  std::string key = {};   // its private key, without a passphrase
  std::string ca = {};    // authorities whose certificates are taken from others
};

// The files' texts, not judged.
struct TlsTexts {
  std::string cert, key, ca;
  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

// What to read, and what it is to be good for.
struct TlsSpec {
  std::string prefix;  // of the options' names: "tls" or "cluster_tls"; of flags: "--tls"
  TlsFiles files;
  // Not empty: it stands for a member of a cluster, whose certificates have this DNS name, are of the own authorities,
  // and are good for both ends of a connection.
  std::string member = "";
};

// A certificate that was judged good, with its key. Copies share nothing. Never printed.
struct TlsMaterial {
  std::string identity;  // PEM: certificates and key
  std::string ca;        // PEM; empty where nobody else's are judged
  absl::Time expires;    // the certificate's end
};

// INVALID_ARGUMENT naming the option where some of what belongs together is missing: a certificate or its key; for a
// member the authorities as well. Nothing at all is OK.
absl::Status CheckTlsFiles(const TlsSpec& spec);

// Reads what is given. Errors name option and file: NOT_FOUND and the like, PERMISSION_DENIED where everybody on this
// host may read or write the key, INVALID_ARGUMENT where a file is too large to be one.
absl::StatusOr<TlsTexts> ReadTlsTexts(const TlsSpec& spec);

// INVALID_ARGUMENT, with option and file and what to do, where the texts are no certificate with its key, the two do
// not fit, it is not good at `now`, or is no member's. Holds nothing of the key.
absl::StatusOr<TlsMaterial> CheckTls(const TlsSpec& spec, const TlsTexts& texts, absl::Time now);

}  // namespace runahead
