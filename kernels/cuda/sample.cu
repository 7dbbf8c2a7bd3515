#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/logits.cuh"

namespace runahead {
namespace {

constexpr int kThreads = LogitRow::kThreads;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kBins = 256;
constexpr int kCopies = 8;  // of the bins, so that fewer threads of a warp add to the same one

// Shares of the draw in units of 2^-40 of the likeliest's. Sums of whole numbers do not depend on their order, so a row
// gives the same token in every run; 2^23 of them fit.
using Weight = unsigned long long;
constexpr float kUnit = 0x1p40f;

constexpr float kMost = 3.402823466e38f;

// A row of logits under its mask, bias and penalties.
struct DrawRow {
  LogitRow raw;
  int cols;
  const int32_t* counts;    // null: no penalties
  const TokenCount* known;  // which are otherwise; the last one of an id counts
  int known_count;
  float repetition;
  float presence;
  float frequency;
  const float* bias;        // null: none
  const uint32_t* allowed;  // null: every id

  __device__ bool Allows(int id) const { return allowed == nullptr || (allowed[id / 32] >> (id % 32) & 1) != 0; }
  // The least number for an id that may not be drawn: its share of a draw is nothing.
  __device__ float Adjusted(float logit, int id) const {
    if (!Allows(id)) return -kMost;
    if (bias != nullptr) logit = fminf(fmaxf(logit + bias[id], -kMost), kMost);
    return Penalised(logit, id);
  }
  __device__ float Penalised(float logit, int id) const {
    if (counts == nullptr) return logit;
    int count = counts[id];
    for (int i = 0; i < known_count; ++i) {
      if (known[i].id == id) count = known[i].count;
    }
    if (count == 0) return logit;
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    // The product is rounded by itself, as on the CPU.
    if (count > 1) logit -= presence + __fmul_rn(frequency, static_cast<float>(count - 1));
    return fminf(fmaxf(logit, -kMost), kMost);
  }
  __device__ float at(int id) const { return Adjusted(raw.logits[id], id); }
  template <typename Visit>
  __device__ void ForEach(const Visit& visit) const {
    raw.ForEach([&](float logit, int id) { visit(Adjusted(logit, id), id); });
  }
};

// Falls as the logit rises. No number has the largest key.
__device__ uint32_t KeyOf(float logit) {
  return ~OrderOf(logit);
}

// What a first pass sees of a row.
struct Survey {
  bool finite;
  bool any;       // an id may be drawn; else what follows has no meaning
  int likeliest;  // the smallest id of the largest logit
  float largest;
  float smallest;
};

__device__ Survey SurveyOf(const DrawRow& row) {
  Weight best = 0;  // of (logit, smaller id)
  float smallest = kMost;
  int bad = 0;
  row.raw.ForEach([&](float of_model, int id) {
    bad |= fabsf(of_model) <= kMost ? 0 : 1;
    if (!row.Allows(id)) return;
    const float logit = row.Adjusted(of_model, id);
    const Weight key = static_cast<Weight>(OrderOf(logit)) << 32 | ~static_cast<uint32_t>(id);
    best = best < key ? key : best;
    smallest = fminf(smallest, logit);
  });
  bad = BlockReduce(bad, Larger());
  best = BlockReduce(best, Larger());
  smallest = -BlockReduce(-smallest, Larger());
  const int likeliest = static_cast<int>(~static_cast<uint32_t>(best));
  const bool any = best != 0;
  return {bad == 0, any, likeliest, bad == 0 && any ? row.at(likeliest) : 0.0f, smallest};
}

struct Place {
  uint32_t bin;
  Weight before;  // the sum of the bins before it
};

// The first of 32 * kPer bins at which the running sum passes `target`, which is below the sum of all. Every warp finds
// it on its own.
template <int kPer>
__device__ Place FindBin(const Weight* bins, Weight target) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  Weight own = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) own += bins[lane * kPer + i];
  Weight running = own;
#pragma unroll
  for (int lanes = 1; lanes < kWarpSize; lanes *= 2) {
    const Weight below = __shfl_up_sync(kFullWarp, running, lanes);
    if (lane >= lanes) running += below;
  }
  const unsigned passed = __ballot_sync(kFullWarp, running > target);
  const int first = passed == 0 ? kWarpSize - 1 : __ffs(static_cast<int>(passed)) - 1;
  Place place = {static_cast<uint32_t>(first * kPer), __shfl_sync(kFullWarp, running - own, first)};
  for (int i = 1; i < kPer && place.before + bins[place.bin] <= target; ++i) place.before += bins[place.bin++];
  return place;
}

// Shared memory for the bins of one pass over a row.
struct LogitHistogram {
  Weight copies[kBins * kCopies];
  Weight bins[kBins];
};

