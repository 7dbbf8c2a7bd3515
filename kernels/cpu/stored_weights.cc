#include "kernels/cpu/stored_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/checks.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/int8/weight_block.h"
#include "kernels/cpu/rows_by_type.h"
#include "kernels/cpu/superblock_matvec.h"

namespace runahead {
namespace {

// Bytes of weights in one task of a loop: several per thread even for the small matrices of a 100M model, each long
// against the microsecond that claiming one costs.
constexpr int64_t kTaskBytes = 16 << 10;

struct TypeLayout {
  size_t scale_bytes;    // of one block, in front of its elements in the file
  size_t element_bytes;  // of one block of 32 columns
};

TypeLayout LayoutOf(WeightType type) {
  const WeightBlock& block = BlockOf(type);
  const size_t scale_bytes = block.scale_bytes();
  return {scale_bytes, WeightRowBytes(type, kBlockCols) - scale_bytes};
}

size_t Pad(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

StoredView MakeView(WeightType type, int64_t rows, int64_t cols) {
  const TypeLayout layout = LayoutOf(type);
  StoredView view;
  view.type = type;
  view.rows = rows;
  view.cols = cols;
  view.blocks = (cols + kBlockCols - 1) / kBlockCols;
  if (IsSuperblock(type)) {
    view.group_bytes = Int8BlockAt(Int8LayoutOf(type), view.blocks);
    return view;
  }
  view.scale_bytes = Pad(kGroupRows * view.blocks * layout.scale_bytes);
  view.block_bytes = layout.element_bytes;
  view.group_bytes = view.scale_bytes + Pad(kGroupRows * view.blocks * layout.element_bytes);
  return view;
}

// Superblocks lie as for 8-bit products.
int64_t GroupRows(const StoredView& view) {
  return IsSuperblock(view.type) ? kInt8GroupRows : kGroupRows;
}
Int8View SuperblockView(const StoredView& view) {
  return {.type = view.type, .rows = view.rows, .blocks = view.blocks, .groups = view.groups};
}

int64_t Groups(const StoredView& view) {
  return (view.rows + GroupRows(view) - 1) / GroupRows(view);
}

// Takes one row of a file apart into its scales and its elements. The group was zeroed before.
void CopyRow(const StoredView& view, const std::byte* from, int64_t in_group, std::byte* group) {
  if (IsSuperblock(view.type)) return PackInt8Row(view.type, from, view.blocks, in_group, group);
  const TypeLayout layout = LayoutOf(view.type);
  std::byte* scales = group + in_group * view.blocks * layout.scale_bytes;
  std::byte* elements = group + view.scale_bytes + in_group * view.blocks * layout.element_bytes;
  if (layout.scale_bytes == 0) {
    std::memcpy(elements, from, WeightRowBytes(view.type, view.cols));
    return;
  }
  for (int64_t b = 0; b < view.blocks; ++b) {
    std::memcpy(scales, from, layout.scale_bytes);
    std::memcpy(elements, from + layout.scale_bytes, layout.element_bytes);
    scales += layout.scale_bytes;
    elements += layout.element_bytes;
    from += layout.scale_bytes + layout.element_bytes;
  }
}

}  // namespace

absl::StatusOr<StoredWeights> StoredWeights::Make(const WeightSource& source, Arena& arena, ThreadPool& pool) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  StoredWeights weights;
  const std::vector<TypedRows> runs = RowsByType(source);
  size_t bytes = 0;
  for (const TypedRows& run : runs) {
    const StoredView view = MakeView(run.type, run.count(), source.cols);
    bytes += Groups(view) * view.group_bytes;
    weights.segments_.push_back({run.first_row, view});
  }
  RUNAHEAD_ASSIGN_OR_RETURN(weights.memory_, arena.Allocate(bytes));
  std::byte* at = weights.memory_.data();
  for (Segment& segment : weights.segments_) {
    segment.view.groups = at;
    at += Groups(segment.view) * segment.view.group_bytes;
  }
  weights.MakeTasks();
  std::byte* const base = weights.memory_.data();
  pool.ParallelFor(weights.tasks_.size(), [&](int64_t t) {
    const Task& task = weights.tasks_[t];
    const StoredView& view = weights.segments_[task.segment].view;
    std::byte* groups = base + (view.groups - base);
    for (int64_t g = task.begin; g < task.end; ++g) {
      std::byte* group = groups + g * view.group_bytes;
      std::memset(group, 0, view.group_bytes);
      const int64_t group_rows = GroupRows(view);
      for (int64_t r = g * group_rows; r < std::min(view.rows, (g + 1) * group_rows); ++r) {
        CopyRow(view, runs[task.segment].rows[r], r % group_rows, group);
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
    const StoredView& view = segments_[s].view;
    const int64_t groups = Groups(view);
    const int64_t step = std::max<int64_t>(1, kTaskBytes / static_cast<int64_t>(view.group_bytes));
    for (int64_t g = 0; g < groups; g += step) {
      const int64_t end = std::min(groups, g + step), first_row = segments_[s].first_row;
      tasks_.push_back(
          {s, g, end, first_row + g * GroupRows(view), first_row + std::min(view.rows, end * GroupRows(view))});
    }
  }
}

void StoredWeights::DequantizeRow(const CpuKernels& kernels, int64_t row, float* out) const {
  size_t s = segments_.size() - 1;
  while (segments_[s].first_row > row) --s;
  const StoredView& view = segments_[s].view;
  const int64_t r = row - segments_[s].first_row;
  if (!IsSuperblock(view.type)) return kernels.dequantize_row(view, r, out);
  UnpackInt8Row(view.type, view.groups + r / kInt8GroupRows * view.group_bytes, view.blocks, r % kInt8GroupRows, out);
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
    if (IsSuperblock(segment.view.type)) {
      SuperblockMatvec(SuperblockView(segment.view), part, task.begin, task.end);
    } else {
      kernels.matvec(segment.view, part, task.begin, task.end);
    }
  });
}

}  // namespace runahead
