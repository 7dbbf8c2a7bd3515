// Which jobs go through a pass together, which rows are whose, and where they lie in each layer's buffer.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "worker/model/layer_pass.h"
#include "worker/prefill/job.h"
#include "worker/prefill/layer_ring.h"

namespace runahead {

// Whether `job` may share its pass: it has one part and no prefix, so that it waits for nobody, and is short. One that
// is scored goes alone: others would wait for logits of all its rows.
bool MayShare(const PrefillJob& job);

// By job, in the order of their rows. One that is alone has its buffers for itself, as its exchange lays them out;
// others have KV in pages of their own, and all X where any of them hands X off.
struct PassRows {
  LayerRows all;  // of each layer buffer
  std::vector<LayerPart> parts;
};
// The jobs are checked; of several, each may share.
PassRows PassRowsOf(absl::Span<const PrefillJob* const> jobs, const Model& model, const Device& device);

// Where the rows of several jobs lie behind a layer buffer's KV, as PassRowsOf has it.
KvLayout SharedLayout(absl::Span<const PrefillJob* const> jobs);

// All rows of the jobs; logits are wanted of the last one of each tail, and of those that are scored, whose job is
// alone. `kv`: of as many rows.
ForwardBatch BatchOf(absl::Span<const PrefillJob* const> jobs, KvLayout kv);

}  // namespace runahead
