// A KVPR step that is planned: its sequences, lanes and chunks. The same in every layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/base/kv_table.h"
#include "scheduler/recompute/split_controller.h"
#include "worker/decode/kvpr/residency.h"
#include "worker/decode/kvpr/staging_ring.h"
#include "worker/decode/kvpr/step_chunks.h"
#include "worker/decode/kvpr/step_times.h"

namespace runahead {

// One entry a sequence in all but plan, chunks and times.
struct PlannedStep {
  std::vector<ResidentKey> keys;
  std::vector<std::string_view> request_ids;  // DecodeRow::request_id
  std::vector<StepSequence> sequences;
  std::vector<ResidentPart> residents;
  std::vector<StoredSequence> stored;
  std::vector<LaneShape> shapes;
  LanePlan plan;
  SplitRest rest = SplitRest::kNone;  // SplitSource::rest, when it was planned
  std::vector<StepChunk> chunks;
  std::shared_ptr<StepTimes> times;

  // The first position that any of the sequence's rows sees in layers of this window (0: none). What lies before it may
  // never have come to the stores; what is made of it is read by nobody.
  int64_t FirstSeenBy(int64_t sequence, int64_t window) const {
    return FirstSeen(window, sequences[sequence].first_new());
  }
};

}  // namespace runahead
