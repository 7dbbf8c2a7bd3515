// An edge that counts what crosses it.
#pragma once

#include <memory>

#include "server/base/link_metrics.h"
#include "worker/link/edge.h"

namespace runahead {

// `edge` to the peer that `metrics` counts; the metrics outlive every event of the edge.
std::shared_ptr<Edge> MeterEdge(std::shared_ptr<Edge> edge, std::shared_ptr<LinkMetrics> metrics);

}  // namespace runahead
