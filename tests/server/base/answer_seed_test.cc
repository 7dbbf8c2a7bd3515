#include "server/base/answer_seed.h"

#include <set>

#include "gtest/gtest.h"

namespace runahead {
namespace {

TEST(SeedOfAnswer, TheFirstAnswerHasTheRequestsOwn) {
  EXPECT_EQ(SeedOfAnswer(0, 0), 0u);
  EXPECT_EQ(SeedOfAnswer(~uint64_t{0}, 0), ~uint64_t{0});
}

// Steele, Lea and Flood's splitmix64 from the state 0 and 1234567, as its authors' own code gives it.
TEST(SeedOfAnswer, TheOthersHaveSplitmix64sOutput) {
  EXPECT_EQ(SeedOfAnswer(0, 1), 16294208416658607535u);
  EXPECT_EQ(SeedOfAnswer(0, 2), 7960286522194355700u);
  EXPECT_EQ(SeedOfAnswer(1234567, 1), 6457827717110365317u);
  EXPECT_EQ(SeedOfAnswer(1234567, 2), 3203168211198807973u);
}

TEST(SeedOfAnswer, NoTwoAnswersAreDrawnAlike) {
  std::set<uint64_t> seeds;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    for (int32_t answer = 0; answer < 64; ++answer) seeds.insert(SeedOfAnswer(seed, answer));
  }
  EXPECT_EQ(seeds.size(), 64u * 64u);
}

}  // namespace
}  // namespace runahead
