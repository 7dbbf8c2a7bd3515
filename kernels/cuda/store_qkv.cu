#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"

namespace runahead {
namespace {

constexpr int kPack = 4;  // floats in 16 bytes

struct QkvShape {
  int64_t rows;
  int64_t q_cols;   // 0: there is no Q
  int64_t kv_cols;  // of K and V together
  bool q_from_packed;
  bool kv_from_packed;
  bool q_packed;
};

// A thread takes kPack elements of Q, or of K and V.
template <typename Q, typename Kv>
__global__ void StoreQkvKernel(Rows<float> qkv, Rows<Q> q, Kv* layer, const int64_t* kv_rows, QkvShape shape) {
  const int64_t row = RowTiles::Row();
  if (row >= shape.rows) return;
  const int64_t q_packs = (shape.q_cols + kPack - 1) / kPack;
  const int64_t kv_packs = (shape.kv_cols + kPack - 1) / kPack;
  Kv* const kv = layer + kv_rows[row] * shape.kv_cols;
  const bool kv_packed = IsPacked<Kv, kPack>(kv);
  for (int64_t pack = RowTiles::FirstPack(); pack < q_packs + kv_packs; pack += RowTiles::PackStep()) {
    float values[kPack];
    if (pack < q_packs) {
      const int64_t c = kPack * pack;
      LoadFloats<kPack>(qkv.at(row) + c, shape.q_cols - c, shape.q_from_packed, values);
      StoreFloats<kPack>(values, shape.q_cols - c, shape.q_packed, q.at(row) + c);
    } else {
      const int64_t c = kPack * (pack - q_packs);
      LoadFloats<kPack>(qkv.at(row) + shape.q_cols + c, shape.kv_cols - c, shape.kv_from_packed, values);
      StoreFloats<kPack>(values, shape.kv_cols - c, kv_packed, kv + c);
    }
  }
}

}  // namespace

cudaError_t LaunchStoreQkv(const CudaMatrix& qkv, const CudaMatrix& q, std::byte* layer, const int64_t* kv_rows,
                           DType kv_dtype, cudaStream_t stream) {
  if (qkv.rows == 0) return cudaSuccess;
  return ForDTypes(q.dtype, kv_dtype, [&]<typename Q, typename Kv>(Q*, Kv*) {
    const Rows<float> from(qkv);
    const Rows<Q> to(q);
    const int64_t q_cols = q.data == nullptr ? 0 : q.cols;
    const bool packed = from.IsPacked<kPack>();
    const QkvShape shape = {
        .rows = qkv.rows,
        .q_cols = q_cols,
        .kv_cols = qkv.cols - q_cols,
        .q_from_packed = packed,
        .kv_from_packed = packed && q_cols % kPack == 0,
        .q_packed = to.template IsPacked<kPack>(),
    };
    const RowTiles tiles(qkv.rows, (q_cols + kPack - 1) / kPack + (shape.kv_cols + kPack - 1) / kPack);
    return Launch(StoreQkvKernel<Q, Kv>, tiles.grid, tiles.block, stream, from, to, reinterpret_cast<Kv*>(layer),
                  kv_rows, shape);
  });
}

}  // namespace runahead
