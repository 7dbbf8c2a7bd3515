#include <cstring>

#include "kernels/cpu/attention_kernels.h"
#include "tests/kernels/cpu/attention_case.h"

namespace runahead {
namespace {

constexpr float kHidden = -std::numeric_limits<float>::infinity();
constexpr AttentionShape kShape{.heads = 2, .kv_heads = 1, .head_dim = 8};
constexpr int64_t kCols = 2 * 9;

class AttentionMergeTest : public testing::Test {
 protected:
  ThreadPool pool_{3};

  // A table of sequences of so many pieces.
  static std::shared_ptr<const CpuKvTable> Table(const std::vector<int64_t>& pieces) {
    KvLayout layout{.page_tokens = 1 << 20, .pages = {0}, .sequences = {}};
    for (const int64_t count : pieces)
      layout.sequences.push_back({1, count * kDecodeSplit, 0, 0, count * kDecodeSplit});
    return *CpuKvTable::Make(layout);
  }
  // A piece whose heads both have this mean and weight.
  static std::vector<float> Piece(float mean, float log) {
    std::vector<float> piece(kCols, mean);
    piece[16] = piece[17] = log;
    return piece;
  }
  Tensor Merge(const CpuKvTable& table, const std::vector<std::vector<float>>& pieces, DType dtype = DType::kF32) {
    std::vector<float> values;
    for (const std::vector<float>& piece : pieces) values.insert(values.end(), piece.begin(), piece.end());
    const auto count = static_cast<int64_t>(pieces.size());
    const Tensor partials = MakeTensor(BytesOf(Encode(values, DType::kF32)), DType::kF32, count, kCols);
    const std::vector<float> poison(table.rows() * 16, AttentionCase::kNan);
    const Tensor out = MakeTensor(BytesOf(Encode(poison, dtype)), dtype, table.rows(), 16);
    MergeCpuPieces(pool_, partials, kShape, table, out);
    return out;
  }
};

TEST_F(AttentionMergeTest, PiecesCountByTheirWeights) {
  const Tensor out = Merge(*Table({3, 1}), {Piece(1, 10), Piece(5, 11), Piece(-3, 10), Piece(7, -200)});
  EXPECT_FLOAT_EQ(out.row<float>(0)[0], (1 + 2 * 5 - 3) / 4.0f);
  EXPECT_FLOAT_EQ(out.row<float>(0)[15], 2.0f);
  EXPECT_FLOAT_EQ(out.row<float>(1)[0], 7.0f) << "alone, it is all there is";
}

TEST_F(AttentionMergeTest, AHiddenPieceMayHoldAnything) {
  const Tensor out = Merge(*Table({2}), {Piece(AttentionCase::kNan, kHidden), Piece(5, 3)});
  EXPECT_EQ(out.row<float>(0)[0], 5.0f);
}

TEST_F(AttentionMergeTest, WithoutAnyWeightARowIsZero) {
  const Tensor out = Merge(*Table({2}), {Piece(0, kHidden), Piece(0, kHidden)});
  for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(out.row<float>(0)[d], 0.0f);
}

TEST_F(AttentionMergeTest, ANanIsNotLost) {
  for (const bool first : {false, true}) {
    const std::vector<float> bad = Piece(AttentionCase::kNan, AttentionCase::kNan), good = Piece(1, 1);
    const Tensor out = Merge(*Table({2}), {first ? bad : good, first ? good : bad});
    EXPECT_TRUE(std::isnan(out.row<float>(0)[3])) << first;
  }
}

TEST_F(AttentionMergeTest, RoundsToTheTypeOfOut) {
  const Tensor out = Merge(*Table({2}), {Piece(1, 0), Piece(1.01f, 0)}, DType::kBF16);
  EXPECT_EQ(ToFloat(out.row<BFloat16>(0)[0]), ToFloat(ToBFloat16(1.005f)));
}

}  // namespace
}  // namespace runahead