// The bin at which the running sum of weights passes `target`. bin_of(logit, id) is below kBins, or kBins for what does
// not count.
template <typename BinOf, typename WeightOf>
__device__ Place FindInHistogram(LogitHistogram& histogram, const DrawRow& row, Weight target, const BinOf& bin_of,
                                 const WeightOf& weight_of) {
  for (int i = static_cast<int>(threadIdx.x); i < kBins * kCopies; i += kThreads) histogram.copies[i] = 0;
  __syncthreads();
  row.ForEach([&](float logit, int id) {
    const uint32_t bin = bin_of(logit);
    if (bin == kBins) return;
    const Weight weight = weight_of(logit, id);
    if (weight != 0) atomicAdd(&histogram.copies[bin * kCopies + threadIdx.x % kCopies], weight);
  });
  __syncthreads();
  if (threadIdx.x < kBins) {
    Weight sum = 0;
    for (int i = 0; i < kCopies; ++i) sum += histogram.copies[threadIdx.x * kCopies + i];
    histogram.bins[threadIdx.x] = sum;
  }
  __syncthreads();
  return FindBin<kBins / kWarpSize>(histogram.bins, target);
}

// A part of the order (logit falling, id rising) from its beginning: all of a smaller key, and those of `key` up to
// `last_id`.
struct Prefix {
  uint32_t key = 0xffffffffu;
  int last_id = 0;

  __device__ bool Has(float logit, int id) const {
    const uint32_t own = KeyOf(logit);
    return own < key || (own == key && id <= last_id);
  }
};

// The first id, in rising order, at which the running sum of weights passes `target`, which is below their sum.
template <typename WeightOf>
__device__ int FindId(const DrawRow& row, Weight target, const WeightOf& weight_of) {
  __shared__ Weight of_warps[kWarps];
  int begin = 0;
  int end = row.cols;
  while (end - begin > 1) {  // a warp takes a part
    const int part = (end - begin + kWarps - 1) / kWarps;
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
    const int from = begin + warp * part;
    const int to = from + part < end ? from + part : end;
    Weight sum = 0;
    for (int id = from + static_cast<int>(threadIdx.x) % kWarpSize; id < to; id += kWarpSize) {
      sum += weight_of(row.at(id), id);
    }
    sum = WarpReduce(sum, Add());
    __syncthreads();  // what was there before has been read
    if (threadIdx.x % kWarpSize == 0) of_warps[warp] = sum;
    __syncthreads();
    const Place place = FindBin<1>(of_warps, target);
    target -= place.before;
    const int next = begin + static_cast<int>(place.bin) * part;
    begin = next < end ? next : end - 1;  // inside the row whatever the target was
    end = begin + part < end ? begin + part : end;
  }
  return begin;
}

// Where the logits of a row lie; splits them by evenly wide bins, which spreads them better than the digits of keys do.
struct Range {
  float half_largest;  // halves, because a difference may overflow
  float scale;

  __device__ explicit Range(const Survey& survey) : half_largest(0.5f * survey.largest) {
    const float width = half_largest - 0.5f * survey.smallest;
    scale = width > 1e-30f ? static_cast<float>(kBins - 1) / width : 0.0f;
  }
  // Never falls as the logit falls.
  __device__ uint32_t Bin(float logit) const {
    const float at = (half_largest - 0.5f * logit) * scale;
    return at < static_cast<float>(kBins) ? static_cast<uint32_t>(at) : kBins - 1;
  }
};

// The shortest prefix whose weights add up to more than `target`, which is below the sum of all. Equal logits must have
// equal weights, or 0 beyond a prefix that was found before.
template <typename WeightOf>
__device__ Prefix FindPrefix(LogitHistogram& histogram, const DrawRow& row, const Range& range, Weight target,
                             const WeightOf& weight_of) {
  const auto wide_bin = [&](float logit) { return range.Bin(logit); };
  const Place wide = FindInHistogram(histogram, row, target, wide_bin, weight_of);
  target -= wide.before;
  uint32_t key = 0;  // its digits so far
  for (int shift = 24; shift >= 0; shift -= 8) {
    const auto digit_of = [&](float logit) -> uint32_t {
      const uint32_t own = KeyOf(logit);
      const bool counts = range.Bin(logit) == wide.bin && static_cast<uint64_t>(own) >> (shift + 8) == key;
      return counts ? own >> shift & (kBins - 1) : kBins;
    };
    const Place digit = FindInHistogram(histogram, row, target, digit_of, weight_of);
    target -= digit.before;
    key = key << 8 | digit.bin;
  }
  // All with this key are equal: the smallest ids complete the prefix.
  const int last_id =
      FindId(row, target, [&](float logit, int id) { return KeyOf(logit) == key ? weight_of(logit, id) : Weight{0}; });
  return {key, last_id};
}

