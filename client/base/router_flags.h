// Where a command finds a router, who calls, and how the connection is encrypted.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "server/rpc/channel.h"

namespace CLI {
class App;
}

namespace runahead {

// --tls and --tls-*: of a connection to whatever speaks TLS. One of them is enough for it.
struct TlsFlags {
  bool tls = false;
  std::string ca, cert, key;
  std::string server_name;

  // Keeps references into *this.
  void AddTo(CLI::App& app);
  // After parsing: what a channel takes. INVALID_ARGUMENT and the like name the flag and the file.
  absl::StatusOr<ChannelTls> Read() const;
  bool given() const { return tls || !ca.empty() || !cert.empty() || !key.empty() || !server_name.empty(); }
};

struct RouterFlags {
  std::string address;       // empty: not given
  std::string api_key = {};  // empty: none
  TlsFlags tls = {};

  // Keeps references into *this.
  void AddTo(CLI::App& app, bool required = true);
};

}  // namespace runahead
