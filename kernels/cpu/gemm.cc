#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "dnnl.hpp"
#include "kernels/base/mutex.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/panel_gemm.h"
#include "kernels/cpu/scratch.h"

// Of the OpenMP runtime that oneDNN links; its header comes with another runtime under clang.
extern "C" void omp_set_num_threads(int threads);

namespace runahead {
namespace {

using Desc = dnnl::memory::desc;

dnnl::memory::data_type ToDnnl(DType dtype) {
  return dtype == DType::kF32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

const dnnl::engine& CpuEngine() {
  static const auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);  // lives as long as any thread's stream
  return *engine;
}

// What a thread needs to call oneDNN. Calls run on the calling thread alone.
struct ThreadState {
  ThreadState() { omp_set_num_threads(1); }
  dnnl::stream stream{CpuEngine()};
  Scratch scratchpad, x, out;

  static ThreadState& Get() {
    thread_local ThreadState state;
    return state;
  }
};

dnnl::matmul::primitive_desc MakeMatmul(const Desc& x, const Desc& w, const Desc& out, bool accumulate) {
  dnnl::primitive_attr attributes;
  // The library's own scratchpad may not be shared by threads that run one primitive at a time.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum();
    attributes.set_post_ops(sum);
  }
  return {dnnl::matmul::desc(x, w, out), attributes, CpuEngine()};
}

Desc Dense(int64_t rows, int64_t cols, DType dtype) {
  return {{rows, cols}, ToDnnl(dtype), {cols, 1}};
}

// The layout of weights [n, k] (oneDNN's matrix is [k, n]). It is the same for every number of rows of x.
Desc WeightLayout(int64_t n, int64_t k, DType dtype) {
  constexpr int64_t kRows = 256;
  const Desc any({k, n}, ToDnnl(dtype), dnnl::memory::format_tag::any);
  return MakeMatmul(Dense(kRows, k, dtype), any, Dense(kRows, n, DType::kF32), false).weights_desc();
}

// Whether the columns [c, c + kGemmSlice * i) of a matrix packed as `whole` are one run of memory that is packed as a
// matrix of its own would be: columns are the outermost dimension, and the blocks are the same.
bool Sliceable(const Desc& whole, int64_t n, int64_t k, DType dtype) {
  if (n < 2 * kGemmSlice) return false;
  const Desc slice = WeightLayout(kGemmSlice, k, dtype);
  const auto& a = whole.data.format_desc.blocking;
  const auto& b = slice.data.format_desc.blocking;
  return whole.data.format_kind == dnnl_blocked && slice.data.format_kind == dnnl_blocked && a.inner_nblks > 0 &&
         a.inner_nblks == b.inner_nblks && std::equal(a.inner_blks, a.inner_blks + a.inner_nblks, b.inner_blks) &&
         std::equal(a.inner_idxs, a.inner_idxs + a.inner_nblks, b.inner_idxs) && a.strides[1] > a.strides[0] &&
         a.strides[0] == b.strides[0] && a.strides[1] == b.strides[1] &&
         static_cast<size_t>(a.strides[1]) * DTypeSize(dtype) == slice.get_size();
}

struct Packed final : PackedMatrix {
  std::unique_ptr<const PackedMatrix> At(const BufferRef& memory) const override {
    auto moved = std::make_unique<Packed>(*this);
    moved->memory_ = memory;
    return moved;
  }
  void SetMemory(BufferRef memory) { memory_ = std::move(memory); }

  int64_t n = 0;
  int64_t k = 0;
  Desc layout;
  size_t slice_bytes = 0;  // of kGemmSlice columns; 0: not sliceable
};

struct CallKey {
  int64_t rows, cols, k;
  DType out_dtype;
  bool accumulate;
  bool operator==(const CallKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const CallKey& key) {
    return H::combine(std::move(h), key.rows, key.cols, key.k, key.out_dtype, key.accumulate);
  }
};

struct Call {
  Desc x, w, out;
  size_t scratchpad_bytes = 0;
  Desc scratchpad;
  dnnl::matmul primitive;
};

// Runs a call of oneDNN that must succeed: it was accepted before, so what is left to fail is memory, or the machine.
template <typename Function>
void MustSucceed(const Function& function) {
  try {
    function();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oneDNN failed on a product that it had accepted: %s\n", error.what());
    std::abort();
  }
}

class OneDnnGemm : public Gemm {
 public:
  OneDnnGemm(DType dtype, ThreadPool& pool) : dtype_(dtype), pool_(pool) {}

  absl::StatusOr<std::unique_ptr<const PackedMatrix>> Pack(int64_t n, int64_t k,
                                                           const std::function<void(int64_t, float*)>& read_row,
                                                           Arena& arena) override;
  std::unique_ptr<const PackedMatrix> Slice(const PackedMatrix& w, int64_t begin, int64_t end) const override;
  void Run(const PackedMatrix& w, const GemmArgs& args) override;

