// A router in a test's or a benchmark's own process, in front of workers that run.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "server/router/cache_service.h"
#include "server/router/inference_service.h"
#include "server/router/model_info.h"
#include "server/router/worker_registry.h"
#include "server/rpc/server.h"
#include "worker/format/open_model.h"

namespace runahead::testing {

// In the order of construction, as RouterProcess::Parts. `parts` may change while no request is on its way.
struct ServingRouter {
  // Serves at server->address(); the workers join meanwhile. `table`: a partition file; empty: none. Errors are those
  // of reading the files, and of listening.
  static absl::StatusOr<std::unique_ptr<ServingRouter>> Start(const std::vector<WorkerSpec>& workers,
                                                              const std::string& model, const std::string& table,
                                                              const std::string& dtype) {
    RUNAHEAD_ASSIGN_OR_RETURN(const auto file, OpenModelFile(model));
    RUNAHEAD_ASSIGN_OR_RETURN(ModelInfo info, ReadModelInfo(*file));
    RUNAHEAD_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromModel(*file));
    RUNAHEAD_ASSIGN_OR_RETURN(auto followed, LiveTable::Open(table, info));
    auto router =
        std::make_unique<ServingRouter>(workers, std::move(info), std::move(tokenizer), std::move(followed), dtype);
    RpcServerOptions rpc;
    rpc.listen = "127.0.0.1:0";
    rpc.services = {&router->service, &router->cache};
    RUNAHEAD_ASSIGN_OR_RETURN(router->server, RpcServer::Start(rpc));
    router->service.SetGate(&router->server->gate());
    router->cache.SetGate(&router->server->gate());
    return router;
  }

  ServingRouter(const std::vector<WorkerSpec>& workers, ModelInfo info, std::shared_ptr<const Tokenizer> tokenizer,
                std::unique_ptr<LiveTable> followed, const std::string& dtype)
      : metrics(registry, info.name),
        table(std::move(followed)),
        fleet(workers, metrics, RealClock()),
        queue(fleet, /*queue_size=*/256, metrics, RealClock()),
        parts{fleet,
              queue,
              sequencer,
              metrics,
              RealClock(),
              std::move(info),
              std::move(tokenizer),
              absl::UnimplementedError("no chats here"),
              *table},
        members(fleet, sequencer, parts.model, dtype, RealClock()),
        service(parts, {}),
        cache(parts) {}

  MetricRegistry registry{"none"};
  RouterMetrics metrics;
  const std::unique_ptr<LiveTable> table;
  Fleet fleet;
  FleetQueue queue;
  Sequencer sequencer;
  RouterParts parts;
  WorkerRegistry members;
  InferenceService service;
  CacheService cache;
  std::unique_ptr<RpcServer> server;
};

}  // namespace runahead::testing
