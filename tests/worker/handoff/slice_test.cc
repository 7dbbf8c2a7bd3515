#include "worker/handoff/slice.h"

#include <cstring>
#include <string>
#include <string_view>

#include "gtest/gtest.h"
#include "tests/worker/link/host_buffer.h"

namespace runahead {
namespace {

using ::runahead::testing::Pattern;
using ::runahead::testing::Room;

// Workers of two builds must agree on it, so it never changes: values of the xxHash64 specification with seed 0, the
// last one computed from it by hand.
TEST(HashPieces, IsXxHash64) {
  const auto hash = [](std::string_view bytes) {
    const BufferRef ref = Room(bytes.size());
    std::memcpy(ref.data(), bytes.data(), bytes.size());
    return HashPieces({ref});
  };
  EXPECT_EQ(hash(""), 0xef46db3751d8e999u);
  EXPECT_EQ(hash("abc"), 0x44bc2cf5ad770999u);
  std::string thousand;
  for (int i = 0; i < 1000; ++i) thousand.push_back(static_cast<char>(i % 256));
  EXPECT_EQ(hash(thousand), 0x6ef436b00eba4078u);
}

TEST(HashPieces, IsThatOfTheBytesWhateverTheCut) {
  const BufferRef all = Pattern(1000, 3);
  const uint64_t whole = HashPieces({all});
  EXPECT_EQ(whole, HashPieces({all.Slice(0, 1), all.Slice(1, 0), all.Slice(1, 999)}));
  EXPECT_NE(whole, HashPieces({all.Slice(0, 999)}));
}

}  // namespace
}  // namespace runahead