 private:
  void PackColumns(const Packed& packed, int64_t begin, int64_t end,
                   const std::function<void(int64_t, float*)>& read_row) const;
  void RunTask(const Packed& w, const GemmArgs& args, const GemmTask& task);
  std::shared_ptr<const Call> FindCall(const CallKey& key) RUNAHEAD_EXCLUDES(mu_);

  const DType dtype_;
  const CpuKernels& kernels_ = KernelsFor(DetectCpuIsa() >= CpuIsa::kAvx512);
  ThreadPool& pool_;
  Mutex mu_;
  absl::flat_hash_map<CallKey, std::shared_ptr<const Call>> calls_ RUNAHEAD_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<const PackedMatrix>> OneDnnGemm::Pack(
    int64_t n, int64_t k, const std::function<void(int64_t, float*)>& read_row, Arena& arena) {
  auto packed = std::make_unique<Packed>();
  packed->n = n;
  packed->k = k;
  ThreadState::Get();
  try {
    packed->layout = WeightLayout(n, k, dtype_);
    if (Sliceable(packed->layout, n, k, dtype_)) {
      packed->slice_bytes = WeightLayout(kGemmSlice, k, dtype_).get_size();
    }
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(
        absl::StrCat("oneDNN cannot multiply with a matrix of ", n, " x ", k, " (", error.what(), ")"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(BufferRef memory, arena.Allocate(packed->layout.get_size()));
  packed->SetMemory(std::move(memory));
  const int64_t slices = packed->slice_bytes == 0 ? 1 : n / kGemmSlice;
  pool_.ParallelFor(slices, [&](int64_t s) {
    const int64_t end = s + 1 == slices ? n : (s + 1) * kGemmSlice;
    MustSucceed([&] { PackColumns(*packed, s * kGemmSlice, end, read_row); });
  });
  return packed;
}

void OneDnnGemm::PackColumns(const Packed& packed, int64_t begin, int64_t end,
                             const std::function<void(int64_t, float*)>& read_row) const {
  ThreadState& thread = ThreadState::Get();
  const int64_t k = packed.k;
  const int64_t n = end - begin;
  float* rows = reinterpret_cast<float*>(thread.x.Get(n * k * sizeof(float)));
  for (int64_t r = 0; r < n; ++r) read_row(begin + r, rows + r * k);
  const Desc from({k, n}, dnnl::memory::data_type::f32, {1, k});
  const Desc to = n == packed.n ? packed.layout : WeightLayout(n, k, dtype_);
  std::byte* at = packed.memory().data() + begin / kGemmSlice * packed.slice_bytes;
  dnnl::memory source(from, CpuEngine(), rows);
  dnnl::memory target(to, CpuEngine(), at);
  dnnl::reorder(source, target).execute(thread.stream, source, target);
}

std::unique_ptr<const PackedMatrix> OneDnnGemm::Slice(const PackedMatrix& w, int64_t begin, int64_t end) const {
  const Packed& whole = static_cast<const Packed&>(w);
  const bool at_slices = begin % kGemmSlice == 0 && (end % kGemmSlice == 0 || end == whole.n);
  if (whole.slice_bytes == 0 || !at_slices || end - begin < kGemmSlice) return nullptr;
  auto slice = std::make_unique<Packed>();
  slice->n = end - begin;
  slice->k = whole.k;
  MustSucceed([&] { slice->layout = WeightLayout(slice->n, slice->k, dtype_); });
  slice->slice_bytes = whole.slice_bytes;
  const size_t from = begin / kGemmSlice * whole.slice_bytes;
  slice->SetMemory(whole.memory().Slice(from, whole.memory().size - from));
  return slice;
}

std::shared_ptr<const Call> OneDnnGemm::FindCall(const CallKey& key) {
  {
    MutexLock lock(mu_);
    if (auto found = calls_.find(key); found != calls_.end()) return found->second;
  }
  // Two threads may make the same one; the first that is done stays.
  auto call = std::make_shared<Call>();
  call->x = Dense(key.rows, key.k, dtype_);
  call->w = WeightLayout(key.cols, key.k, dtype_);
  call->out = Dense(key.rows, key.cols, key.out_dtype);
  const auto desc = MakeMatmul(call->x, call->w, call->out, key.accumulate);
  call->scratchpad = desc.scratchpad_desc();
  call->scratchpad_bytes = call->scratchpad.get_size();
  call->primitive = dnnl::matmul(desc);
  MutexLock lock(mu_);
  return calls_.emplace(key, std::move(call)).first->second;
}

// Adds, copies or rounds a task's result from a dense scratch of `from_dtype` to out.
void Scatter(const std::byte* from, DType from_dtype, const GemmArgs& args, const GemmTask& task) {
  const size_t element = DTypeSize(args.out_dtype);
  for (int64_t r = 0; r < task.rows; ++r) {
    std::byte* to = static_cast<std::byte*>(args.out) + ((task.row + r) * args.out_stride + task.col) * element;
    const float* row = reinterpret_cast<const float*>(from) + r * task.cols;
    if (args.accumulate) {
      float* sum = reinterpret_cast<float*>(to);
      for (int64_t c = 0; c < task.cols; ++c) sum[c] += row[c];
    } else if (from_dtype != args.out_dtype) {
      BFloat16* rounded = reinterpret_cast<BFloat16*>(to);
      for (int64_t c = 0; c < task.cols; ++c) rounded[c] = ToBFloat16(row[c]);
    } else {
      std::memcpy(to, from + r * task.cols * element, task.cols * element);
    }
  }
}

void OneDnnGemm::RunTask(const Packed& w, const GemmArgs& args, const GemmTask& task) {
  ThreadState& thread = ThreadState::Get();
  const size_t element = DTypeSize(dtype_);
  const bool whole_rows = task.rows == task.call_rows;
  const bool unfinished = args.bias != nullptr || args.activation.has_value();
  // oneDNN does not round f32 products to bf16, and slows down a lot when rows of out are not next to each other.
  // Unfinished sums stay in f32.
  const DType call_dtype = dtype_ == DType::kF32 || unfinished ? DType::kF32 : args.out_dtype;
  // A bias is added to the product before that is added to what is there, in tasks that are padded and in all others.
  const bool adds_biased = args.accumulate && args.bias != nullptr;
  const bool in_place = whole_rows && task.cols == args.out_stride && call_dtype == args.out_dtype && !adds_biased;
  const auto call = FindCall({task.call_rows, task.cols, w.k, call_dtype, in_place && args.accumulate});

  const std::byte* x = static_cast<const std::byte*>(args.x) + task.row * args.x_stride * element;
  if (!whole_rows || args.x_stride != w.k) {
    std::byte* copy = thread.x.Get(task.call_rows * w.k * element);
    for (int64_t r = 0; r < task.rows; ++r) {
      std::memcpy(copy + r * w.k * element, x + r * args.x_stride * element, w.k * element);
    }
    std::memset(copy + task.rows * w.k * element, 0, (task.call_rows - task.rows) * w.k * element);
    x = copy;
  }
  std::byte* out =
      in_place ? static_cast<std::byte*>(args.out) + (task.row * args.out_stride + task.col) * DTypeSize(args.out_dtype)
               : thread.out.Get(task.call_rows * task.cols * DTypeSize(call_dtype));
  std::byte* weights = w.memory().data() + task.col / kGemmSlice * w.slice_bytes;
  const dnnl::engine& engine = CpuEngine();
  call->primitive.execute(
      thread.stream, {{DNNL_ARG_SRC, dnnl::memory(call->x, engine, const_cast<std::byte*>(x))},
                      {DNNL_ARG_WEIGHTS, dnnl::memory(call->w, engine, weights)},
                      {DNNL_ARG_DST, dnnl::memory(call->out, engine, out)},
                      {DNNL_ARG_SCRATCHPAD,
                       dnnl::memory(call->scratchpad, engine, thread.scratchpad.Get(call->scratchpad_bytes + 1))}});
  if (unfinished) {
    // Rows of the result are next to each other, wherever it is.
    const float* bias = args.bias == nullptr ? nullptr : args.bias + task.col;
    for (int64_t r = 0; r < task.rows; ++r) {
      FinishLinear(kernels_, bias, args.activation, reinterpret_cast<float*>(out) + r * task.cols, task.cols);
    }
  }
  if (!in_place) Scatter(out, call_dtype, args, task);
}

void OneDnnGemm::Run(const PackedMatrix& w, const GemmArgs& args) {
  const Packed& packed = static_cast<const Packed&>(w);
  const std::vector<GemmTask> tasks = PlanGemm(
      {args.m, packed.n, packed.k, static_cast<int64_t>(DTypeSize(dtype_)), packed.slice_bytes != 0}, pool_.threads());
  pool_.ParallelFor(tasks.size(), [&](int64_t t) { MustSucceed([&] { RunTask(packed, args, tasks[t]); }); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> Gemm::Make(DType dtype, ThreadPool& pool) {
  if (dtype == DType::kF16) return absl::UnimplementedError("the CPU multiplies in f32 or bf16, not in f16");
  if (dtype == DType::kF32 && DetectCpuIsa() == CpuIsa::kAvx2) return NewPanelGemm(pool);
  try {
    WeightLayout(kGemmSlice, kGemmSlice, dtype);
  } catch (const dnnl::error& error) {
    return absl::UnimplementedError(absl::StrCat("oneDNN cannot multiply in ", std::string(DTypeName(dtype)),
                                                 " on this machine (", error.what(), "): use f32"));
  }
  return std::make_unique<OneDnnGemm>(dtype, pool);
}

}  // namespace runahead
