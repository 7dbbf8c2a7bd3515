#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/logits.cuh"

namespace runahead {
namespace {

constexpr int kThreads = LogitRow::kThreads;
constexpr int kRoom = 1024;  // candidates that are sorted

// A larger key is a larger logit, or the smaller id of equal ones; NaN counts as -inf. No two elements of a row share a
// key, and none is 0.
using Key = unsigned long long;

__device__ float NumberOrLowest(float x) {
  return x == x ? x : -INFINITY;
}

__device__ Key KeyOf(float logit, int id) {
  return static_cast<Key>(OrderOf(NumberOrLowest(logit))) << 32 | ~static_cast<uint32_t>(id);
}

__device__ int IdOf(Key key) {
  return static_cast<int>(~static_cast<uint32_t>(key));
}

// Sorts keys[kThreads] so that they fall: a bitonic network.
__device__ void SortKeys(Key* keys) {
  const int i = static_cast<int>(threadIdx.x);
  for (int run = 2; run <= kThreads; run *= 2) {
    for (int apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      const int j = i ^ apart;
      if (j > i && (keys[i] < keys[j]) == ((i & run) == 0)) {
        const Key key = keys[i];
        keys[i] = keys[j];
        keys[j] = key;
      }
    }
  }
  __syncthreads();
}

// Puts the keys that are at least `threshold` into keys[kRoom], in no order, and 0 into what is left. Returns how many
// there are, which may be more than there is room for.
__device__ int Gather(const LogitRow& row, Key threshold, Key* keys) {
  __shared__ int found;
  __syncthreads();
  keys[threadIdx.x] = 0;
  if (threadIdx.x == 0) found = 0;
  __syncthreads();
  row.ForEach([&](float logit, int id) {
    const Key key = KeyOf(logit, id);
    if (key < threshold) return;
    const int slot = atomicAdd(&found, 1);
    if (slot < kRoom) keys[slot] = key;
  });
  __syncthreads();
  return found;
}

// Leaves the k largest keys of the row in front of keys[kRoom], falling. `best`: the largest key of this thread's
// share, 0 where it has none.
//
// The k-th largest of the threads' best keys is a bound that k elements reach at least, and few more unless the largest
// logits lie in the shares of a few threads; then the bound is raised by bisection, which ends because keys differ.
__device__ void SelectKeys(const LogitRow& row, int k, Key best, Key* keys) {
  keys[threadIdx.x] = best;
  SortKeys(keys);
  Key threshold = keys[k - 1];  // 0 when fewer than k threads have a share: all elements, for which there is room
  Key low = threshold;
  Key high = ~Key{0};  // fewer than k elements reach it
  while (true) {
    const int found = Gather(row, threshold, keys);
    if (found >= k && found <= kRoom) break;
    (found < k ? high : low) = threshold;
    threshold = low + (high - low) / 2;
  }
  SortKeys(keys);
}

__global__ void __launch_bounds__(kThreads, 1) TopKKernel(Rows<float> logits, int cols, bool packed, int k,
                                                          Rows<int32_t> ids, Rows<float> values, Rows<float> log_sum) {
  __shared__ Key keys[kRoom];
  const int64_t at = blockIdx.x;
  const LogitRow row = {logits.at(at), cols, packed};
  ExpSum sum = {ExpSum::kFloor, 0.0f};
  Key best = 0;
  row.ForEach([&](float logit, int id) {
    sum.Include(logit);
    const Key key = KeyOf(logit, id);
    best = best < key ? key : best;
  });
  sum = BlockReduce(sum, Join());
  if (threadIdx.x == 0) *log_sum.at(at) = sum.max + logf(sum.sum);
  if (k == 1) {
    best = BlockReduce(best, Larger());
    if (threadIdx.x == 0) keys[0] = best;
  } else {
    SelectKeys(row, k, best, keys);
  }
  const int i = static_cast<int>(threadIdx.x);
  if (i >= k) return;
  const int id = IdOf(keys[i]);
  ids.at(at)[i] = id;
  values.at(at)[i] = NumberOrLowest(row.logits[id]);
}

}  // namespace

cudaError_t LaunchTopK(const CudaMatrix& logits, int k, const CudaMatrix& ids, const CudaMatrix& values,
                       const CudaMatrix& log_sum, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  const Rows<float> from(logits);
  return Launch(TopKKernel, dim3(static_cast<unsigned>(logits.rows)), dim3(kThreads), stream, from,
                static_cast<int>(logits.cols), from.IsPacked<LogitRow::kPack>(), k, Rows<int32_t>(ids),
                Rows<float>(values), Rows<float>(log_sum));
}

}  // namespace runahead
