#include "kernels/cpu/gemm_plan.h"

#include <algorithm>

namespace runahead {
namespace {

// Creating a primitive costs about a millisecond, so calls come in few sizes. From 16 on these are sums of whole AMX
// tiles that oneDNN's kernel, which looks for a divisor between 32 and 64, does not cut unevenly.
constexpr int64_t kCallRows[] = {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 320, 384, 448, 512};
constexpr int64_t kMostRows = 512;
// Fewer rows oneDNN multiplies in bf16 by another kernel, which rounds otherwise: a row would depend on how many are
// beside it.
constexpr int64_t kFewestBf16Rows = 4;
// Below this many rows reading the weights costs more than multiplying them.
constexpr int64_t kFewRows = 64;
// A block of x stays in L2 (1 MiB on the smallest machine, 2 on most) while all weights pass by.
constexpr int64_t kBlockBytes = 1 << 20;

int64_t RoundUpRows(int64_t rows) {
  for (int64_t size : kCallRows) {
    if (size >= rows) return size;
  }
  return kMostRows;
}

int64_t RoundDownRows(int64_t rows) {
  int64_t best = 1;
  for (int64_t size : kCallRows) {
    if (size <= rows) best = size;
  }
  return best;
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

class Planner {
 public:
  Planner(const CpuGemmShape& shape, int threads)
      : shape_(shape),
        threads_(threads),
        most_rows_(RoundDownRows(
            std::clamp(kBlockBytes / std::max<int64_t>(1, shape.k * shape.element_bytes), kFewRows, kMostRows))) {}

  std::vector<GemmTask> Plan() {
    while (left() >= kFewRows * threads_) AddRound();
    while (left() > 0) AddRest();
    return std::move(tasks_);
  }

 private:
  int64_t left() const { return shape_.m - row_; }

  // One block of equal size for each thread.
  void AddRound() {
    const int64_t rows = std::min(most_rows_, RoundDownRows(left() / threads_));
    for (int t = 0; t < threads_; ++t) AddRows(rows, rows, 1);
  }

  // A block that all threads share: padded when little is wasted, else as many rows as fill one.
  void AddRest() {
    const int64_t fewest = shape_.element_bytes < 4 ? kFewestBf16Rows : 1;
    int64_t call_rows = RoundUpRows(std::clamp(left(), fewest, most_rows_));
    if (call_rows > 16 && call_rows - left() > call_rows / 8) call_rows = RoundDownRows(std::min(left(), most_rows_));
    AddRows(std::min(left(), call_rows), call_rows, shape_.sliceable ? threads_ : 1);
  }

  void AddRows(int64_t rows, int64_t call_rows, int64_t parts) {
    // The last slice may be narrower than the others, and then goes with the one before it: oneDNN packs narrow
    // matrices in another layout.
    const int64_t slices = std::max<int64_t>(1, shape_.n / kGemmSlice);
    parts = std::min(parts, slices);
    int64_t col = 0;
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t end = p + 1 == parts ? shape_.n : CeilDiv(slices * (p + 1), parts) * kGemmSlice;
      tasks_.push_back({row_, rows, call_rows, col, end - col});
      col = end;
    }
    row_ += rows;
  }

  const CpuGemmShape shape_;
  const int threads_;
  const int64_t most_rows_;
  int64_t row_ = 0;
  std::vector<GemmTask> tasks_;
};

}  // namespace

std::vector<GemmTask> PlanGemm(const CpuGemmShape& shape, int threads) {
  return Planner(shape, threads).Plan();
}

}  // namespace runahead
