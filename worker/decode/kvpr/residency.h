// What of the running sequences stays on the device: the newest KV of each, and X of its beginning. Decides and keeps
// the books; moves no bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "scheduler/recompute/tier_plan.h"
#include "worker/kv/resident_memory.h"

namespace runahead {

// A sequence of a step. The key is the same in all its steps, and is not used again before Leave.
struct ResidentKey {
  const void* sequence = nullptr;
  int64_t length = 0;    // positions, those of the step's rows included
  int64_t rows = 1;      // of the step
  int64_t x_stored = 0;  // X is stored for [0, x_stored)
  int64_t kv_from = 0;   // KV is stored from here on, what lies before is recomputed: at most x_stored
  int64_t first_new() const { return length - rows; }
};

// What a step finds resident of one sequence, and what is to come to stay while it passes through staging.
struct ResidentPart {
  int64_t resident_from = 0;  // KV from here up to the step's rows; `length` or more: none
  int64_t x_resident = 0;     // X of [0, x_resident)
  int64_t l_min = 0;          // recompute up to here: no KV is stored there, or X has to pass that is to stay
  // Blocks of ResidentMemory: of tokens kKvBlockTokens * (first_kv + i), and of X kKvBlockTokens * i.
  int64_t first_kv = 0;
  std::vector<int32_t> kv_blocks, x_blocks;
};

// Belongs to the decode loop's thread. All memory goes back when it ends.
class Residency {
 public:
  // `memory` outlives it.
  Residency(ResidentMemory& memory, const TierBudget& budget) : memory_(memory), budget_(budget) {}
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // For the next step of `sequences`; `costs` are those by which it will be split. Blocks that are given up may be in
  // use by work enqueued before. Calling it again changes nothing but for what sequences need.
  absl::StatusOr<std::vector<ResidentPart>> Prepare(absl::Span<const ResidentKey> sequences, const LaneCosts& costs);
  // The step has been enqueued as `part` says; X up to `recomputed` passed.
  void Commit(const ResidentKey& key, const ResidentPart& part, int64_t recomputed);
  // What is resident of the sequence may be wrong: it is loaded anew.
  void Distrust(const void* sequence);
  // Gives up what the sequence has.
  void Leave(const void* sequence);

 private:
  struct Held {
    int64_t first_kv = 0;                  // block
    std::vector<int32_t> kv_blocks;        // of blocks first_kv + i
    std::vector<int32_t> x_blocks;         // of blocks i
    int64_t valid_from = 0, valid_to = 0;  // KV
    int64_t x_valid = 0;                   // X of [0, x_valid)
    int64_t kv_target = 0, x_target = 0;   // where the window is to begin; where X is to end
    int64_t planned_length = 0;            // for which the targets are
  };

  bool NeedsPlan(absl::Span<const ResidentKey> sequences) const;
  absl::Status Plan(absl::Span<const ResidentKey> sequences, const LaneCosts& costs);
  void FitWindow(const ResidentKey& key, Held& held);
  void FitX(const ResidentKey& key, Held& held);
  void DropKvBefore(int64_t block, Held& held);
  void DropXFrom(int64_t block, Held& held);

  ResidentMemory& memory_;
  const TierBudget budget_;
  absl::flat_hash_map<const void*, Held> held_;
  std::vector<const void*> planned_;  // the sequences of the last plan
};

}  // namespace runahead
