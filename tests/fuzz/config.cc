// A YAML file of a router or a worker; the first byte says whose.
#include "server/base/config.h"

#include "server/router/router_options.h"
#include "tests/fuzz/fuzz.h"
#include "worker/options.h"

namespace runahead {
namespace {

constexpr char kName[] = "r.yaml";

template <typename Options>
absl::Status Read(std::string_view text, void (*declare)(ConfigSchema&, Options&), Options& options) {
  ConfigSchema schema;
  declare(schema, options);
  const absl::Status read = ReadConfigText(std::string(text), kName, schema);
  return read.ok() ? schema.Finish(kName) : read;
}

}  // namespace

void Fuzz(std::string_view input) {
  if (input.empty()) return;
  absl::Status status, fits;
  if (input[0] == 'r') {
    RouterOptions options;
    status = Read(input.substr(1), DeclareRouterOptions, options);
    if (status.ok()) {
      RUNAHEAD_CHECK(options.queue_size > 0 && options.stall_timeout > absl::ZeroDuration() &&
                     options.request_memory > 0);
      fits = CheckWorkers(options.workers);
    }
  } else {
    WorkerOptions options;
    status = Read(input.substr(1), DeclareWorkerOptions, options);
    if (status.ok()) {
      RUNAHEAD_CHECK(options.threads >= 0 && options.kv_memory >= 0 && options.device_memory_budget >= 0);
      fits = CheckWorkerOptions(options);
    }
  }
  if (!status.ok()) return fuzz::CheckRefusal(status, kName);
  if (!fits.ok()) fuzz::CheckRefusal(fits, "");
}

}  // namespace runahead
