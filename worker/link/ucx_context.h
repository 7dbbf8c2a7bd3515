// A UCX context and its one worker: configuration, address, and what an endpoint is made of. The only link header that
// shows UCX types; for the engine's implementation alone.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace runahead {

// Used by one thread at a time.
class UcxContext {
 public:
  // `transports` as UCX_TLS takes them; empty: whatever UCX finds best. What the user set in the environment is kept.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(const std::string& transports);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_worker_h worker() const { return worker_; }
  // Readable when the worker wants progress, once armed.
  int event_fd() const { return event_fd_; }
  // The worker's address with a check sum, so that bytes that are no such address are refused and not given to UCX.
  const std::string& address() const { return address_; }

  // An endpoint to what address() of another context gave; `on_error(arg, ep, status)` runs inside progress.
  absl::StatusOr<ucp_ep_h> Connect(std::string_view address, ucp_err_handler_cb_t on_error, void* arg);

 private:
  UcxContext() = default;
  absl::Status Init(const std::string& transports);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
};

// UNAVAILABLE (or OK), with UCX's words and `what` was tried.
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

// Which transports and devices the endpoint's lanes use, as UCX names them: "posix/memory, tcp/eth0".
std::string DescribeEndpoint(ucp_ep_h endpoint);

}  // namespace runahead
