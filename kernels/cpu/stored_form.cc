#include "kernels/cpu/stored_form.h"

#include <cstring>

#include "kernels/cpu/int8/product.h"
#include "kernels/cpu/int8/weight_block.h"
#include "kernels/cpu/superblock_matvec.h"

namespace runahead {
namespace {

struct TypeLayout {
  size_t scale_bytes;    // of one block, in front of its elements in the file
  size_t element_bytes;  // of one block of 32 columns
};

TypeLayout LayoutOf(WeightType type) {
  const size_t scale_bytes = BlockOf(type).scale_bytes();
  return {scale_bytes, WeightRowBytes(type, kBlockCols) - scale_bytes};
}

size_t Pad(size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

StoredView BlocksView(WeightType type, int64_t rows, int64_t cols) {
  const TypeLayout layout = LayoutOf(type);
  StoredView view{.type = type, .rows = rows, .cols = cols, .blocks = (cols + kBlockCols - 1) / kBlockCols};
  view.scale_bytes = Pad(kGroupRows * view.blocks * layout.scale_bytes);
  view.block_bytes = layout.element_bytes;
  view.group_bytes = view.scale_bytes + Pad(kGroupRows * view.blocks * layout.element_bytes);
  return view;
}

// Takes the row apart into its scales and its elements.
void PackBlocks(const StoredView& w, const std::byte* from, int64_t in_group, std::byte* group) {
  const TypeLayout layout = LayoutOf(w.type);
  std::byte* scales = group + in_group * w.blocks * layout.scale_bytes;
  std::byte* elements = group + w.scale_bytes + in_group * w.blocks * layout.element_bytes;
  if (layout.scale_bytes == 0) {
    std::memcpy(elements, from, WeightRowBytes(w.type, w.cols));
    return;
  }
  for (int64_t b = 0; b < w.blocks; ++b) {
    std::memcpy(scales, from, layout.scale_bytes);
    std::memcpy(elements, from + layout.scale_bytes, layout.element_bytes);
    scales += layout.scale_bytes;
    elements += layout.element_bytes;
    from += layout.scale_bytes + layout.element_bytes;
  }
}

constexpr StoredForm kBlocksForm = {
    .group_rows = kGroupRows,
    .view = BlocksView,
    .pack_row = PackBlocks,
    .dequantize_row = [](const CpuKernels& kernels, const StoredView& w, int64_t row,
                         float* out) { kernels.dequantize_row(w, row, out); },
    .matvec = [](const CpuKernels& kernels, const StoredView& w, const MatvecArgs& args, int64_t begin,
                 int64_t end) { kernels.matvec(w, args, begin, end); },
};

StoredView SuperblocksView(WeightType type, int64_t rows, int64_t cols) {
  const int64_t blocks = cols / kInt8Block;
  return {.type = type,
          .rows = rows,
          .cols = cols,
          .blocks = blocks,
          .group_bytes = Int8BlockAt(Int8LayoutOf(type), blocks)};
}

void PackSuperblocks(const StoredView& w, const std::byte* from, int64_t in_group, std::byte* group) {
  PackInt8Row(w.type, from, w.blocks, in_group, group);
}

void UnpackSuperblocks(const CpuKernels&, const StoredView& w, int64_t row, float* out) {
  UnpackInt8Row(w.type, w.groups + row / kInt8GroupRows * w.group_bytes, w.blocks, row % kInt8GroupRows, out);
}

void MultiplySuperblocks(const CpuKernels&, const StoredView& w, const MatvecArgs& args, int64_t begin, int64_t end) {
  SuperblockMatvec({.type = w.type, .rows = w.rows, .blocks = w.blocks, .groups = w.groups}, args, begin, end);
}

constexpr StoredForm kSuperblocksForm = {
    .group_rows = kInt8GroupRows,
    .view = SuperblocksView,
    .pack_row = PackSuperblocks,
    .dequantize_row = UnpackSuperblocks,
    .matvec = MultiplySuperblocks,
};

}  // namespace

const StoredForm& StoredFormOf(WeightType type) {
  return IsSuperblock(type) ? kSuperblocksForm : kBlocksForm;
}

}  // namespace runahead