template <typename WeightOf>
__device__ Weight Total(const DrawRow& row, const WeightOf& weight_of) {
  Weight total = 0;
  row.ForEach([&](float logit, int id) { total += weight_of(logit, id); });
  return BlockReduce(total, Add());
}

// The largest whole number below `bound`, from 0 to total - 1.
__device__ Weight JustBelow(double bound, Weight total) {
  const Weight whole = static_cast<Weight>(bound);
  const Weight below = static_cast<double>(whole) < bound || whole == 0 ? whole : whole - 1;
  return below < total ? below : total - 1;
}

__device__ int Draw(LogitHistogram& histogram, const DrawRow& row, const Survey& survey, const SampleParams& params) {
  const Range range(survey);
  const float largest = survey.largest;
  Prefix prefix;
  if (params.top_k > 0 && params.top_k < row.cols) {
    prefix =
        FindPrefix(histogram, row, range, static_cast<Weight>(params.top_k - 1), [](float, int) { return Weight{1}; });
  }
  const auto share = [=](float logit) { return expf((logit - largest) / params.temperature); };  // 1 at most
  if (params.top_p < 1.0f) {
    const auto weight_of = [=](float logit, int id) {
      return prefix.Has(logit, id) ? static_cast<Weight>(share(logit) * kUnit) : Weight{0};
    };
    const Weight total = Total(row, weight_of);
    const double target = static_cast<double>(params.top_p) * static_cast<double>(total);
    prefix = FindPrefix(histogram, row, range, JustBelow(target, total), weight_of);
  }
  const auto weight_of = [=](float logit, int id) {
    if (!prefix.Has(logit, id)) return Weight{0};
    const float own = share(logit);
    return own >= params.min_p ? static_cast<Weight>(own * kUnit) : Weight{0};
  };
  const Weight total = Total(row, weight_of);
  const Weight target = static_cast<Weight>(params.uniform * static_cast<double>(total));
  return FindId(row, target < total ? target : total - 1, weight_of);
}

__global__ void __launch_bounds__(kThreads)
    SampleKernel(Rows<float> logits, int cols, bool packed, const SampleParams* params, Rows<int32_t> counts,
                 Rows<float> bias, Rows<uint32_t> allowed, Rows<int32_t> ids, Rows<float> values) {
  __shared__ LogitHistogram histogram;
  const int64_t at = blockIdx.x;
  const SampleParams& own = params[at];
  int32_t* const seen = own.counts_row < 0 ? nullptr : counts.at(own.counts_row);
  // Blocks of other rows of the sequence may read these counts meanwhile: they know them by themselves.
  if (seen != nullptr && own.kept > 0) {
    const auto i = static_cast<int32_t>(threadIdx.x);
    if (i < own.kept) seen[own.tokens[i].id] = own.tokens[i].count;
    __syncthreads();
  }
  const LogitRow raw = {logits.at(at), cols, packed};
  const DrawRow row = {.raw = raw,
                       .cols = cols,
                       .counts = seen,
                       .known = own.tokens + own.kept,
                       .known_count = own.known - own.kept,
                       .repetition = own.repetition_penalty,
                       .presence = own.presence_penalty,
                       .frequency = own.frequency_penalty,
                       .bias = own.bias_row < 0 ? nullptr : bias.at(own.bias_row),
                       .allowed = own.allowed_row < 0 ? nullptr : allowed.at(own.allowed_row)};
  const Survey survey = SurveyOf(row);
  int id = !survey.finite ? kNotFinite : survey.any ? survey.likeliest : kNothingAllowed;
  if (id >= 0 && own.temperature > 0.0f) id = Draw(histogram, row, survey, own);
  if (threadIdx.x != 0) return;
  *ids.at(at) = id;
  *values.at(at) = id < 0 ? 0.0f : raw.logits[id];
}

}  // namespace

cudaError_t LaunchSample(const CudaMatrix& logits, const SampleParams* params, const CudaSampleTables& tables,
                         const CudaMatrix& ids, const CudaMatrix& values, cudaStream_t stream) {
  if (logits.rows == 0) return cudaSuccess;
  if (logits.cols > kMostSampleVocab) return cudaErrorInvalidValue;
  const Rows<float> from(logits);
  return Launch(SampleKernel, dim3(static_cast<unsigned>(logits.rows)), dim3(kThreads), stream, from,
                static_cast<int>(logits.cols), from.IsPacked<LogitRow::kPack>(), params, Rows<int32_t>(tables.counts),
                Rows<float>(tables.bias), Rows<uint32_t>(tables.allowed), Rows<int32_t>(ids), Rows<float>(values));
}

}  // namespace runahead
