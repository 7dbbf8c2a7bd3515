// A certificate of a process, from its files to what gRPC takes.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/base/live_tls.h"
#include "server/rpc/tls_credentials.h"

namespace runahead {

// Used by one thread, but for the credentials.
class ProcessTls {
 public:
  // Null where none of the files is given. Errors are LiveTls::Open's.
  static absl::StatusOr<std::unique_ptr<ProcessTls>> Open(const TlsSpec& spec);

  // As LiveTls::Poll. gRPC follows.
  void Poll(absl::Time now, const TlsMetrics& metrics) { live_->Poll(now, metrics); }
  // As LiveTls::Follow, for others than gRPC.
  absl::Status Follow(LiveTls::Taker taker) { return live_->Follow(std::move(taker)); }

  const TlsCredentials& credentials() const { return *credentials_; }

 private:
  ProcessTls(std::unique_ptr<LiveTls> live, std::unique_ptr<TlsCredentials> credentials)
      : credentials_(std::move(credentials)), live_(std::move(live)) {}

  const std::unique_ptr<TlsCredentials> credentials_;
  const std::unique_ptr<LiveTls> live_;
};

}  // namespace runahead
