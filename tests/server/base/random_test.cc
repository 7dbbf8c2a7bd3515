#include "server/base/random.h"

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(RandomBits64, DrawsDiffer) {
  // Two equal draws among three would be one chance in 2^62.
  const uint64_t a = RandomBits64(), b = RandomBits64(), c = RandomBits64();
  EXPECT_NE(a, 0u);
  EXPECT_NE(a, b);
  EXPECT_NE(b, c);
}

}  // namespace
}  // namespace runahead
