#include "client/profile/line_probe.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using Parts = std::vector<int64_t>;

TEST(LineProbe, LengthsDoubleUpToTheLongest) {
  EXPECT_THAT(ProbeLengths(8191, 2), ElementsAre(64, 128, 256, 512, 1024, 2048, 4096, 8191));
  EXPECT_THAT(ProbeLengths(4200, 2), ElementsAre(64, 128, 256, 512, 1024, 2048, 4096));
  EXPECT_THAT(ProbeLengths(99, 1), ElementsAre(6, 12, 24, 48, 96));
  EXPECT_THAT(ProbeLengths(8, 4), ElementsAre(8));
  EXPECT_EQ(ProbeLengths(8191, 16).front(), 64);
  EXPECT_EQ(ProbeLengths(500, 16).front(), 32) << "each worker has a token in every probe";
}

std::vector<Parts> PartsOf(const std::vector<Probe>& probes, Probe::Kind kind) {
  std::vector<Parts> parts;
  for (const Probe& probe : probes) {
    EXPECT_EQ(std::accumulate(probe.parts.begin(), probe.parts.end(), int64_t{0}), probe.tokens);
    if (probe.kind == kind) parts.push_back(probe.parts);
  }
  return parts;
}

TEST(LineProbe, EveryWorkerEveryLinkAndChainsOfEvenParts) {
  const std::vector<Probe> probes = ProbesOf({100, 200, 400}, 3);
  EXPECT_THAT(PartsOf(probes, Probe::Kind::kSingle), ElementsAre(Parts{100}, Parts{200}, Parts{400}));
  EXPECT_THAT(PartsOf(probes, Probe::Kind::kTail), ElementsAre(Parts{1, 399}, Parts{1, 1, 398}));
  EXPECT_THAT(PartsOf(probes, Probe::Kind::kLink),
              ElementsAre(Parts{99, 1}, Parts{399, 1}, Parts{1, 98, 1}, Parts{1, 398, 1}));
  EXPECT_THAT(PartsOf(probes, Probe::Kind::kChain),
              ElementsAre(Parts{100, 100}, Parts{200, 200}, Parts{67, 67, 66}, Parts{134, 133, 133}));
  std::vector<int> tails, links;
  for (const Probe& probe : probes) {
    if (probe.kind == Probe::Kind::kTail) tails.push_back(probe.number);
    if (probe.kind == Probe::Kind::kLink) links.push_back(probe.number);
  }
  EXPECT_THAT(tails, ElementsAre(1, 2));
  EXPECT_THAT(links, ElementsAre(0, 0, 1, 1));
}

TEST(LineProbe, OneWorkerHasNeitherLinksNorChains) {
  const std::vector<Probe> probes = ProbesOf({100, 200}, 1);
  EXPECT_THAT(PartsOf(probes, Probe::Kind::kSingle), ElementsAre(Parts{100}, Parts{200}));
  EXPECT_EQ(probes.size(), 2u);
}

TEST(LineProbe, WidthsOfChainsDouble) {
  std::vector<size_t> widths;
  for (const Parts& parts : PartsOf(ProbesOf({64}, 11), Probe::Kind::kChain)) widths.push_back(parts.size());
  EXPECT_THAT(widths, ElementsAre(2, 4, 8, 11));
}

}  // namespace
}  // namespace runahead
