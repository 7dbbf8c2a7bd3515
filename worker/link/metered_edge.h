// An edge that counts what crosses it.
#pragma once

#include <memory>

#include "worker/link/edge.h"
#include "worker/metrics/link_metrics.h"

namespace runahead {

// `edge` to the peer that `metrics` counts; the metrics outlive every event of the edge.
std::shared_ptr<Edge> MeterEdge(std::shared_ptr<Edge> edge, std::shared_ptr<LinkMetrics> metrics);

}  // namespace runahead
