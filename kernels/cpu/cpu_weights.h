// Weights of the CPU's device, in the forms that its ops were promised.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/base/device.h"
#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/base/weights.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/int8/int8_weights.h"
#include "kernels/cpu/simd/kernels.h"
#include "kernels/cpu/stored_weights.h"

namespace runahead {

// Immutable once loaded; any thread may read it.
class CpuWeights final : public Weights {
 public:
  // What loading works with. All of it outlives the call, and what lies in the arena the weights.
  struct Loader {
    const CpuKernels& kernels;
    ThreadPool& pool;
    Gemm& gemm;
    Arena& arena;
    const Int8Kernels* int8 = nullptr;  // null: nothing is multiplied in 8 bits
    // What has the forms for 8 bits that are on the device, where sources have names, and counts in the budget.
    SharedWeights* shared = nullptr;
    std::shared_ptr<MemoryBudget> budget = nullptr;  // with `shared`
  };
  // `uses` are WeightUse bits. Blocks. INVALID_ARGUMENT for a source that cannot be, or no use; errors of the arena.
  static absl::StatusOr<std::shared_ptr<const CpuWeights>> Load(const WeightSource& source, unsigned uses,
                                                                const Loader& loader);

  // Of weights with a home, whose bytes are in `slot` when ops run. `slot` is checked.
  std::shared_ptr<const CpuWeights> At(const BufferRef& slot) const;

  ConstBufferRef HomeFrom(int64_t first_row) const override;

  // For kUseDecode, else null; null where int8() is not.
  const StoredWeights* stored() const { return stored_.has_value() ? &*stored_ : nullptr; }
  // The one form, for all uses, of quantised weights that a loader with 8-bit kernels loads; else null.
  const Int8Weights* int8() const { return int8_.has_value() ? &*int8_ : nullptr; }
  // Whether ReadRow may be called: of weights with stored() or int8().
  bool has_rows() const { return stored_.has_value() || int8_.has_value(); }
  // out[0..cols) = row `row`, each element the f32 nearest to its exact value.
  void ReadRow(const CpuKernels& kernels, int64_t row, float* out) const;

  // Whether Linear may multiply with rows [options.first_row, options.first_row + cols), which there are:
  // FAILED_PRECONDITION where the form was not loaded, INVALID_ARGUMENT where the packed one is not cut there.
  absl::Status CheckLoadedFor(const LinearOptions& options, int64_t cols) const;
  // Linear on the packed form, as CheckLoadedFor allows it. Blocks until `out` is written.
  void MultiplyPacked(Gemm& gemm, const ConstTensor& x, const LinearOptions& options, const MutTensor& out) const;

 private:
  // Of the packed form what lies between the source's cuts, in its memory where the layout has borders there.
  struct Part {
    int64_t begin, end;
    std::unique_ptr<const PackedMatrix> packed;
  };

  CpuWeights(int64_t rows, int64_t cols) : Weights(rows, cols) {}
  absl::Status Pack(const StoredWeights& stored, const std::vector<int64_t>& cuts, const Loader& loader);
  absl::StatusOr<std::shared_ptr<const CpuWeights>> WithHome() const;
  // The same forms, each where `to` says of its memory.
  std::shared_ptr<CpuWeights> Moved(const std::function<BufferRef(const BufferRef&)>& to) const;
  bool IsBorder(int64_t row) const;
  void CountBytes();

  std::optional<Int8Weights> int8_;             // then there is no other
  std::optional<StoredWeights> stored_;         // kUseDecode
  std::unique_ptr<const PackedMatrix> packed_;  // kUsePrefill
  std::vector<Part> parts_;                     // none without cuts
};

}  // namespace runahead
