#include "kernels/cpu/stored_weights.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/rows_by_type.h"

namespace runahead {
namespace {

// Bytes of weights in one task of a loop: several per thread even for the small matrices of a 100M model, each long
// against the microsecond that claiming one costs.
constexpr int64_t kTaskBytes = 16 << 10;

}  // namespace

absl::StatusOr<StoredWeights> StoredWeights::Make(const WeightSource& source, Arena& arena, ThreadPool& pool) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  StoredWeights weights;
  const std::vector<TypedRows> runs = RowsByType(source);
  size_t bytes = 0;
  for (const TypedRows& run : runs) {
    const StoredForm& form = StoredFormOf(run.type);
    const Segment segment{run.first_row, &form, form.view(run.type, run.count(), source.cols)};
    bytes += segment.groups() * segment.view.group_bytes;
    weights.segments_.push_back(segment);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(weights.memory_, arena.Allocate(bytes));
  std::byte* at = weights.memory_.data();
  for (Segment& segment : weights.segments_) {
    segment.view.groups = at;
    at += segment.groups() * segment.view.group_bytes;
  }
  weights.MakeTasks();
  std::byte* const base = weights.memory_.data();
  pool.ParallelFor(weights.tasks_.size(), [&](int64_t t) {
    const Task& task = weights.tasks_[t];
    const Segment& segment = weights.segments_[task.segment];
    const StoredView& view = segment.view;
    std::byte* groups = base + (view.groups - base);
    for (int64_t g = task.begin; g < task.end; ++g) {
      std::byte* group = groups + g * view.group_bytes;
      std::memset(group, 0, view.group_bytes);
      const int64_t group_rows = segment.form->group_rows;
      for (int64_t r = g * group_rows; r < std::min(view.rows, (g + 1) * group_rows); ++r) {
        segment.form->pack_row(view, runs[task.segment].rows[r], r % group_rows, group);
      }
    }
  });
  return weights;
}

StoredWeights StoredWeights::At(const BufferRef& memory) const {
  StoredWeights moved = *this;
  for (Segment& segment : moved.segments_) segment.view.groups = memory.data() + (segment.view.groups - memory_.data());
  moved.memory_ = memory;
  return moved;
}

void StoredWeights::MakeTasks() {
  for (size_t s = 0; s < segments_.size(); ++s) {
    const auto& [first_row, form, view] = segments_[s];
    const int64_t groups = segments_[s].groups(), group_rows = form->group_rows;
    const int64_t step = std::max<int64_t>(1, kTaskBytes / static_cast<int64_t>(view.group_bytes));
    for (int64_t g = 0; g < groups; g += step) {
      const int64_t end = std::min(groups, g + step);
      tasks_.push_back({s, g, end, first_row + g * group_rows, first_row + std::min(view.rows, end * group_rows)});
    }
  }
}

void StoredWeights::DequantizeRow(const CpuKernels& kernels, int64_t row, float* out) const {
  size_t s = segments_.size() - 1;
  while (segments_[s].first_row > row) --s;
  const Segment& segment = segments_[s];
  segment.form->dequantize_row(kernels, segment.view, row - segment.first_row, out);
}

void StoredWeights::Matvec(const CpuKernels& kernels, ThreadPool& pool, MatvecArgs args) const {
  const int64_t cols = segments_[0].view.cols;
  const int64_t padded = segments_[0].view.blocks * kBlockCols;
  std::vector<float> copy;
  if (padded != cols) {
    copy.assign(args.m * padded, 0.0f);
    for (int64_t m = 0; m < args.m; ++m) std::copy_n(args.x + m * args.x_stride, cols, copy.data() + m * padded);
    args.x = copy.data();
    args.x_stride = padded;
  }
  // Tasks lie in the order of their rows.
  const auto first = std::partition_point(tasks_.begin(), tasks_.end(),
                                          [&](const Task& task) { return task.end_row <= args.begin_row; });
  const auto last =
      std::partition_point(first, tasks_.end(), [&](const Task& task) { return task.begin_row < args.end_row; });
  pool.ParallelFor(last - first, [&](int64_t t) {
    const Task& task = first[t];
    MatvecArgs part = args;
    const Segment& segment = segments_[task.segment];
    part.begin_row = std::max<int64_t>(0, args.begin_row - segment.first_row);
    part.end_row = args.end_row - segment.first_row;
    const int64_t column = segment.first_row + part.begin_row - args.begin_row;
    part.out = static_cast<std::byte*>(args.out) + column * DTypeSize(args.out_dtype);
    segment.form->matvec(kernels, segment.view, part, task.begin, task.end);
  });
}

}  // namespace runahead
