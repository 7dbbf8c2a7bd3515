// KV of sequences in pages all over a layer, as the kernels read it, for tests of single kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/kv_plan.h"
#include "tests/kernels/cuda/gpu_memory.h"

namespace runahead {

// Gives each sequence that has positions pages of its own, shuffled, with pages of nobody between them.
inline KvLayout ShuffledPages(int64_t page_tokens, std::vector<KvSequence> sequences, bool by_pieces = false) {
  KvLayout layout{page_tokens, {}, std::move(sequences), by_pieces};
  for (KvSequence& sequence : layout.sequences) {
    sequence.first_page = static_cast<int64_t>(layout.pages.size());
    layout.pages.resize(layout.pages.size() + (sequence.end - sequence.begin + page_tokens - 1) / page_tokens);
  }
  for (size_t i = 0; i < layout.pages.size(); ++i) layout.pages[i] = static_cast<int32_t>(2 * i + 1);
  std::shuffle(layout.pages.begin(), layout.pages.end(), std::mt19937(11));
  return layout;
}

// A layer with what the layout's sequences hold, and the plan's arrays beside it. Rows of nobody hold NaN.
class GpuPagedKv {
 public:
  // Element `col` of the KV row of a sequence at a position.
  using Value = std::function<float(size_t sequence, int64_t position, int64_t col)>;

  GpuPagedKv(DType dtype, int64_t cols, KvLayout layout, const Value& value, int64_t offset = 0)
      : layout_(std::move(layout)),
        plan_(PlanKv(layout_, /*repeats=*/true)),
        layer_(dtype, LayerRows(layout_), cols, 0, offset),
        items_(plan_.items),
        ranges_(plan_.ranges),
        pieces_(plan_.pieces),
        runs_(plan_.work),
        pages_(plan_.pages) {
    for (size_t s = 0; s < layout_.sequences.size(); ++s) {
      const KvSequence& sequence = layout_.sequences[s];
      for (int64_t p = sequence.begin; p < sequence.end; ++p) {
        for (int64_t c = 0; c < cols; ++c) layer_.set(layout_.RowOf(sequence, p), c, value(s, p, c));
      }
    }
    layer_.Upload();
  }

  const KvLayout& layout() const { return layout_; }
  const KvPlan& plan() const { return plan_; }
  // Fills in where KV lies.
  AttentionArgs Of(AttentionArgs args) const {
    args.layer = layer_.Row(0);
    args.pages = pages_.data();
    args.page_tokens = plan_.page_tokens;
    return args;
  }
  const AttentionItem* items() const { return items_.data(); }
  const PieceRange* ranges() const { return ranges_.data(); }
  AttentionWork work() const {
    return {pieces_.data(), runs_.data(), static_cast<int64_t>(plan_.work.size()), plan_.most_shared};
  }
  int64_t piece_count() const { return static_cast<int64_t>(plan_.pieces.size()); }

 private:
  static int64_t LayerRows(const KvLayout& layout) {
    const auto last = std::max_element(layout.pages.begin(), layout.pages.end());
    return last == layout.pages.end() ? 0 : (*last + 1) * layout.page_tokens;
  }

  const KvLayout layout_;
  const KvPlan plan_;
  GpuMatrix layer_;
  GpuArray<AttentionItem> items_;
  GpuArray<PieceRange> ranges_;
  GpuArray<AttentionPiece> pieces_;
  GpuArray<PieceRun> runs_;
  GpuArray<int64_t> pages_;
};

}  // namespace runahead
