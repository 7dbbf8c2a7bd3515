// What Model::Project works in, the same in every family.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/base/status_macros.h"
#include "worker/model/model.h"

namespace runahead {

struct ProjectionScratch {
  Tensor normed;              // [rows, hidden], what the product reads
  Tensor qkv;                 // f32 [rows, q_cols + 2*kv_dim]
  bool other_normed = false;  // to.normed is wanted, and it is not `normed`
};

// Slots of SectionRows::scratch.
struct ProjectionSlots {
  int normed, qkv;
};

// The caller's tensors where they serve, else those of the slots.
inline absl::StatusOr<ProjectionScratch> ScratchOf(const Device& device, const SectionRows& rows, const Projection& to,
                                                   ProjectionSlots slots, int64_t hidden, int64_t q_cols,
                                                   int64_t kv_dim) {
  const DType read = ActivationDType(device, rows.batch_invariant);
  const bool wanted = to.normed.ref.buffer != nullptr;
  ProjectionScratch scratch{.normed = to.normed, .qkv = to.qkv, .other_normed = wanted && to.normed.dtype != read};
  if (!wanted || scratch.other_normed) {
    RUNAHEAD_ASSIGN_OR_RETURN(scratch.normed, rows.scratch.Get(slots.normed, read, rows.count, hidden));
  }
  if (to.qkv.ref.buffer == nullptr) {
    RUNAHEAD_ASSIGN_OR_RETURN(scratch.qkv, rows.scratch.Get(slots.qkv, DType::kF32, rows.count, q_cols + 2 * kv_dim));
  }
  return scratch;
}

}  // namespace runahead
