// How a tile of Hopper's attention reaches memory: FlashInfer's epilogue with a barrier that it lacks.
#pragma once

#include <cutlass/arch/barrier.h>

#include <flashinfer/attention/hopper/epilogue.cuh>
#include <flashinfer/attention/hopper/named_barrier.cuh>
#include <flashinfer/attention/hopper/utils.cuh>

namespace runahead {

// The tile goes from registers through shared memory, so that each row is written in whole lines; there a warp reads
// what other warps wrote. FlashInfer 0.5.3 lets only its last warp wait for the others, which was enough while that
// warp alone handed the tile to the memory accelerator, and is not since all warps read it. Log-sum-exps are not
// stored.
template <typename Traits>
struct HopperEpilogue : flashinfer::CollectiveEpilogue<Traits> {
  using Base = flashinfer::CollectiveEpilogue<Traits>;

  // As the kernel calls it, on all threads of the products' warp groups. `sums`: this thread's part of the tile.
  template <typename BlockCoord, typename SharedStorage, typename Sums, typename Lse, typename TiledMma>
  __device__ void store(const typename Base::Params& params, const Sums& sums, const Lse&, SharedStorage& storage,
                        TiledMma mma, int thread, const BlockCoord& block) {
    const auto await_all = [] {
      cutlass::arch::NamedBarrier::sync(Base::NUM_MMA_THREADS,
                                        static_cast<int>(flashinfer::NamedBarriers::kValueEmpty));
    };
    const auto tile = cute::make_tensor(cute::make_smem_ptr(storage.smem_o.data()), typename Base::SmemLayoutO{});
    const auto to_tile = cute::make_tiled_copy_C(typename Base::SmemCopyAtomO{}, mma);
    const auto part = to_tile.get_thread_slice(thread);
    const auto out = flashinfer::convert_type<typename Base::DTypeO>(sums);
    auto into = part.partition_D(tile);
    await_all();  // V is read, whose memory the tile takes
    cute::copy(to_tile, part.retile_S(out), into);
    await_all();  // the tile is whole
    const auto [query_tile, head, kv_head, query_begin, kv_begin, queries, length, sequence] = block;
    flashinfer::write_tiled<Base::NUM_COPY_THREADS>(params.O_ptr, typename Base::TiledCopyO{}, params.layout_O,
                                                    cute::select<0, 1>(typename Base::TileShape_PDV{}), tile, thread,
                                                    query_tile, head, query_begin, queries);
  }
};

}  // namespace runahead
