// Runs a model once before it serves, so that the first request does not pay for what is made on first use.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/model/model.h"

namespace runahead {

// What the model takes on the device. A pass's end, and what is made for it, are counted in: rather too much.
struct WarmUpTimes {
  int64_t tokens = 0;                           // of the longest prompt that was tried
  absl::Duration layer = absl::ZeroDuration();  // of it; 0: not measured, for its weights are streamed or it has no use
  absl::Duration step = absl::ZeroDuration();   // of one sequence; likewise
};

// Prefill passes and a batch-invariant one, as `uses` (WeightUse bits) says. Blocks. Device memory that does for short
// prompts only is enough; RESOURCE_EXHAUSTED where it does not do for those.
absl::StatusOr<WarmUpTimes> WarmUp(const Model& model, Device& device, unsigned uses);

// What a decode step of so many sequences takes whose KV is short: the faster one of two. Blocks.
// For models whose weights are on the device; RESOURCE_EXHAUSTED where that has no memory for it.
absl::StatusOr<absl::Duration> TimeStep(const Model& model, Device& device, int64_t sequences);

// What a pass over a prompt of so many tokens takes, likewise. The model is loaded for prompts.
absl::StatusOr<absl::Duration> TimePrompt(const Model& model, Device& device, int64_t tokens);

}  // namespace runahead
