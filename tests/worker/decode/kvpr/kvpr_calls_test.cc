// What a step of KVPR asks of a GPU: calls, which each take some microseconds of a thread, and launches, which each
// take some of the GPU. Counted at the shape of the paper's model, on a GPU that computes nothing.
#include <gtest/gtest.h>

#include "tests/testing/simulated_kvpr.h"

namespace runahead {
namespace {

constexpr int64_t kCountedLayers = 8;
// Resident KV and X take this share of 8 GiB: the counted layers' of the model's.
constexpr int64_t kResidentBytes = (int64_t{8} << 30) * kCountedLayers / testing::kOpt67BLayers;
// What a launch and a call took on GPUs that were measured.
constexpr double kCallSeconds = 5e-6;

testing::SimulatedKvpr::Measured CountedStep(int64_t length, int64_t resident_bytes, double call_s) {
  testing::SimulatedKvpr kvpr(testing::Opt67B(kCountedLayers), 64, length, resident_bytes,
                              {.call_s = call_s, .launch_s = call_s});
  return kvpr.Run();
}

TEST(KvprCallsTest, ALayerOfSixtyFourSequencesTakesAHundredCallsAndNoneOfTheHost) {
  for (const int64_t resident : {int64_t{0}, kResidentBytes}) {
    SCOPED_TRACE(resident);
    const testing::SimulatedKvpr::Measured step = CountedStep(1024, resident, 0);
    EXPECT_GT(step.plan.rows.recomputed, 0);
    EXPECT_GT(step.plan.rows.streamed, 0);
    EXPECT_LE(step.counts.calls, 100 * kCountedLayers);
    EXPECT_EQ(step.counts.host_calls, 0);
    EXPECT_LE(step.counts.products, 10 * kCountedLayers) << "four of the layer itself, one for each chunk";
  }
}

// The step that docs/kvpr.md promises of an H100 counts bytes and operations alone.
TEST(KvprCallsTest, AStepWithItsCallsAndLaunchesIsWithinATenthOfThePromisedOne) {
  const testing::SimulatedKvpr::Measured step = CountedStep(1024, kResidentBytes, kCallSeconds);
  EXPECT_LE(step.step_s, 1.1 * step.promised_s);
  EXPECT_GE(step.step_s, 0.95 * step.promised_s) << "else the simulation leaves something out";
}

}  // namespace
}  // namespace runahead
