#include "worker/link/ucx_context.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status_macros.h"

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

// Whether the choice of transports, the user's UCX_TLS before ours, lets shared memory in.
bool MaySharedMemory(const std::string& transports) {
  const char* chosen = std::getenv("UCX_TLS");
  const std::string tls = chosen != nullptr ? chosen : transports;
  if (tls.empty() || tls[0] == '^') return true;
  for (const char* name : {"all", "sm", "shm", "mm", "posix", "sysv"}) {
    for (absl::string_view part : absl::StrSplit(tls, ',')) {
      if (part == name) return true;
    }
  }
  return false;
}

constexpr size_t kCheckBytes = sizeof(XXH64_hash_t);

std::string CheckSum(std::string_view bytes) {
  const XXH64_hash_t hash = XXH64(bytes.data(), bytes.size(), /*seed=*/0);
  return std::string(reinterpret_cast<const char*>(&hash), sizeof(hash));
}

}  // namespace

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(std::string(what), ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxContext>> UcxContext::Create(const std::string& transports) {
  std::unique_ptr<UcxContext> context(new UcxContext);
  RUNAHEAD_RETURN_IF_ERROR(context->Init(transports));
  return context;
}

absl::Status UcxContext::Init(const std::string& transports) {
  Config config;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_config_read(nullptr, nullptr, &config.config), "reading UCX's configuration"));
  // Without it no endpoint that reports errors can use shared memory (and UCX warns of it where that is off).
  if (MaySharedMemory(transports)) RUNAHEAD_RETURN_IF_ERROR(config.Default("MM_ERROR_HANDLING", "y"));
  // A killed peer is to be noticed within a second.
  RUNAHEAD_RETURN_IF_ERROR(config.Default("KEEPALIVE_INTERVAL", "200ms"));
  if (!transports.empty()) RUNAHEAD_RETURN_IF_ERROR(config.Default("TLS", transports));

  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_init(&params, config.config, &context_), "starting UCX"));

  ucp_worker_params_t worker_params{};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_FLAGS;
  worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // made and destroyed on other threads than the one between
  worker_params.flags = UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_worker_create(context_, &worker_params, &worker_), "making a UCX worker"));
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_worker_get_efd(worker_, &event_fd_), "asking UCX for its event descriptor"));

  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_worker_get_address(worker_, &address, &bytes), "asking UCX for its address"));
  const std::string_view raw(reinterpret_cast<const char*>(address), bytes);
  address_ = CheckSum(raw) + std::string(raw);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

UcxContext::~UcxContext() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::StatusOr<ucp_ep_h> UcxContext::Connect(std::string_view address, ucp_err_handler_cb_t on_error, void* arg) {
  if (address.size() <= kCheckBytes || CheckSum(address.substr(kCheckBytes)) != address.substr(0, kCheckBytes)) {
    return absl::InvalidArgumentError("the link address is damaged or no address of this version");
  }
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data() + kCheckBytes);
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {on_error, arg};
  ucp_ep_h endpoint = nullptr;
  RUNAHEAD_RETURN_IF_ERROR(UcxStatus(ucp_ep_create(worker_, &params, &endpoint),
                                     "no transport of this host reaches the peer (see UCX_TLS, UCX_NET_DEVICES)"));
  return endpoint;
}

std::string DescribeEndpoint(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return "unknown";
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  std::vector<std::string> lanes;
  // Lines such as "#   lane[0]:  3:sysv/memory.0 md[2] ...".
  for (absl::string_view line : absl::StrSplit(absl::string_view(text, size), '\n')) {
    const size_t lane = line.find("lane[");
    if (lane == absl::string_view::npos) continue;
    for (absl::string_view word : absl::StrSplit(line.substr(lane), ' ', absl::SkipEmpty())) {
      if (word.find('/') == absl::string_view::npos) continue;
      const size_t colon = word.find(':');
      if (colon != absl::string_view::npos) word.remove_prefix(colon + 1);
      const size_t dot = word.rfind('.');
      if (dot != absl::string_view::npos) word = word.substr(0, dot);
      if (std::find(lanes.begin(), lanes.end(), std::string(word)) == lanes.end()) lanes.emplace_back(word);
      break;
    }
  }
  std::free(text);
  return lanes.empty() ? "unknown" : absl::StrJoin(lanes, ", ");
}

}  // namespace runahead
