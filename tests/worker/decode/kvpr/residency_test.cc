#include "worker/decode/kvpr/residency.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/base/kv_table.h"
#include "tests/testing/fake_device.h"
#include "worker/kv/block_pool.h"

namespace runahead {
namespace {

constexpr int64_t kHeldLayers = 2, kHeldKvRow = 64, kHeldXRow = 32;
constexpr int64_t kHeldKvBlock = kHeldLayers * kKvBlockTokens * kHeldKvRow;

LaneCosts CostsWhereXPays() {
  LaneCosts costs;
  costs.link_bytes_per_s = 1e9;
  costs.kv_bytes = kHeldKvRow;
  costs.x_bytes = kHeldXRow;
  costs.recompute_s = 1e-9;
  return costs;
}

// Whose position lies in each row of each block, as a device's memory would have it.
class SimulatedMemory {
 public:
  void Write(int32_t block, int64_t position, const void* sequence) {
    rows_[{block, position % kKvBlockTokens}] = {sequence, position};
  }
  bool Holds(int32_t block, int64_t position, const void* sequence) const {
    const auto found = rows_.find({block, position % kKvBlockTokens});
    return found != rows_.end() && found->second == std::pair(sequence, position);
  }

 private:
  std::map<std::pair<int32_t, int64_t>, std::pair<const void*, int64_t>> rows_;
};

struct Running {
  int64_t length = 0;  // its rows of the step included
  bool with_x = false;
  int64_t kv_from = 0;
  int64_t rows = 1;
};

class ResidencyTest : public ::testing::Test {
 protected:
  void Make(int64_t bytes) {
    memory_ = *ResidentMemory::Create(device_, kHeldLayers, kHeldKvRow, kHeldXRow, bytes);
    residency_.emplace(*memory_, TierBudget{.bytes = memory_->bytes(),
                                            .layers = kHeldLayers,
                                            .block_tokens = kKvBlockTokens,
                                            .kv_bytes = kHeldKvRow,
                                            .x_bytes = kHeldXRow});
  }

  // A step as the loop runs it: reads what is resident, writes what is to stay.
  void Step(const std::vector<Running*>& running) {
    std::vector<ResidentKey> keys;
    for (const Running* of : running) {
      keys.push_back({of, of->length, of->rows, of->with_x ? of->length - of->rows : 0, of->kv_from});
    }
    const auto parts = residency_->Prepare(keys, CostsWhereXPays());
    ASSERT_TRUE(parts.ok()) << parts.status();
    std::set<int32_t> kv, x;
    for (size_t i = 0; i < keys.size(); ++i) Use(keys[i], (*parts)[i], kv, x);
    EXPECT_LE(static_cast<int64_t>(kv.size()) * kHeldKvBlock + static_cast<int64_t>(x.size()) * kHeldKvBlock / 2,
              memory_->bytes());
  }

  void Use(const ResidentKey& key, const ResidentPart& part, std::set<int32_t>& kv, std::set<int32_t>& x) {
    for (const int32_t block : part.kv_blocks) EXPECT_TRUE(kv.insert(block).second) << "two have a block";
    for (const int32_t block : part.x_blocks) EXPECT_TRUE(x.insert(block).second) << "two have a block";
    LaneShape shape{.length = key.length,
                    .x_stored = key.x_stored,
                    .l_min = part.l_min,
                    .piece_tokens = PieceTokens(key.length),
                    .x_resident = part.x_resident,
                    .resident_from = part.resident_from};
    if (shape.WindowBegin() > key.first_new()) shape.resident_from = key.length;  // as KvprLoop has it
    ASSERT_TRUE(CheckLaneShapes({&shape, 1}, kSplitTile).ok()) << CheckLaneShapes({&shape, 1}, kSplitTile);
    const auto kv_block = [&](int64_t at) { return part.kv_blocks.at(at / kKvBlockTokens - part.first_kv); };
    for (int64_t at = shape.WindowBegin(); at < key.first_new(); ++at) {
      ASSERT_TRUE(kv_.Holds(kv_block(at), at, key.sequence)) << "position " << at << " of " << key.length;
    }
    for (int64_t at = 0; at < part.x_resident; ++at) {
      ASSERT_TRUE(x_.Holds(part.x_blocks.at(at / kKvBlockTokens), at, key.sequence)) << "X of position " << at;
    }
    if (!part.kv_blocks.empty()) {
      const int64_t kept_end = shape.WindowBegin() < key.length ? shape.resident_from : key.length;
      for (int64_t at = part.first_kv * kKvBlockTokens; at < kept_end; ++at) kv_.Write(kv_block(at), at, key.sequence);
      const int64_t new_begin = std::max(key.first_new(), part.first_kv * kKvBlockTokens);
      for (int64_t at = new_begin; at < key.length; ++at) kv_.Write(kv_block(at), at, key.sequence);
      resident_ += key.length - shape.WindowBegin();
    }
    ASSERT_GE(part.l_min, key.kv_from);
    // Some l at least l_min.
    const int64_t l = std::max(part.l_min, static_cast<int64_t>(random_() % (key.x_stored + 1)));
    const auto x_held = static_cast<int64_t>(part.x_blocks.size()) * kKvBlockTokens;
    for (int64_t at = part.x_resident; at < std::min(l, x_held); ++at) {
      x_.Write(part.x_blocks[at / kKvBlockTokens], at, key.sequence);
    }
    x_resident_ += part.x_resident;
    residency_->Commit(key, part, l);
  }

