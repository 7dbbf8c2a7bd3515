// StartJob as a PrefillJob.
#pragma once

#include "absl/time/time.h"
#include "runahead/v1/worker.pb.h"
#include "worker/prefill/job.h"

namespace runahead {

// A negative deadline has passed. Edges are left for the caller. What does not fit together is found by CheckJob and
// CheckSampling; no value crashes here.
PrefillJob JobFromProto(const v1::StartJob& start, absl::Time now);

}  // namespace runahead
