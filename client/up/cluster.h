// A whole cluster on this machine: what `runahead up` runs between its command line and its exit code.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/up/supervisor.h"
#include "client/up/up_options.h"

namespace runahead {

// The router first, then the workers, then the gateway where there is one; all of them serve.
using Endpoints = std::vector<Supervisor::View>;

// Starts everything from the binaries in `folder`, calls `on_ready` once the router's health says SERVING, and watches
// until a stop signal (OK after `on_ready`, CANCELLED before) or until the cluster cannot go on (UNAVAILABLE says what
// happened). After `on_ready` only the router can end it so: workers that go on dying are started again later and
// later. In any case all children have ended when it returns. Call it before the process has other threads.
absl::Status RunCluster(const UpOptions& options, const std::string& folder,
                        const std::function<void(const Endpoints&)>& on_ready);

// One line of JSON for programs, without a newline: {"router","http","metrics":{name:addr},"pids":{name:pid}};
// "http" is the OpenAI API's base URL, only where it is spoken.
std::string EndpointsJson(const Endpoints& endpoints);

// The same for people, with what to do next.
std::string EndpointsText(const Endpoints& endpoints);

}  // namespace runahead
