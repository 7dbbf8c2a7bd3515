#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes

struct RopeShape {
  int64_t rows;
  int heads;
  int head_dim;
  int half;           // pairs of a head
  bool x_packed;      // where the threads' elements begin
  bool table_packed;  // its cosines, and its sines
};

// A thread takes kPack pairs of one head: kPack elements and those `half` behind them, or 2 * kPack beside each other.
template <bool kInterleaved, typename T>
__global__ void RopeKernel(Rows<T> x, Rows<float> table, const int32_t* positions, RopeShape shape) {
  const int64_t row = RowTiles::Row();
  if (row >= shape.rows) return;
  const int packs = (shape.half + kPack - 1) / kPack;
  const float* angles = table.at(positions[row]);
  for (int64_t pack = RowTiles::FirstPack(); pack < static_cast<int64_t>(shape.heads) * packs;
       pack += RowTiles::PackStep()) {
    const int pair = kPack * static_cast<int>(pack % packs);
    const int count = shape.half - pair;
    const int first_count = kInterleaved ? 2 * count : count;
    T* const head = x.at(row) + pack / packs * shape.head_dim;
    T* const first = head + (kInterleaved ? 2 * pair : pair);
    T* const second = kInterleaved ? first + kPack : first + shape.half;
    const int second_count = kInterleaved ? first_count - kPack : count;
    float low[kPack], high[kPack], cosine[kPack], sine[kPack];
    LoadFloats<kPack>(first, first_count, shape.x_packed, low);
    LoadFloats<kPack>(second, second_count, shape.x_packed, high);
    LoadFloats<kPack>(angles + pair, count, shape.table_packed, cosine);
    LoadFloats<kPack>(angles + shape.half + pair, count, shape.table_packed, sine);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      float& a = !kInterleaved ? low[i] : i < kPack / 2 ? low[2 * i] : high[2 * i - kPack];
      float& b = !kInterleaved ? high[i] : i < kPack / 2 ? low[2 * i + 1] : high[2 * i + 1 - kPack];
      const float before = a;
      a = before * cosine[i] - b * sine[i];
      b = b * cosine[i] + before * sine[i];
    }
    StoreFloats<kPack>(low, first_count, shape.x_packed, first);
    StoreFloats<kPack>(high, second_count, shape.x_packed, second);
  }
}

}  // namespace

cudaError_t LaunchRope(const CudaMatrix& x, int head_dim, const CudaMatrix& table, bool interleaved,
                       const int32_t* positions, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  return ForDType(x.dtype, [&]<typename T>(T*) {
    const Rows<T> from(x);
    const Rows<float> angles(table);
    const int half = static_cast<int>(table.cols / 2);
    const bool halves_packed = half % kPack == 0;
    const RopeShape shape = {
        .rows = x.rows,
        .heads = static_cast<int>(x.cols / head_dim),
        .head_dim = head_dim,
        .half = half,
        .x_packed = from.template IsPacked<kPack>() && head_dim % kPack == 0 && (interleaved || halves_packed),
        .table_packed = angles.IsPacked<kPack>() && halves_packed,
    };
    const RowTiles tiles(x.rows, shape.heads * static_cast<int64_t>((half + kPack - 1) / kPack));
    return Launch(interleaved ? RopeKernel<true, T> : RopeKernel<false, T>, tiles.grid, tiles.block, stream, from,
                  angles, positions, shape);
  });
}

}  // namespace runahead
