// What the device does with a chunk in its slot: makes K and V from X, reads quantised rows, adds the step's own rows,
// attends, and keeps what is to stay.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/decode/kvpr/planned_step.h"
#include "worker/decode/kvpr/staging_ring.h"
#include "worker/kv/resident_memory.h"
#include "worker/kv/store.h"
#include "worker/model/layer_pass.h"

namespace runahead {

// A chunk's tables, for one step.
struct ChunkTables {
  std::shared_ptr<const KvTable> attend, recompute;  // recompute: null without X
  std::vector<RowRun> own;
};

// Used by the decode loop's thread; all that is given to the constructor outlives it.
class ChunkPass {
 public:
  ChunkPass(const Model& model, Device& device, Stream& stream, ForwardScratch& scratch, StagingRing& ring,
            const ResidentMemory& memory, const KvStoreOptions& stored);

  // One chunk of one layer, in its slot.
  struct At {
    int64_t layer;
    const PlannedStep& step;
    const StepChunk& chunk;
    const ChunkTables& tables;
    const StagingRing::Loaded& loaded;
    LayerMatrices matrices = {};  // for Recompute: SectionRows::matrices
  };
  // Enqueues K and V from X, behind X's arrival; nothing where the chunk has none. Needs nothing of the layer's step.
  absl::Status Recompute(const At& at);
  // Enqueues the rest, behind Recompute and KV's arrival. `qkv`: of the layer, as LayerPass::ProjectQkv left it.
  absl::Status Attend(LayerPass& pass, const At& at, const Tensor& qkv);

 private:
  // Where what is recomputed of the part, or streamed, begins in the layer: what its window hides is neither.
  int64_t RecomputedFrom(const At& at, const ChunkPart& part) const;
  int64_t StreamedFrom(const At& at, const ChunkPart& part) const;
  absl::Status FillX(const At& at);
  // Blocks of rows of the slot that follow each other: each is bitwise the same whatever others there are.
  struct Blocks {
    int64_t first_row = 0;
    std::vector<int32_t> rows = {};
    int64_t count() const;
  };
  // Those that are recomputed, but for what the layer's window hides as a whole.
  std::vector<Blocks> RecomputedBlocks(const At& at) const;
  absl::Status RecomputeRows(const At& at);
  // K and V of the blocks.
  absl::Status Multiply(const At& at, const Blocks& blocks);
  absl::Status DequantiseStreamed(const At& at);
  absl::Status KeepWhatStays(const At& at);
  // Rows [first, first + count) of the slot; nothing where the store does not quantise.
  absl::Status Quantise(const At& at, int64_t first, int64_t count);
  absl::Status Dequantise(const At& at, int64_t first, int64_t count);
  Tensor KvRows(const At& at, int64_t first, int64_t count) const;

  const Model& model_;
  Device& device_;
  Stream& stream_;
  ForwardScratch& scratch_;
  StagingRing& ring_;
  const ResidentMemory& memory_;
  const std::optional<KvQuantisation> quantisation_;
  const int64_t kv_row_bytes_, x_row_bytes_;
  const RowForm x_form_;
  ForwardScratch normed_;  // where X is quantised
};

// K and V of the step's rows `runs`, from qkv, to where `table` has them behind `kv`.
absl::Status StoreOwnRows(Device& device, Stream& stream, const AttentionShape& shape, const Tensor& qkv,
                          const std::vector<RowRun>& runs, const KvTable& table, const BufferRef& kv);

}  // namespace runahead
