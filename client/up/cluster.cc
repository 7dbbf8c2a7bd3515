#include "client/up/cluster.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/base/ready_page.h"
#include "client/up/memory_file.h"
#include "kernels/base/status_macros.h"
#include "server/base/clock.h"
#include "server/base/cpu_limit.h"
#include "server/base/logging.h"
#include "server/base/random.h"

namespace runahead {
namespace {

// From the router's ready line to SERVING it only connects to workers that serve already; loading is before that.
constexpr absl::Duration kRouterTimeout = absl::Seconds(60);
constexpr absl::Duration kHealthPeriod = absl::Milliseconds(50);
constexpr absl::Duration kHealthTimeout = absl::Seconds(1);
// How often a person is told what is waited for.
constexpr absl::Duration kNewsPeriod = absl::Seconds(10);

Endpoints RouterFirst(const Supervisor& supervisor) {
  Endpoints endpoints = supervisor.children();
  const auto router = std::find_if(endpoints.begin(), endpoints.end(),
                                   [](const Supervisor::View& child) { return child.name == "router"; });
  std::rotate(endpoints.begin(), router, router + 1);
  return endpoints;
}

absl::Status AwaitServing(Supervisor& supervisor) {
  const absl::Time began = RealClock().Now();
  absl::Time next_news = began + kNewsPeriod;
  const auto serving = [&] {
    if (supervisor.AllServing()) return true;
    if (RealClock().Now() < next_news) return false;
    std::vector<std::string> waiting;
    for (const Supervisor::View& child : supervisor.children()) {
      if (!child.serving) waiting.push_back(child.name);
    }
    LogInfo("up", "still waiting for ", absl::StrJoin(waiting, ", "), " after ",
            absl::ToInt64Seconds(RealClock().Now() - began), " s");
    next_news += kNewsPeriod;
    return false;
  };
  return supervisor.RunUntil(serving, isatty(STDERR_FILENO) ? kNewsPeriod : absl::InfiniteDuration());
}

absl::Status AwaitHealth(Supervisor& supervisor) {
  const ReadyLine router = supervisor.children().back().address;
  const absl::Time give_up = RealClock().Now() + kRouterTimeout;
  absl::Status health;
  const auto answered = [&] {
    health = AskReady(router.metrics, kReadyOfMetrics, kHealthTimeout);
    return health.ok() || RealClock().Now() > give_up;
  };
  RUNAHEAD_RETURN_IF_ERROR(supervisor.RunUntil(answered, kHealthPeriod));
  if (health.ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the router on ", router.address, " was not ready within ",
                                             absl::FormatDuration(kRouterTimeout), ": ", health.message(),
                                             "; its messages are above"));
}

// What all processes share. Children that are started anew open it again.
struct ClusterFiles {
  MemoryFile key;
  MemoryFile weights;  // of workers on CPUs
};

absl::StatusOr<ClusterFiles> MakeFiles() {
  std::string secret;
  for (int i = 0; i < 4; ++i) absl::StrAppendFormat(&secret, "%016x", RandomBits64());
  RUNAHEAD_ASSIGN_OR_RETURN(MemoryFile key, MemoryFile::Make("cluster_key", secret));
  RUNAHEAD_ASSIGN_OR_RETURN(MemoryFile weights, MemoryFile::Make("weights", ""));
  return ClusterFiles{std::move(key), std::move(weights)};
}

std::vector<ChildSpec> With(const std::string& argument, std::vector<ChildSpec> specs) {
  for (ChildSpec& spec : specs) spec.args.push_back(argument);
  return specs;
}

absl::Status StartAll(const UpOptions& options, const std::string& folder, const ClusterFiles& files,
                      Supervisor& supervisor) {
  const std::string key = absl::StrCat("--cluster-key=", files.key.path());
  std::vector<ChildSpec> specs = With(key, WorkerSpecs(options, folder, UsableCores()));
  if (options.shares_weights()) specs = With(absl::StrCat("--shared-weights=", files.weights.path()), std::move(specs));
  RUNAHEAD_RETURN_IF_ERROR(supervisor.Start(std::move(specs)));
  RUNAHEAD_RETURN_IF_ERROR(AwaitServing(supervisor));
  std::vector<std::string> workers;
  for (const Supervisor::View& worker : supervisor.children()) workers.push_back(worker.address.address);
  RUNAHEAD_RETURN_IF_ERROR(supervisor.Start(With(key, {RouterSpec(options, folder, workers)})));
  RUNAHEAD_RETURN_IF_ERROR(AwaitServing(supervisor));
  RUNAHEAD_RETURN_IF_ERROR(AwaitHealth(supervisor));
  if (!options.has_gateway()) return absl::OkStatus();
  const std::string router = supervisor.children().back().address.address;
  RUNAHEAD_RETURN_IF_ERROR(supervisor.Start({GatewaySpec(options, folder, router)}));
  return AwaitServing(supervisor);
}

// The base URL of the OpenAI API; empty where nobody speaks it.
std::string HttpBase(const Endpoints& endpoints) {
  const Supervisor::View& last = endpoints.back();
  return last.name == "gateway" ? absl::StrCat("http://", last.address.address, "/v1") : "";
}

}  // namespace

absl::Status RunCluster(const UpOptions& options, const std::string& folder,
                        const std::function<void(const Endpoints&)>& on_ready) {
  RUNAHEAD_ASSIGN_OR_RETURN(const ClusterFiles files, MakeFiles());
  SupervisorOptions watch;
  watch.say = [](const std::string& line) { LogInfo("up", line); };
  Supervisor supervisor(std::move(watch));
  absl::Status status = StartAll(options, folder, files, supervisor);
  if (status.ok()) {
    on_ready(RouterFirst(supervisor));
    supervisor.GoOnDegraded();
    status = supervisor.RunUntil([] { return false; });
    if (absl::IsCancelled(status)) status = absl::OkStatus();
  }
  supervisor.Stop();
  return status;
}

std::string EndpointsJson(const Endpoints& endpoints) {
  nlohmann::ordered_json json;
  json["router"] = endpoints.front().address.address;
  if (const std::string http = HttpBase(endpoints); !http.empty()) json["http"] = http;
  for (const Supervisor::View& child : endpoints) {
    json["metrics"][child.name] = child.address.metrics;
    json["pids"][child.name] = child.pid;
  }
  return json.dump();
}

std::string EndpointsText(const Endpoints& endpoints) {
  std::string text;
  for (const Supervisor::View& child : endpoints) {
    absl::StrAppendFormat(&text, "%-12s %-22s metrics http://%s/metrics   process %d\n", child.name,
                          child.address.address, child.address.metrics, child.pid);
  }
  const std::string& router = endpoints.front().address.address;
  absl::StrAppend(&text, "\nReady. Ctrl-C stops it. From another terminal:\n  runahead chat --router ", router,
                  "\n  runahead generate --router ", router, " --prompt 'Once upon a time'\n");
  if (const std::string http = HttpBase(endpoints); !http.empty()) {
    absl::StrAppend(&text, "  curl ", http, "/chat/completions -H 'Content-Type: application/json' -d ",
                    R"('{"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 100}')", "\n");
  }
  return text;
}

}  // namespace runahead
