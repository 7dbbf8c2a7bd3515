#include "worker/link/link_noise.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::Each;

std::vector<double> Draws(const LinkNoise& noise, uint64_t link, int count) {
  FrameNoise frames(noise, link);
  std::vector<double> factors;
  for (int i = 0; i < count; ++i) factors.push_back(frames.Next());
  return factors;
}

TEST(LinkNoise, SlowsFramesDownAsOftenAndAsMuchAsAskedFor) {
  constexpr int kFrames = 10000;
  int hit = 0;
  double sum = 0;
  for (const double factor : Draws({.probability = 0.25, .max_factor = 5, .seed = 1}, 0, kFrames)) {
    EXPECT_GE(factor, 1);
    EXPECT_LE(factor, 5);
    hit += factor > 1;
    sum += factor;
  }
  EXPECT_NEAR(hit, kFrames / 4, 4 * 44);  // four standard deviations
  EXPECT_NEAR(sum / kFrames, 1 + 0.25 * 2, 0.04);
  EXPECT_THAT(Draws({}, 0, 10), Each(1));
  EXPECT_THAT(Draws({.probability = 1, .max_factor = 1, .seed = 1}, 0, 10), Each(1));
}

TEST(LinkNoise, SeedAndLinkDecide) {
  const LinkNoise noise{.probability = 0.5, .max_factor = 5, .seed = 1};
  EXPECT_EQ(Draws(noise, 0, 20), Draws(noise, 0, 20));
  EXPECT_NE(Draws(noise, 0, 20), Draws(noise, 1, 20));
  EXPECT_NE(Draws(noise, 0, 20), Draws({.probability = 0.5, .max_factor = 5, .seed = 2}, 0, 20));
  EXPECT_NE(Draws(noise, 0, 20), Draws({.probability = 0.5, .max_factor = 5, .seed = uint64_t{1} << 40}, 0, 20));
}

}  // namespace
}  // namespace runahead
