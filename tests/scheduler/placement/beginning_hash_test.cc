#include "scheduler/placement/beginning_hash.h"

#include <vector>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(BeginningHash, IsChainedOverPartsHoweverTheyAreCut) {
  const std::vector<int32_t> ids = {5, 6, 7, -1, 151000};
  const absl::Span<const int32_t> all = ids;
  const uint64_t whole = BeginningHash(BeginningHash("alice"), all);
  for (size_t cut = 0; cut <= ids.size(); ++cut) {
    EXPECT_EQ(BeginningHash(BeginningHash(BeginningHash("alice"), all.first(cut)), all.subspan(cut)), whole);
  }
}

TEST(BeginningHash, DiffersByIdsOrderLengthAndSalt) {
  const auto of = [](absl::string_view salt, const std::vector<int32_t>& ids) {
    return BeginningHash(BeginningHash(salt), ids);
  };
  const uint64_t hash = of("", {1, 2, 3});
  EXPECT_NE(hash, of("", {1, 3, 2}));
  EXPECT_NE(hash, of("", {1, 2, 3, 0}));
  EXPECT_NE(of("", {}), of("", {0}));
  EXPECT_NE(hash, of("a", {1, 2, 3}));
  EXPECT_NE(of("ab", {}), of("ba", {}));
}

// A router and a worker of other builds say the same.
TEST(BeginningHash, IsTheSameEverywhere) {
  EXPECT_EQ(BeginningHash(""), 0u);
  EXPECT_EQ(MixBits(0x9e3779b97f4a7c15), 0xe220a8397b1dcdaf) << "splitmix64's first number from 0";
  EXPECT_EQ(BeginningHash(BeginningHash("a"), {1, -1}), 0x7341ccfc6e8d329b) << "computed by another program";
}

}  // namespace
}  // namespace runahead
