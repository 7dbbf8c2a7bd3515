#include "worker/decode/kvpr/step_chunks.h"

#include <algorithm>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

int64_t PagesFor(int64_t tokens) {
  return (tokens + kChunkPageTokens - 1) / kChunkPageTokens;
}

// Fills chunks one after the other.
class ChunkFiller {
 public:
  explicit ChunkFiller(int64_t chunk_pages) : chunk_pages_(chunk_pages) {}

  // Adds whole pieces of `piece_tokens` of a sequence's positions [begin, end), of which those below `recompute_end`
  // are made from X.
  void Add(int64_t sequence, int64_t piece_tokens, int64_t begin, int64_t recompute_end, int64_t end) {
    RUNAHEAD_CHECK(PagesFor(piece_tokens) <= chunk_pages_);
    while (begin < end) {
      const int64_t room = chunks_.empty() ? 0 : chunk_pages_ - chunks_.back().pages;
      const int64_t whole = room * kChunkPageTokens / piece_tokens * piece_tokens;
      const int64_t until = PagesFor(end - begin) <= room ? end : std::min(end, begin + whole);
      if (until == begin) {
        chunks_.emplace_back();
        continue;
      }
      StepChunk& chunk = chunks_.back();
      chunk.parts.push_back({sequence, begin, std::clamp(recompute_end, begin, until), until});
      chunk.pages += PagesFor(until - begin);
      chunk.x_pages += chunk.parts.back().x_pages();
      begin = until;
    }
  }

  std::vector<StepChunk> Take() {
    for (StepChunk& chunk : chunks_) Place(chunk);
    return std::move(chunks_);
  }

 private:
  // Begins and ends of parts are whole tiles, but for the last end: so a part takes as many pages in two places as in
  // one.
  static void Place(StepChunk& chunk) {
    int64_t recomputed = 0, streamed = chunk.x_pages;
    for (ChunkPart& part : chunk.parts) {
      part.first_page = recomputed;
      part.first_streamed_page = streamed;
      recomputed += part.x_pages();
      streamed += PagesFor(part.end - part.begin) - part.x_pages();
    }
  }

  const int64_t chunk_pages_;
  std::vector<StepChunk> chunks_;
};

}  // namespace

std::vector<StepChunk> CutIntoChunks(absl::Span<const LaneShape> shapes, absl::Span<const LaneCuts> cuts,
                                     int64_t chunk_pages) {
  ChunkFiller with_x(chunk_pages), without(chunk_pages);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const int64_t piece = shapes[i].piece_tokens, end = cuts[i].streamed_end, recomputed = cuts[i].recomputed_end;
    const int64_t turn = std::min(end, RoundUpTo(piece, recomputed));  // the piece that is in both lanes has X
    with_x.Add(static_cast<int64_t>(i), piece, 0, recomputed, turn);
    without.Add(static_cast<int64_t>(i), piece, turn, turn, end);
  }
  std::vector<StepChunk> first = with_x.Take(), second = without.Take(), chunks;
  const size_t all = first.size() + second.size();
  for (size_t at = 0, taken = 0; at < all; ++at) {
    // After `at` chunks the first list has given its share of them, rounded up.
    const bool of_first = taken * all < first.size() * (at + 1);
    chunks.push_back(std::move(of_first ? first[taken] : second[at - taken]));
    taken += of_first ? 1 : 0;
  }
  return chunks;
}

KvLayout ChunkLayout(const StepChunk& chunk, absl::Span<const StepSequence> sequences) {
  KvLayout layout{.page_tokens = kChunkPageTokens, .pages = {}, .sequences = {}, .by_pieces = true};
  for (const StepSequence& of : sequences) layout.sequences.push_back({.queries = of.rows, .length = of.length});
  for (const ChunkPart& part : chunk.parts) {
    KvSequence& sequence = layout.sequences[part.sequence];
    sequence.first_page = static_cast<int64_t>(layout.pages.size());
    sequence.begin = part.begin;
    sequence.end = part.end;
    for (int64_t at = part.begin; at < part.end; at += kChunkPageTokens) {
      layout.pages.push_back(static_cast<int32_t>(part.Row(at) / kChunkPageTokens));
    }
  }
  return layout;
}

KvLayout RecomputeLayout(const StepChunk& chunk) {
  KvLayout layout{.page_tokens = kChunkPageTokens, .pages = {}, .sequences = {}};
  for (int64_t page = 0; page < chunk.x_pages; ++page) layout.pages.push_back(static_cast<int32_t>(page));
  for (const ChunkPart& part : chunk.parts) {
    if (part.x_pages() == 0) continue;
    layout.sequences.push_back({.queries = part.tiles_end() - part.begin,
                                .length = part.tiles_end(),
                                .first_page = part.first_page,
                                .begin = part.begin,
                                .end = part.tiles_end()});
  }
  return layout;
}

void AddRun(int64_t first, int64_t count, std::vector<RowRun>& runs) {
  if (count <= 0) return;
  if (!runs.empty() && runs.back().first + runs.back().count == first) {
    runs.back().count += count;
  } else {
    runs.push_back({first, count});
  }
}

std::vector<RowRun> OwnRowsIn(const StepChunk& chunk, absl::Span<const StepSequence> sequences) {
  std::vector<int64_t> first_rows;
  int64_t rows = 0;
  for (const StepSequence& of : sequences) {
    first_rows.push_back(rows);
    rows += of.rows;
  }
  std::vector<RowRun> runs;
  for (const ChunkPart& part : chunk.parts) {
    const int64_t first_new = sequences[part.sequence].first_new(), begin = std::max(part.begin, first_new);
    AddRun(first_rows[part.sequence] + begin - first_new, part.end - begin, runs);
  }
  return runs;
}

}  // namespace runahead
