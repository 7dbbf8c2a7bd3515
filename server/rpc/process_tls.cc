#include "server/rpc/process_tls.h"

#include "kernels/base/status_macros.h"
#include "server/base/logging.h"

namespace runahead {

absl::StatusOr<std::unique_ptr<ProcessTls>> ProcessTls::Open(const TlsSpec& spec) {
  RUNAHEAD_RETURN_IF_ERROR(CheckTlsFiles(spec));
  if (spec.files.cert.empty()) return nullptr;
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<LiveTls> live, LiveTls::Open(spec));
  RUNAHEAD_ASSIGN_OR_RETURN(std::unique_ptr<TlsCredentials> credentials, TlsCredentials::Create(live->material()));
  std::unique_ptr<ProcessTls> tls(new ProcessTls(std::move(live), std::move(credentials)));
  RUNAHEAD_RETURN_IF_ERROR(tls->live_->Follow(
      [credentials = tls->credentials_.get()](const TlsMaterial& material) { return credentials->Replace(material); }));
  LogInfo("tls", spec.prefix, "_cert: ", spec.files.cert, " is in use");
  return tls;
}

}  // namespace runahead
