#include "worker/prefill/job_memory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/model/x_form.h"

namespace runahead {

int64_t XRowBytesOf(const Model& model, const Device& device) {
  return RowFormBytes(XFormOf(model, device), model.config().hidden);
}

LayerRows LayerRowsOf(const PrefillJob& job, const Model& model, const Device& device) {
  return {.kv = job.held_tokens(),
          .kv_row_bytes = model.kv_row_bytes(),
          .x = job.own_x_tokens() > 0 ? job.tokens() : 0,
          .x_row_bytes = XRowBytesOf(model, device)};
}

absl::Status CheckJobMemory(const LayerRows& rows, size_t memory_bytes) {
  if (kMinLayerSlots * rows.bytes() <= memory_bytes) return absl::OkStatus();
  const int64_t x_takes = kMinLayerSlots * static_cast<int64_t>(rows.x_bytes());
  const int64_t left = std::max<int64_t>(0, static_cast<int64_t>(memory_bytes) - x_takes);
  const std::string beside = rows.x == 0 ? "" : absl::StrCat(" beside X of ", rows.x);
  return absl::ResourceExhaustedError(absl::StrCat("a prefix of ", rows.kv, " tokens does not fit the ",
                                                   left / (kMinLayerSlots * rows.kv_row_bytes),
                                                   " that this worker's prefill_memory holds", beside));
}

}  // namespace runahead