  testing::FakeDevice device_;
  std::optional<ResidentMemory> memory_;
  std::optional<Residency> residency_;
  SimulatedMemory kv_, x_;
  std::mt19937 random_{7};
  int64_t resident_ = 0, x_resident_ = 0;  // positions, over all steps
};

TEST_F(ResidencyTest, AllStaysWhereAllFits) {
  Make(100 * kHeldKvBlock);
  Running one{1000}, two{300};
  Step({&one, &two});
  for (int i = 0; i < 600; ++i) {
    ++one.length, ++two.length;
    resident_ = 0;
    Step({&one, &two});
    EXPECT_EQ(resident_, one.length + two.length);
  }
}

TEST_F(ResidencyTest, NothingStaysWithoutMemory) {
  Make(0);
  Running one{1000};
  Step({&one});
  EXPECT_EQ(resident_, 0);
}

TEST_F(ResidencyTest, WhatHasNoKvIsRecomputedHoweverMuchStays) {
  for (const int64_t blocks : {0, 1, 6, 100}) {
    Make(blocks * kHeldKvBlock);
    Running one{2000, true, 640};
    for (int i = 0; i < 5; ++i, ++one.length) Step({&one});  // looks at l_min
    residency_.reset();
  }
}

TEST_F(ResidencyTest, XOfTheBeginningStaysWhereThatGainsMore) {
  Make(6 * kHeldKvBlock);
  Running one{2000, true};
  for (int i = 0; i < 5; ++i, ++one.length) Step({&one});
  EXPECT_GT(x_resident_, 0);
}

// Sequences come, grow over borders of blocks and pieces, stand still, fail and leave, in too little memory.
TEST_F(ResidencyTest, WhatIsSaidToBeResidentAlwaysIs) {
  for (const int64_t blocks : {1, 2, 5, 11, 30}) {
    Make(blocks * kHeldKvBlock + kHeldKvBlock / 2);
    std::vector<std::unique_ptr<Running>> all;
    for (int step = 0; step < 1500; ++step) {
      if (random_() % 40 == 0 && all.size() < 6) {
        const int64_t length = 1 + static_cast<int64_t>(random_() % (random_() % 10 == 0 ? 17'000 : 1500));
        all.push_back(std::make_unique<Running>(Running{length, random_() % 2 == 0}));
        if (all.back()->with_x) all.back()->kv_from = static_cast<int64_t>(random_() % length);
      }
      if (random_() % 60 == 0 && !all.empty()) {
        residency_->Leave(all.back().get());
        all.pop_back();
      }
      std::vector<Running*> running;
      for (const auto& one : all) {
        if (random_() % 10 > 0) running.push_back(one.get());
      }
      if (random_() % 50 == 0) {
        for (Running* one : running) residency_->Distrust(one);
      }
      if (!running.empty()) Step(running);
      if (HasFatalFailure()) return;
      for (Running* one : running) {
        if (random_() % 20 == 0) continue;  // the step is run again
        one->rows = random_() % 3 > 0 ? 1 : 1 + static_cast<int64_t>(random_() % 20);
        one->length += one->rows;
      }
    }
    EXPECT_GT(resident_, 0);
    for (const auto& one : all) residency_->Leave(one.get());
    EXPECT_EQ(memory_->used_bytes(), 0);
  }
}

}  // namespace
}  // namespace runahead
