// An edge that counts what crosses it.
#pragma once

#include <memory>

#include "worker/link/edge.h"
#include "worker/metrics/link_metrics.h"

namespace runahead {

// `edge` to the peer that `metrics` counts; the metrics outlive every event of the edge. What is received counts from
// its first byte on the wire to its last (wire_time.h). What is sent counts from when its bytes are there until they
// may be reused, which holds what the frame waits for until the peer asks for it.
std::shared_ptr<Edge> MeterEdge(std::shared_ptr<Edge> edge, std::shared_ptr<LinkMetrics> metrics);

}  // namespace runahead
