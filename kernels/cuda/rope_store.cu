#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes

struct RopeShape {
  int64_t rows;
  int heads;
  int kv_heads;
  int half;         // of a head: what is rotated together lies this far apart
  bool qkv_packed;  // with `half` and `rotation`, as is q
  bool q_packed;
};

// to[0..) and to[half..) of one head, `count` elements each.
template <typename T>
__device__ void StoreHalves(const float (&low)[kPack], const float (&high)[kPack], int64_t count, int half, bool packed,
                            T* to) {
  StoreFloats<kPack>(low, count, packed, to);
  StoreFloats<kPack>(high, count, packed, to + half);
}

// A thread takes kPack pairs of one head of Q, K or V.
template <typename Q, typename Kv>
__global__ void RopeStoreKernel(Rows<float> qkv, const float* rotation, const int32_t* positions, Rows<Q> q,
                                std::byte* const* kv_rows, RopeShape shape) {
  const int64_t row = RowTiles::Row();
  if (row >= shape.rows) return;
  const int packs = (shape.half + kPack - 1) / kPack;
  const int head_dim = 2 * shape.half;
  const int64_t all = static_cast<int64_t>(shape.heads + 2 * shape.kv_heads) * packs;
  const float* angles = rotation + static_cast<int64_t>(positions[row]) * head_dim;
  Kv* kv_row = reinterpret_cast<Kv*>(kv_rows[row]);
  const bool kv_packed = IsPacked<Kv, kPack>(kv_row) && shape.half % kPack == 0;
  for (int64_t pack = RowTiles::FirstPack(); pack < all; pack += RowTiles::PackStep()) {
    const int head = static_cast<int>(pack / packs);
    const int d = kPack * static_cast<int>(pack % packs);
    const int count = shape.half - d;
    const float* from = qkv.at(row) + static_cast<int64_t>(head) * head_dim + d;
    float low[kPack];
    float high[kPack];
    LoadFloats<kPack>(from, count, shape.qkv_packed, low);
    LoadFloats<kPack>(from + shape.half, count, shape.qkv_packed, high);
    if (head < shape.heads + shape.kv_heads) {
      float cosine[kPack];
      float sine[kPack];
      LoadFloats<kPack>(angles + d, count, shape.qkv_packed, cosine);
      LoadFloats<kPack>(angles + shape.half + d, count, shape.qkv_packed, sine);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float first = low[i];
        low[i] = first * cosine[i] - high[i] * sine[i];
        high[i] = high[i] * cosine[i] + first * sine[i];
      }
    }
    if (head < shape.heads) {
      Q* to = q.at(row) + static_cast<int64_t>(head) * head_dim + d;
      StoreHalves(low, high, count, shape.half, shape.q_packed, to);
    } else {
      Kv* to = kv_row + static_cast<int64_t>(head - shape.heads) * head_dim + d;
      StoreHalves(low, high, count, shape.half, kv_packed, to);
    }
  }
}

}  // namespace

cudaError_t LaunchRopeStore(const RopeStoreArgs& args, cudaStream_t stream) {
  if (args.qkv.rows == 0) return cudaSuccess;
  return ForDTypes(args.q.dtype, args.kv_dtype, [&]<typename Q, typename Kv>(Q*, Kv*) {
    const Rows<float> qkv(args.qkv);
    const Rows<Q> q(args.q);
    const int half = args.head_dim / 2;
    const bool whole = half % kPack == 0;
    const RopeShape shape = {
        .rows = args.qkv.rows,
        .heads = args.heads,
        .kv_heads = args.kv_heads,
        .half = half,
        .qkv_packed = whole && qkv.IsPacked<kPack>() && IsPacked<float, kPack>(args.rotation),
        .q_packed = whole && q.template IsPacked<kPack>(),
    };
    const int64_t packs = (half + kPack - 1) / kPack;
    const RowTiles tiles(args.qkv.rows, (args.heads + 2 * args.kv_heads) * packs);
    return Launch(RopeStoreKernel<Q, Kv>, tiles.grid, tiles.block, stream, qkv, args.rotation, args.positions, q,
                  args.kv_rows, shape);
  });
}

}  // namespace runahead
