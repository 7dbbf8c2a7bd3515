#include "kernels/cpu/panel_gemm.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/panel_product.h"
#include "kernels/cpu/scratch.h"

namespace runahead {
namespace {

// Tasks for each thread, of those there can be: the last to finish is then late by little.
constexpr int64_t kTasksPerThread = 4;

int64_t PanelsOf(int64_t cols) {
  return (cols + kPanelCols - 1) / kPanelCols;
}

struct Panels final : PackedMatrix {
  std::unique_ptr<const PackedMatrix> At(const BufferRef& memory) const override {
    return std::make_unique<Panels>(memory, n, k);
  }
  Panels(BufferRef memory, int64_t n, int64_t k) : n(n), k(k) { memory_ = std::move(memory); }
  float* panel(int64_t p) const { return reinterpret_cast<float*>(memory_.data()) + p * k * kPanelCols; }

  const int64_t n;
  const int64_t k;
};

class PanelGemm final : public Gemm {
 public:
  explicit PanelGemm(ThreadPool& pool) : pool_(pool) {}

  absl::StatusOr<std::unique_ptr<const PackedMatrix>> Pack(int64_t n, int64_t k,
                                                           const std::function<void(int64_t, float*)>& read_row,
                                                           Arena& arena) override {
    RUNAHEAD_ASSIGN_OR_RETURN(BufferRef memory, arena.Allocate(PanelsOf(n) * k * kPanelCols * sizeof(float)));
    auto packed = std::make_unique<Panels>(std::move(memory), n, k);
    pool_.ParallelFor(PanelsOf(n), [&](int64_t p) {
      std::vector<float> row(k);
      float* const panel = packed->panel(p);
      std::memset(panel, 0, k * kPanelCols * sizeof(float));
      for (int64_t c = 0; c < std::min<int64_t>(kPanelCols, n - p * kPanelCols); ++c) {
        read_row(p * kPanelCols + c, row.data());
        for (int64_t i = 0; i < k; ++i) panel[i * kPanelCols + c] = row[i];
      }
    });
    return packed;
  }

  std::unique_ptr<const PackedMatrix> Slice(const PackedMatrix& w, int64_t begin, int64_t end) const override {
    const Panels& whole = static_cast<const Panels&>(w);
    if (begin % kPanelCols != 0 || (end % kPanelCols != 0 && end != whole.n)) return nullptr;
    const size_t panel_bytes = whole.k * kPanelCols * sizeof(float);
    const size_t from = begin / kPanelCols * panel_bytes;
    return std::make_unique<Panels>(whole.memory().Slice(from, PanelsOf(end - begin) * panel_bytes), end - begin,
                                    whole.k);
  }

  void Run(const PackedMatrix& w, const GemmArgs& args) override {
    const Panels& packed = static_cast<const Panels&>(w);
    const int64_t blocks = (args.m + kPanelRowBlock - 1) / kPanelRowBlock, panels = PanelsOf(packed.n);
    // Few columns a task would pack x for little.
    constexpr int64_t kLeastPanels = 8;
    const int64_t wanted = std::max<int64_t>(1, kTasksPerThread * pool_.threads() / blocks);
    const int64_t step = std::min(panels, std::max(kLeastPanels, (panels + wanted - 1) / wanted));
    const int64_t parts = (panels + step - 1) / step;
    // One block of rows after the other: threads read the same weights at about the same time.
    pool_.ParallelFor(blocks * parts, [&](int64_t task) {
      RunTask(packed, args, task / parts * kPanelRowBlock, task % parts * step, step);
    });
  }

 private:
  void RunTask(const Panels& packed, const GemmArgs& args, int64_t row, int64_t panel, int64_t panels) const {
    thread_local Scratch scratch;
    const int64_t rows = std::min<int64_t>(kPanelRowBlock, args.m - row), col = panel * kPanelCols;
    const int64_t cols = std::min(panels * kPanelCols, packed.n - col);
    const int64_t at = row * args.out_stride + col;
    const bool rounds = args.out_dtype == DType::kBF16;
    std::vector<float> sums(rounds ? rows * cols : 0);  // that are to be rounded
    float* const out = rounds ? sums.data() : static_cast<float*>(args.out) + at;
    const int64_t out_stride = rounds ? cols : args.out_stride;
    MultiplyPanelsAvx2(
        {.x = static_cast<const float*>(args.x) + row * args.x_stride,
         .x_stride = args.x_stride,
         .rows = rows,
         .k = packed.k,
         .panels = packed.panel(panel),
         .out = out,
         .out_stride = out_stride,
         .cols = cols,
         .accumulate = args.accumulate,
         .scratch = reinterpret_cast<float*>(scratch.Get(sizeof(float) * kPanelRowBlock * kPanelDepth))});
    const float* const bias = args.bias == nullptr ? nullptr : args.bias + col;
    const bool unfinished = args.bias != nullptr || args.activation.has_value();
    for (int64_t r = 0; unfinished && r < rows; ++r) {
      FinishLinear(kernels_, bias, args.activation, out + r * out_stride, cols);
    }
    for (int64_t r = 0; rounds && r < rows; ++r) {
      std::transform(out + r * cols, out + (r + 1) * cols, static_cast<BFloat16*>(args.out) + at + r * args.out_stride,
                     ToBFloat16);
    }
  }

  const CpuKernels& kernels_ = KernelsFor(false);
  ThreadPool& pool_;
};

}  // namespace

std::unique_ptr<Gemm> NewPanelGemm(ThreadPool& pool) {
  return std::make_unique<PanelGemm>(pool);
}

}  // namespace runahead
