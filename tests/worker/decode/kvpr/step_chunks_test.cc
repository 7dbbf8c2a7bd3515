#include "worker/decode/kvpr/step_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "kernels/base/checks.h"

namespace runahead {
namespace {

struct Step {
  std::vector<LaneShape> shapes;
  std::vector<LaneCuts> cuts;
  std::vector<int64_t> lengths;
  // The host's part, [streamed_end, host_end), is in no chunk.
  void Add(int64_t length, int64_t recomputed, int64_t streamed_end, int64_t host_end) {
    shapes.push_back({.length = length, .x_stored = length, .piece_tokens = PieceTokens(length)});
    cuts.push_back({recomputed, streamed_end, host_end});
    lengths.push_back(length);
  }
  void Add(int64_t length, int64_t recomputed, int64_t streamed_end) {
    Add(length, recomputed, streamed_end, streamed_end);
  }
};

Step RandomStep(std::mt19937& random) {
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  Step step;
  for (int64_t i = below(9) + 1; i > 0; --i) {
    const int64_t length = 1 + below(below(4) == 0 ? 40'000 : 1'500);
    const int64_t piece = PieceTokens(length);
    const int64_t end = below(2) == 0 ? length : std::min(length, below(length / piece + 2) * piece);
    const int64_t pieces_after = (length - end) / piece;
    step.Add(length, below(2) == 0 ? 0 : below(end + 1), end, end + below(pieces_after + 1) * piece);
  }
  return step;
}

TEST(StepChunks, EveryPositionOfTheLanesIsInOneChunkOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    const Step step = RandomStep(random);
    const int64_t pages = 4 + static_cast<int64_t>(random() % 8);
    std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> covered, from_x;
    for (const StepChunk& chunk : CutIntoChunks(step.shapes, step.cuts, pages)) {
      EXPECT_LE(chunk.pages, pages);
      EXPECT_GT(chunk.parts.size(), 0u);
      int64_t page = 0, x_row = 0;
      for (const ChunkPart& part : chunk.parts) {
        EXPECT_EQ(part.first_page, page);
        page += (part.end - part.begin + kChunkPageTokens - 1) / kChunkPageTokens;
        x_row += part.recompute_end - part.begin;
        covered[part.sequence].emplace_back(part.begin, part.end);
        if (part.recompute_end > part.begin) from_x[part.sequence].emplace_back(part.begin, part.recompute_end);
      }
      EXPECT_EQ(chunk.pages, page);
      EXPECT_EQ(chunk.x_rows, x_row);
    }
    const auto expect_whole = [](std::vector<std::pair<int64_t, int64_t>> ranges, int64_t end) {
      std::sort(ranges.begin(), ranges.end());
      int64_t at = 0;
      for (const auto& [begin, until] : ranges) {
        EXPECT_EQ(begin, at);
        at = until;
      }
      EXPECT_EQ(at, end);
    };
    for (size_t i = 0; i < step.cuts.size(); ++i) {
      expect_whole(covered[static_cast<int64_t>(i)], step.cuts[i].streamed_end);
      expect_whole(from_x[static_cast<int64_t>(i)], step.cuts[i].recomputed_end);
    }
  }
}

TEST(StepChunks, LayoutsAreThoseOfTables) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    const Step step = RandomStep(random);
    for (const StepChunk& chunk : CutIntoChunks(step.shapes, step.cuts, 8)) {
      const KvLayout attend = ChunkLayout(chunk, step.lengths), recompute = RecomputeLayout(chunk);
      EXPECT_TRUE(CheckKvLayout(attend).ok()) << CheckKvLayout(attend);
      EXPECT_TRUE(CheckKvLayout(recompute).ok()) << CheckKvLayout(recompute);
      EXPECT_EQ(attend.sequences.size(), step.lengths.size());
      // A row that is recomputed goes to where attention looks for it.
      size_t at = 0;
      for (const ChunkPart& part : chunk.parts) {
        if (part.recompute_end == part.begin) continue;
        const KvSequence& to = recompute.sequences[at++];
        EXPECT_EQ(to.queries, part.recompute_end - part.begin);
        for (const int64_t position : {part.begin, part.recompute_end - 1}) {
          EXPECT_EQ(recompute.RowOf(to, position), attend.RowOf(attend.sequences[part.sequence], position));
        }
      }
      EXPECT_EQ(at, recompute.sequences.size());
    }
  }
}

TEST(StepChunks, ChunksWithXAndWithoutTakeTurns) {
  Step step;
  step.Add(4096, 2048, 4096);
  std::vector<bool> with_x;
  for (const StepChunk& chunk : CutIntoChunks(step.shapes, step.cuts, 1)) with_x.push_back(chunk.x_rows > 0);
  ASSERT_EQ(with_x.size(), 16u);
  for (size_t i = 0; i < with_x.size(); ++i) EXPECT_EQ(with_x[i], i % 2 == 0) << i;
}

TEST(StepChunks, OwnRowsAreInTheChunkOfTheNewestPosition) {
  Step step;
  step.Add(300, 0, 300);
  step.Add(256, 0, 256);
  step.Add(700, 0, 512);  // the newest is resident
  step.Add(10, 0, 10);
  const std::vector<StepChunk> chunks = CutIntoChunks(step.shapes, step.cuts, 64);
  ASSERT_EQ(chunks.size(), 1u);
  const std::vector<SequenceRun> runs = OwnRowsIn(chunks[0], step.lengths);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].first, 0);
  EXPECT_EQ(runs[0].count, 2);
  EXPECT_EQ(runs[1].first, 3);
  EXPECT_EQ(runs[1].count, 1);
}

}  // namespace
}  // namespace runahead
