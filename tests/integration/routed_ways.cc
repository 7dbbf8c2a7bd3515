#include "tests/integration/routed_ways.h"

#include "kernels/base/status_macros.h"
#include "tests/testing/serving_router.h"

namespace runahead::testing {

RoutedWays::RoutedWays(const std::vector<std::pair<std::string, std::string>>& workers, const std::string& model,
                       const std::string& dtype) {
  std::vector<WorkerSpec> specs;
  for (const auto& [role, address] : workers) specs.push_back({role, address});
  absl::StatusOr<std::unique_ptr<ServingRouter>> router = ServingRouter::Start(specs, model, /*table=*/"", dtype);
  RUNAHEAD_CHECK(router.ok());
  router_ = *std::move(router);
}

RoutedWays::~RoutedWays() = default;

const std::string& RoutedWays::address() const {
  return router_->server->address();
}

int RoutedWays::ready_prefill() const {
  return router_->fleet.ready_prefill();
}

int RoutedWays::ready_decode() const {
  return router_->fleet.ready_decode();
}

void RoutedWays::Take(KnownWay way, Schedule schedule) {
  router_->parts.only_way = way;
  router_->parts.schedule = schedule;
}

}  // namespace runahead::testing
