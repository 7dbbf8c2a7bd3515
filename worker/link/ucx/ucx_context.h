// A UCX context, its one worker and its listener: configuration, address, and how endpoints are made. The only link
// header that shows UCX types; for the engine's implementation alone.
#pragma once

#include <ucp/api/ucp.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/base/address.h"

namespace runahead {

// Used by one thread at a time.
class UcxContext {
 public:
  // `transports` as UCX_TLS takes them; empty: all but shared memory. What the user set in the environment is kept.
  // Listens at `at`, a numeric address; port 0 takes a free one.
  static absl::StatusOr<std::unique_ptr<UcxContext>> Create(const std::string& transports, const HostPort& at);
  ~UcxContext();
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;

  ucp_worker_h worker() const { return worker_; }
  // Readable when the worker wants progress, once armed.
  int event_fd() const { return event_fd_; }
  // Where others connect to: "10.0.0.1:4711", "[::1]:4711".
  const std::string& address() const { return address_; }

  // What to do when somebody connects; runs inside progress, and ends in Accept or Reject. Set before the first
  // progress.
  void OnConnection(std::function<void(ucp_conn_request_h)> handler) { on_connection_ = std::move(handler); }
  // An endpoint to what address() of another context gave; `on_error(arg, ep, status)` runs inside progress.
  absl::StatusOr<ucp_ep_h> Connect(const std::string& address, ucp_err_handler_cb_t on_error, void* arg);
  // The endpoint to who made a connection to here.
  absl::StatusOr<ucp_ep_h> Accept(ucp_conn_request_h request, ucp_err_handler_cb_t on_error, void* arg);
  void Reject(ucp_conn_request_h request);
  // Nobody connects any more once this returns; until then the handler of OnConnection may be called. All endpoints are
  // closed.
  void StopListening();

 private:
  UcxContext() = default;
  absl::Status Init(const std::string& transports);
  absl::Status Listen(const HostPort& at);
  absl::StatusOr<ucp_ep_h> MakeEndpoint(ucp_ep_params_t params, ucp_err_handler_cb_t on_error, void* arg,
                                        std::string_view what);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int event_fd_ = -1;
  std::function<void(ucp_conn_request_h)> on_connection_;
  std::string address_;
};

// UNAVAILABLE (or OK), with UCX's words and `what` was tried.
absl::Status UcxStatus(ucs_status_t status, std::string_view what);

}  // namespace runahead
