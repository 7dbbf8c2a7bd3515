// The K types and the IQ4 types, element by element, as the gguf package reads them: in the scalar conversion, and in
// both layouts of the CPU's weights.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/cpu/int8/int8_weights.h"
#include "kernels/cpu/stored_weights.h"
#include "tests/golden/golden_files.h"
#include "worker/format/dequantize.h"

namespace runahead {
namespace {

std::map<std::string, GoldenBlocks> ByType() {
  std::map<std::string, GoldenBlocks> blocks;
  for (GoldenBlocks& of_type : ReadGoldenSuperblocks()) blocks[of_type.type] = std::move(of_type);
  return blocks;
}

WeightType TypeOf(const std::string& name) {
  for (const WeightBlock& block : kWeightBlocks) {
    if (block.name == name) return block.type;
  }
  ADD_FAILURE() << name;
  return WeightType::kF32;
}

TEST(SuperblocksGolden, EveryTypeOfThemIsThere) {
  const auto golden = ByType();
  for (const WeightBlock& block : kWeightBlocks) {
    EXPECT_EQ(golden.count(block.name) == 1, IsSuperblock(block.type) || block.type == WeightType::kIQ4_NL)
        << block.name;
  }
}

TEST(SuperblocksGolden, TheScalarConversion) {
  for (const auto& [name, blocks] : ByType()) {
    std::vector<float> values(blocks.values.size());
    DequantizeRow(TypeOf(name), blocks.bytes.data(), static_cast<int64_t>(values.size()), values.data());
    EXPECT_EQ(values, blocks.values) << name;
  }
}

TEST(SuperblocksGolden, RowsOfTheCpusWeights) {
  ThreadPool pool(1);
  Arena arena(HostChunks(nullptr));
  for (const auto& [name, blocks] : ByType()) {
    const auto cols = static_cast<int64_t>(blocks.values.size());
    const WeightSource source{nullptr, cols, {{TypeOf(name), blocks.bytes.data(), 1}}};
    std::vector<float> values(blocks.values.size());
    Int8Weights::Make(source, arena, pool)->DequantizeRow(0, values.data());
    EXPECT_EQ(values, blocks.values) << name;
    std::fill(values.begin(), values.end(), 0.0f);
    StoredWeights::Make(source, arena, pool)->DequantizeRow(KernelsFor(false), 0, values.data());
    EXPECT_EQ(values, blocks.values) << name;
  }
}

}  // namespace
}  // namespace runahead
