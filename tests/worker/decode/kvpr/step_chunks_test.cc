#include "worker/decode/kvpr/step_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/base/checks.h"

namespace runahead {
namespace {

struct Step {
  std::vector<LaneShape> shapes;
  std::vector<LaneCuts> cuts;
  std::vector<StepSequence> sequences;
  // The host's part, [streamed_end, host_end), is in no chunk.
  void Add(int64_t length, int64_t recomputed, int64_t streamed_end, int64_t host_end, int64_t rows = 1) {
    shapes.push_back({.length = length, .x_stored = length, .piece_tokens = PieceTokens(length)});
    cuts.push_back({recomputed, streamed_end, host_end});
    sequences.push_back({length, rows});
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
    const int64_t pages = 16 + static_cast<int64_t>(random() % 32);
    std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> covered, from_x;
    for (const StepChunk& chunk : CutIntoChunks(step.shapes, step.cuts, pages)) {
      EXPECT_LE(chunk.pages, pages);
      EXPECT_GT(chunk.parts.size(), 0u);
      int64_t x_page = 0, page = chunk.x_pages;
      for (const ChunkPart& part : chunk.parts) {
        EXPECT_EQ(part.first_page, x_page) << "what is recomputed lies in front, without gaps";
        EXPECT_EQ(part.first_streamed_page, page);
        x_page += part.x_pages();
        page += RoundUpTo(kChunkPageTokens, part.end - part.begin) / kChunkPageTokens - part.x_pages();
        covered[part.sequence].emplace_back(part.begin, part.end);
        if (part.recompute_end > part.begin) from_x[part.sequence].emplace_back(part.begin, part.recompute_end);
      }
      EXPECT_EQ(chunk.pages, page);
      EXPECT_EQ(chunk.x_pages, x_page);
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
    for (const StepChunk& chunk : CutIntoChunks(step.shapes, step.cuts, 32)) {
      const KvLayout attend = ChunkLayout(chunk, step.sequences), recompute = RecomputeLayout(chunk);
      EXPECT_TRUE(CheckKvLayout(attend).ok()) << CheckKvLayout(attend);
      EXPECT_TRUE(CheckKvLayout(recompute).ok()) << CheckKvLayout(recompute);
      EXPECT_EQ(attend.sequences.size(), step.sequences.size());
      // A row that is recomputed goes to where attention looks for it.
      size_t at = 0;
      for (const ChunkPart& part : chunk.parts) {
        if (part.recompute_end == part.begin) continue;
        const KvSequence& to = recompute.sequences[at++];
        EXPECT_EQ(to.queries, part.tiles_end() - part.begin);
        for (int64_t position = part.begin; position < part.recompute_end; ++position) {
          EXPECT_EQ(recompute.RowOf(to, position), attend.RowOf(attend.sequences[part.sequence], position));
        }
      }
      EXPECT_EQ(at, recompute.sequences.size());
      // A position's row is the chunk's, and no two have the same.
      std::set<int64_t> rows;
      for (const ChunkPart& part : chunk.parts) {
        for (int64_t position = part.begin; position < part.end; ++position) {
          EXPECT_EQ(part.Row(position), attend.RowOf(attend.sequences[part.sequence], position));
          EXPECT_TRUE(rows.insert(part.Row(position)).second) << position;
          EXPECT_LT(part.Row(position), chunk.pages * kChunkPageTokens);
        }
      }
    }
  }
}

TEST(StepChunks, ChunksWithXAndWithoutTakeTurns) {
  Step step;
  step.Add(4096, 2048, 4096);
  std::vector<bool> with_x;
  for (const StepChunk& chunk : CutIntoChunks(step.shapes, step.cuts, 4)) with_x.push_back(chunk.x_pages > 0);
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
  const std::vector<RowRun> runs = OwnRowsIn(chunks[0], step.sequences);
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].first, 0);
  EXPECT_EQ(runs[0].count, 2);
  EXPECT_EQ(runs[1].first, 3);
  EXPECT_EQ(runs[1].count, 1);
}

// Those of a sequence may lie in several chunks, or in part where it is resident.
TEST(StepChunks, OwnRowsAreInTheChunksOfTheirPositions) {
  Step step;
  step.Add(258, 0, 258, 258, /*rows=*/4);  // positions 254 to 257
  step.Add(40, 0, 40);
  step.Add(515, 0, 512, 512, /*rows=*/5);  // of 510 to 514 the last three are resident
  const std::vector<StepChunk> chunks = CutIntoChunks(step.shapes, step.cuts, 4);
  const auto runs_of = [&](size_t chunk) {
    std::vector<std::pair<int64_t, int64_t>> runs;
    for (const RowRun& run : OwnRowsIn(chunks[chunk], step.sequences)) runs.push_back({run.first, run.count});
    return runs;
  };
  using Runs = std::vector<std::pair<int64_t, int64_t>>;
  ASSERT_EQ(chunks.size(), 4u);
  EXPECT_EQ(runs_of(0), (Runs{{0, 2}}));
  EXPECT_EQ(runs_of(1), (Runs{{2, 3}})) << "the sequence behind it comes next";
  EXPECT_EQ(runs_of(2), (Runs{}));
  EXPECT_EQ(runs_of(3), (Runs{{5, 2}}));
}

}  // namespace
}  // namespace runahead
