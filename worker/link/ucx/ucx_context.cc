#include "worker/link/ucx/ucx_context.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/listen_error.h"
#include "worker/link/link_address.h"
#include "worker/link/ucx/ucx_door.h"

namespace runahead {
namespace {

// Frees UCX's configuration.
struct Config {
  ucp_config_t* config = nullptr;
  ~Config() {
    if (config != nullptr) ucp_config_release(config);
  }
  // Sets UCX_<name> unless the user has.
  absl::Status Default(const std::string& name, const std::string& value) const {
    if (std::getenv(absl::StrCat("UCX_", name).c_str()) != nullptr) return absl::OkStatus();
    return UcxStatus(ucp_config_modify(config, name.c_str(), value.c_str()),
                     absl::StrCat("setting UCX_", name, "=", value));
  }
};

// All but shared memory. Its receive queue is one for all senders, and a process that is killed (or stopped) while it
// writes an entry leaves a hole there behind which the receiver never hears anybody again: seen with 1.13 in about one
// of a hundred kills. Connections of their own fail alone.
constexpr char kNoSharedMemory[] = "^sm";

ucs_sock_addr_t ForUcx(const SocketAddress& address) {
  return {address.get(), address.length};
}

}  // namespace

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const std::string& transports, const HostPort& at) {
  std::unique_ptr<UcxContext> context(new UcxContext);
  RUNAHEAD_RETURN_IF_ERROR(context->Init(transports));
  RUNAHEAD_RETURN_IF_ERROR(context->Listen(at));
  return context;
}

absl::Status UcxContext::Init(const std::string& transports) {
  Config config;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_config_read(nullptr, nullptr, &config.config), "reading UCX's configuration"));
  // A killed peer is to be noticed within a second.
  RUNAHEAD_RETURN_IF_ERROR(config.Default("KEEPALIVE_INTERVAL", "200ms"));
  RUNAHEAD_RETURN_IF_ERROR(config.Default("TLS", transports.empty() ? kNoSharedMemory : transports));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_init(&params, config.config, &context_), "starting UCX"));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made and destroyed on other threads than the one between
  worker_params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_worker_create(context_, &worker_params, &worker_), "making a UCX worker"));
  return UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "asking UCX for its event descriptor");
}

absl::Status UcxContext::Listen(const HostPort& at) {
  RUNAHEAD_ASSIGN_OR_RETURN(const SocketAddress socket, NumericSocketAddress(at));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = ForUcx(socket);
  params.conn_handler.arg = this;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* context) {
    static_cast<UcxContext*>(context)->on_connection_(request);
  };
  const ucs_status_t created = ucp_listener_create(worker_, &params, &listener_);
  if (created != UCS_OK && at.port > 0) return ListenError("link_port", at);
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(created, absl::StrCat("listening for links at ", at.host)));
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_listener_query(listener_, &attributes), "asking UCX for its listener's port"));
  address_ = FormatHostPort({at.host, PortOf(attributes.sockaddr)});
  return absl::OkStatus();
}

void UcxContext::StopListening() {
  if (listener_ == nullptr) return;
  ShutDoor(address_, [this] { ucp_worker_progress(worker_); });
  ucp_listener_destroy(std::exchange(listener_, nullptr));
}

UcxContext::~UcxContext() {
  StopListening();
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<ucp_ep_h> UcxContext::MakeEndpoint(ucp_ep_params_t params, ucp_err_handler_cb_t on_error, void* arg,
                                                  std::string_view what) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_error, arg};
  ucp_ep_h endpoint = nullptr;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_ep_create(worker_, &params, &endpoint), what));
  return endpoint;
}

absl::StatusOr<ucp_ep_h> UcxContext::Connect(const std::string& address, ucp_err_handler_cb_t on_error, void* arg) {
  RUNAHEAD_ASSIGN_OR_RETURN(const SocketAddress socket, ParseLinkAddress(address));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = ForUcx(socket);
  return MakeEndpoint(params, on_error, arg,
                      absl::StrCat("no transport of this host reaches ", address, " (see UCX_TLS, UCX_NET_DEVICES)"));
}

absl::StatusOr<ucp_ep_h> UcxContext::Accept(ucp_conn_request_h request, ucp_err_handler_cb_t on_error, void* arg) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  return MakeEndpoint(params, on_error, arg, "accepting a connection");
}

void UcxContext::Reject(ucp_conn_request_h request) {
  ucp_listener_reject(listener_, request);
}

}  // namespace runahead
