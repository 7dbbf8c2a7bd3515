// What a decode worker says of KVPR's steps: on /metrics, and in the log.
#pragma once

#include <cstdint>
#include <string>

#include "worker/decode/kvpr/kvpr_loop.h"
#include "worker/metrics/decode_metrics.h"

namespace runahead {

// `costs` are of the step's model, of `layers` layers.
KvprObservation ObservationOf(const KvprStep& step, const LaneCosts& costs, int64_t layers);

// One line: what its lanes had, the mean of its steps. `report` is of one step or more.
std::string SequenceLine(const KvprSequenceReport& report);

}  // namespace runahead
