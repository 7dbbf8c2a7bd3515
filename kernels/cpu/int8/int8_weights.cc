#include "kernels/cpu/int8/int8_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/base/checks.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status_macros.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/int8/quantized_rows.h"
#include "kernels/cpu/int8/weight_block.h"
#include "kernels/cpu/rows_by_type.h"

namespace runahead {
namespace {

// Bytes of weights in one task of a product: several tasks per thread even for the small matrices of a 100M model, each
// long against the microsecond that claiming one costs.
constexpr int64_t kInt8TaskBytes = 32 << 10;

}  // namespace

bool Int8Weights::Takes(const WeightSource& source) {
  return std::all_of(source.runs.begin(), source.runs.end(),
                     [](const WeightRows& run) { return HasInt8Form(run.type); });
}

absl::StatusOr<Int8Weights> Int8Weights::Make(const WeightSource& source, const FormPlace& place, ThreadPool& pool) {
  RUNAHEAD_RETURN_IF_ERROR(CheckWeightSource(source));
  Int8Weights weights;
  weights.cols_ = source.cols;
  const std::vector<TypedRows> runs = RowsByType(source);
  size_t bytes = 0;
  for (const TypedRows& run : runs) {
    const Segment segment{run.first_row, {.type = run.type, .rows = run.count(), .blocks = source.cols / kInt8Block}};
    bytes += segment.groups() * segment.group_bytes();
    weights.segments_.push_back(segment);
  }
  RUNAHEAD_ASSIGN_OR_RETURN(SharedWeights::Block block, place.Take(bytes));
  weights.memory_ = std::move(block.memory);
  std::byte* at = weights.memory_.data();
  for (size_t s = 0; s < runs.size(); ++s) {
    Segment& segment = weights.segments_[s];
    segment.view.groups = at;
    const size_t group_bytes = segment.group_bytes();
    ForRows(pool, block.filled ? 0 : segment.groups(), kInt8GroupRows * source.cols, [&](int64_t g) {
      std::byte* const group = at + g * group_bytes;
      std::memset(group, 0, group_bytes);
      for (int64_t r = g * kInt8GroupRows; r < std::min(segment.view.rows, (g + 1) * kInt8GroupRows); ++r) {
        PackInt8Row(segment.view.type, runs[s].rows[r], segment.view.blocks, r % kInt8GroupRows, group);
      }
    });
    at += segment.groups() * group_bytes;
  }
  return weights;
}

Int8Weights Int8Weights::At(const BufferRef& memory) const {
  Int8Weights moved = *this;
  for (Segment& segment : moved.segments_) segment.view.groups = memory.data() + (segment.view.groups - memory_.data());
  moved.memory_ = memory;
  return moved;
}

const Int8Weights::Segment& Int8Weights::SegmentOf(int64_t row) const {
  size_t s = segments_.size() - 1;
  while (segments_[s].first_row > row) --s;
  return segments_[s];
}

BufferRef Int8Weights::MemoryFrom(int64_t first_row) const {
  const Segment& segment = SegmentOf(first_row);
  const int64_t group = (first_row - segment.first_row) / kInt8GroupRows;
  const size_t from = segment.view.groups - memory_.data() + group * segment.group_bytes();
  return memory_.Slice(from, memory_.size - from);
}

void Int8Weights::DequantizeRow(int64_t row, float* out) const {
  const Segment& segment = SegmentOf(row);
  const int64_t r = row - segment.first_row;
  UnpackInt8Row(segment.view.type, segment.view.groups + r / kInt8GroupRows * segment.group_bytes(),
                segment.view.blocks, r % kInt8GroupRows, out);
}

std::vector<Int8Weights::Task> Int8Weights::TasksOf(const Int8Product& args) const {
  std::vector<Task> tasks;
  for (const Segment& segment : segments_) {
    const int64_t first = std::max<int64_t>(0, args.first_row - segment.first_row);
    const int64_t last = std::min(segment.view.rows, args.first_row + args.cols - segment.first_row);
    if (first >= last) continue;
    const int64_t end = (last + kInt8GroupRows - 1) / kInt8GroupRows;
    // Whole strips.
    const int64_t strips = kInt8TaskBytes / static_cast<int64_t>(kInt8StripGroups * segment.group_bytes());
    const int64_t step = kInt8StripGroups * std::max<int64_t>(1, strips);
    for (int64_t g = first / kInt8GroupRows; g < end; g += step) {
      tasks.push_back({&segment, g, std::min(end, g + step)});
    }
  }
  return tasks;
}

void Int8Weights::Multiply(const CpuKernels& rows, const Int8Kernels& kernels, ThreadPool& pool,
                           const Int8Product& args) const {
  const QuantizedRows x(kernels, pool, args.x, args.x_stride, args.m, cols_ / kInt8Block);
  const std::vector<Task> tasks = TasksOf(args);
  const int64_t panels = x.panels();
  // All panels of a task's groups, one after the other: they find the weights in the cache.
  pool.ParallelFor(static_cast<int64_t>(tasks.size()) * panels, [&](int64_t t) {
    const Task& task = tasks[t / panels];
    const Int8Panel panel = x.panel(t % panels);
    const int64_t first_row = t % panels * kInt8PanelRows;
    // Rows of the task's segment that are asked for, and the column of `out` of its row 0.
    const int64_t column = task.segment->first_row - args.first_row;
    const int64_t begin = std::max(task.begin * kInt8GroupRows, -column);
    const int64_t end = std::min({task.end * kInt8GroupRows, task.segment->view.rows, args.cols - column});
    for (int64_t g = task.begin; g < task.end; g += kInt8StripGroups) {
      const int groups = static_cast<int>(std::min<int64_t>(kInt8StripGroups, task.end - g));
      const int64_t from = std::max(begin, g * kInt8GroupRows), to = std::min(end, (g + groups) * kInt8GroupRows);
      float* const out = args.out + first_row * args.out_stride + column;
      if (from == g * kInt8GroupRows && to == (g + groups) * kInt8GroupRows) {
        kernels.strip(task.segment->view, g, groups, panel, {out + from, args.out_stride, args.accumulate});
        continue;
      }
      // A strip of which some rows only are asked for.
      alignas(64) float whole[kInt8PanelRows * kInt8StripRows] = {};
      const auto asked = [&](int64_t r) { return whole + r * kInt8StripRows + from - g * kInt8GroupRows; };
      const auto outs = [&](int64_t r) { return out + r * args.out_stride + from; };
      for (int64_t r = 0; args.accumulate && r < panel.rows; ++r) std::copy_n(outs(r), to - from, asked(r));
      kernels.strip(task.segment->view, g, groups, panel, {whole, kInt8StripRows, args.accumulate});
      for (int64_t r = 0; r < panel.rows; ++r) std::copy_n(asked(r), to - from, outs(r));
    }
    if (args.bias == nullptr && !args.activation.has_value()) return;
    const float* const bias = args.bias == nullptr ? nullptr : args.bias + column + begin;
    for (int64_t r = 0; r < panel.rows; ++r) {
      FinishLinear(rows, bias, args.activation, args.out + (first_row + r) * args.out_stride + column + begin,
                   end - begin);
    }
  });
}

}  // namespace runahead
