// What a job takes of a stage's memory: rows of KV, and of X where it hands X off.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "worker/model/model.h"
#include "worker/prefill/job.h"
#include "worker/prefill/layer_ring.h"

namespace runahead {

// Of X of one token in one layer, in the form that it is handed off in (XFormOf).
int64_t XRowBytesOf(const Model& model, const Device& device);

// Of each of the job's layer buffers. X of all own tokens is kept where that of any is handed off; a job that hands off
// none takes not a byte for it. The job was checked.
LayerRows LayerRowsOf(const PrefillJob& job, const Model& model, const Device& device);

// RESOURCE_EXHAUSTED, with what would fit, where `memory_bytes` do not hold the fewest layer buffers of such rows.
absl::Status CheckJobMemory(const LayerRows& rows, size_t memory_bytes);

}  // namespace runahead
