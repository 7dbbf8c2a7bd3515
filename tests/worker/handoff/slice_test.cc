#include "worker/handoff/slice.h"

#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead {
namespace {

using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

// Workers of two builds must agree on it, so it never changes: values of the XXH3 specification's own implementation
// with seed 0.
TEST(SumPieces, IsXxh3) {
  const auto sum = [](std::string_view bytes) {
    const BufferRef ref = Room(bytes.size());
    std::memcpy(ref.data(), bytes.data(), bytes.size());
    return SumPieces(/*seed=*/0, {ref});
  };
  EXPECT_EQ(sum(""), 0x2d06800538d394c2u);
  EXPECT_EQ(sum("abc"), 0x78af5f94892f3950u);
  std::string thousand;
  for (int i = 0; i < 1000; ++i) thousand.push_back(static_cast<char>(i % 256));
  EXPECT_EQ(sum(thousand), 0xd33dd80b46f60e50u);
}

TEST(SeedOf, IsAnotherForEachBitOfWhatTheBytesAre) {
  const Slice slice{{0x1234567890abcdef, 42, 3}, 5, 1024, 2048, SliceKind::kKv, RowForm::kF16};
  std::set<uint64_t> sums = {SeedOf(slice), 0};
  size_t different = 2;
  const auto add = [&](const auto& flip, int bits) {
    for (int bit = 0; bit < bits; ++bit) {
      Slice other = slice;
      flip(other, bit);
      sums.insert(SeedOf(other));
      ++different;
    }
  };
  add([](Slice& s, int bit) { s.lease.incarnation ^= uint64_t{1} << bit; }, 64);
  add([](Slice& s, int bit) { s.lease.number ^= uint64_t{1} << bit; }, 64);
  add([](Slice& s, int bit) { s.lease.epoch ^= uint32_t{1} << bit; }, 32);
  add([](Slice& s, int bit) { s.layer = static_cast<int32_t>(static_cast<uint32_t>(s.layer) ^ uint32_t{1} << bit); },
      32);
  add([](Slice& s, int bit) { s.begin = static_cast<int64_t>(static_cast<uint64_t>(s.begin) ^ uint64_t{1} << bit); },
      64);
  add([](Slice& s, int bit) { s.end = static_cast<int64_t>(static_cast<uint64_t>(s.end) ^ uint64_t{1} << bit); }, 64);
  add([](Slice& s, int) { s.kind = SliceKind::kX; }, 1);
  add([](Slice& s, int) { s.form = RowForm::kBF16; }, 1);
  EXPECT_EQ(sums.size(), different);
}

TEST(SumPieces, IsThatOfTheBytesWhateverTheCut) {
  const BufferRef all = Pattern(1000, 3);
  const uint64_t whole = SumPieces(/*seed=*/7, {all});
  EXPECT_EQ(whole, SumPieces(/*seed=*/7, {all.Slice(0, 1), all.Slice(1, 0), all.Slice(1, 999)}));
  EXPECT_NE(whole, SumPieces(/*seed=*/7, {all.Slice(0, 999)}));
}

}  // namespace
}  // namespace runahead
