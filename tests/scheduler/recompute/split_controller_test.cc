// The controller against simulated steps: what it measures comes from costs that it does not know.
#include "scheduler/recompute/split_controller.h"

#include <cmath>
#include <functional>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace runahead {
namespace {

// MHA of 4,096, 16 bits; rho about 0.9.
LaneCosts TrueCosts() {
  LaneCosts costs;
  costs.link_bytes_per_s = 25e9;
  costs.kv_bytes = 16384;
  costs.x_bytes = 8192;
  costs.recompute_s = 0.6e-6;
  costs.project_s = 200e-6;
  costs.attend_s = 0.01e-6;
  costs.signal_s = 50e-6;
  costs.host_attend_s = 0.8e-6;
  return costs;
}

std::vector<LaneShape> Batch(int64_t length) {
  return std::vector<LaneShape>(16, {.length = length, .x_stored = length, .resident_from = length - 600});
}

// Steps as they would run: by `costs`, each time off by up to `noise`, and a layer's time by `layer`.
struct World {
  LaneCosts costs = TrueCosts();
  double noise = 0;
  std::function<double(const LaneTimes&, const LaneRows&)> layer = [](const LaneTimes& times, const LaneRows&) {
    return times.layer_s;
  };
  std::mt19937 random{11};

  LaneMeasurement Run(const LaneRows& rows) {
    LaneCosts now = costs;
    const auto off = [&] { return 1 + noise * std::uniform_real_distribution<double>(-1, 1)(random); };
    now.link_bytes_per_s *= off();
    now.recompute_s *= off();
    now.project_s *= off();
    now.attend_s *= off();
    now.signal_s *= off();
    now.host_attend_s *= off();
    const LaneTimes times = TimesOfLanes(SplitObjective::kStep, now, rows);
    const auto on_device = static_cast<double>(rows.recomputed + rows.streamed + rows.resident);
    return {.link_s = times.link_s,
            .recompute_s = now.recompute_s * static_cast<double>(rows.computed),
            .project_s = now.project_s,
            .attend_s = now.attend_s * on_device,
            .signal_s = rows.host > 0 ? now.signal_s : 0,
            .host_attend_s = now.host_attend_s * static_cast<double>(rows.host),
            .layer_s = layer(times, rows) * off()};
  }
};

SplitController ControllerOf(const LaneCosts& profile) {
  return *SplitController::Create(SplitObjective::kStep, profile);
}

void RunStep(SplitController& controller, World& world) {
  const LanePlan plan = *controller.Plan(Batch(4000));
  controller.Observe(plan, world.Run(plan.rows));
}

double BestLayer(const LaneCosts& costs, const std::vector<LaneShape>& shapes) {
  return SolveLanes(SplitObjective::kStep, costs, shapes)->times.layer_s;
}

double LayerOf(const LaneCosts& costs, const LaneRows& rows) {
  return TimesOfLanes(SplitObjective::kStep, costs, rows).layer_s;
}

TEST(SmoothedTime, ForgetsTheOldValueInTenSteps) {
  SmoothedTime time(1);
  for (int i = 0; i < 20; ++i) time.Add(1);
  for (int i = 0; i < 10; ++i) time.Add(2);
  EXPECT_NEAR(time.value(), 2, 0.02);
}

TEST(SmoothedTime, OneOutlierChangesNothing) {
  SmoothedTime time(1);
  for (int i = 0; i < 5; ++i) time.Add(1);
  for (const double measured : {1000.0, 1.0, 1.0}) {
    time.Add(measured);
    EXPECT_DOUBLE_EQ(time.value(), 1);
  }
}

TEST(SmoothedTime, IgnoresWhatIsNoTime) {
  SmoothedTime time(1);
  for (const double bad : {0.0, -1.0, double{INFINITY}, double{NAN}}) time.Add(bad);
  EXPECT_EQ(time.value(), 1);
}

TEST(SplitController, KeepsTheSolversPlanWhileTheProfileIsRight) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  for (int i = 0; i < 50; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000 + i));
    EXPECT_EQ(plan.cuts, SolveLanes(SplitObjective::kStep, world.costs, Batch(4000 + i))->cuts);
    controller.Observe(plan, world.Run(plan.rows));
    EXPECT_FALSE(controller.resting());
  }
}

// Every cost in turn halves or doubles in mid-run.
TEST(SplitController, SettlesWithinTenStepsOfAChangeAtMostTenPercentAboveTheNewBest) {
  double LaneCosts::*const fields[] = {&LaneCosts::link_bytes_per_s, &LaneCosts::recompute_s, &LaneCosts::host_attend_s,
                                       &LaneCosts::project_s,        &LaneCosts::attend_s,    &LaneCosts::signal_s};
  for (const auto field : fields) {
    for (const double factor : {0.5, 2.0}) {
      for (const int64_t length : {1000, 4000, 9000}) {
        World world;
        SplitController controller = ControllerOf(world.costs);
        LaneRows settled;
        for (int i = 0; i < 200; ++i) {
          if (i == 40) world.costs.*field *= factor;
          const LanePlan plan = *controller.Plan(Batch(length));
          if (i == 40 + 10) settled = plan.rows;
          if (i >= 40 + 10) {
            EXPECT_EQ(plan.rows, settled) << "step " << i << ", factor " << factor;
            EXPECT_LE(LayerOf(world.costs, plan.rows), 1.1 * BestLayer(world.costs, Batch(length)));
          }
          controller.Observe(plan, world.Run(plan.rows));
          EXPECT_FALSE(controller.resting());
        }
      }
    }
  }
}

// As decode does it, so that copies of the next step begin before this one ends.
TEST(SplitController, SettlesWhereTheNextStepIsPlannedBeforeThisOneIsObserved) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  LanePlan running = *controller.Plan(Batch(4000));
  for (int i = 0; i < 100; ++i) {
    if (i == 40) world.costs.link_bytes_per_s /= 2;
    const LanePlan next = *controller.Plan(Batch(4000));
    controller.Observe(running, world.Run(running.rows));
    EXPECT_FALSE(controller.resting());
    running = next;
    if (i < 40 + 11) continue;
    EXPECT_LE(LayerOf(world.costs, running.rows), 1.1 * BestLayer(world.costs, Batch(4000)));
  }
}

// Without a host lane the smallest split must be looked at, to tell a slower link from copies that are disturbed.
TEST(SplitController, ASlowerLinkIsNoReasonToRest) {
  for (const double recompute_s : {0.3e-6, 0.6e-6, 1.2e-6}) {
    World world;
    world.costs.host_attend_s = INFINITY;
    world.costs.recompute_s = recompute_s;
    SplitController controller = ControllerOf(world.costs);
    for (int i = 0; i < 100; ++i) {
      if (i == 40) world.costs.link_bytes_per_s /= 2;
      const LanePlan plan = *controller.Plan(Batch(4000));
      if (i >= 40 + 10) {
        EXPECT_LE(LayerOf(world.costs, plan.rows), 1.1 * BestLayer(world.costs, Batch(4000))) << i;
      }
      controller.Observe(plan, world.Run(plan.rows));
    }
  }
}

TEST(SplitController, HalvedBandwidthMovesTheSplit) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  const LanePlan before = *controller.Plan(Batch(4000));
  world.costs.link_bytes_per_s /= 2;
  LanePlan after;
  for (int i = 0; i < 12; ++i) {
    after = *controller.Plan(Batch(4000));
    controller.Observe(after, world.Run(after.rows));
  }
  EXPECT_NEAR(controller.costs().link_bytes_per_s, world.costs.link_bytes_per_s, 0.02 * world.costs.link_bytes_per_s);
  EXPECT_LT(after.rows.streamed + after.rows.x_streamed, before.rows.streamed + before.rows.x_streamed);
  EXPECT_LT(LayerOf(world.costs, after.rows), 0.95 * LayerOf(world.costs, before.rows));
}

// How often the split changes in 2,000 steps of one shape, and how far the worst is from the best.
int Changes(double noise, int seed, const ControllerOptions& options, double* worst) {
  World world{.noise = noise};
  world.random.seed(seed);
  SplitController controller = *SplitController::Create(SplitObjective::kStep, world.costs, kSplitTile, options);
  int changes = 0;
  LaneRows last = controller.Plan(Batch(4000))->rows;
  for (int i = 0; i < 2000; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000));
    changes += plan.rows == last ? 0 : 1;
    last = plan.rows;
    controller.Observe(plan, world.Run(plan.rows));
    *worst = std::max(*worst, LayerOf(world.costs, plan.rows) / BestLayer(world.costs, Batch(4000)));
  }
  return changes;
}

TEST(SplitController, DoesNotOscillateUnderNoise) {
  for (int seed = 1; seed <= 5; ++seed) {
    double worst = 0, any = 0;
    EXPECT_LE(Changes(0.1, seed, {}, &worst), 2);
    EXPECT_LE(worst, 1.1);
    EXPECT_LE(Changes(0.2, seed, {}, &worst), 40) << "one in 50 steps, when every time is off by up to a fifth";
    EXPECT_LE(worst, 1.2);
    // What keeps it still is the gain that it asks for.
    EXPECT_GT(Changes(0.2, seed, {.gain = 0, .patience = 1}, &any), 500);
  }
}

TEST(SplitController, OutliersMoveNothing) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  const LaneRows first = controller.Plan(Batch(4000))->rows;
  for (int i = 0; i < 300; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000));
    EXPECT_EQ(plan.rows, first);
    LaneMeasurement measured = world.Run(plan.rows);
    if (i % 10 == 0) measured.link_s *= 50, measured.layer_s *= 50;
    if (i % 10 == 5) measured = {.link_s = NAN, .recompute_s = -1, .layer_s = INFINITY};
    controller.Observe(plan, measured);
  }
}

// Lanes that do not overlap: a layer takes the sum of what link and device take.
double Serial(const LaneTimes& times, const LaneRows&) {
  return times.link_s + times.device_s;
}

int StepsWorse(World* world, int steps) {
  SplitController controller = ControllerOf(world->costs);
  int worse = 0, running = 0, longest = 0;
  const double smallest = world->layer(SmallestSplit(SplitObjective::kStep, world->costs, Batch(4000))->times, {});
  for (int i = 0; i < steps; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000));
    const bool is_worse = world->layer(plan.times, plan.rows) > 1.001 * smallest;
    running = is_worse ? running + 1 : 0;
    longest = std::max(longest, running);
    worse += is_worse;
    controller.Observe(plan, world->Run(plan.rows));
  }
  EXPECT_LE(longest, 8);
  return worse;
}

TEST(SplitController, GoesBackToTheSmallestSplitWhereTheModelIsWrong) {
  World serial;
  serial.costs.recompute_s = 1.2e-6;  // recomputation that pays only where it overlaps
  serial.costs.host_attend_s = INFINITY;
  serial.layer = Serial;
  EXPECT_LE(StepsWorse(&serial, 1000), 50);

  World contended;  // whatever is not streamed as KV makes all copies three times slower, unseen in link_s
  contended.layer = [](const LaneTimes& times, const LaneRows& rows) {
    return times.layer_s * (rows.recomputed + rows.host > 0 ? 3 : 1);
  };
  EXPECT_LE(StepsWorse(&contended, 1000), 50);
}

// What recomputation, or the host lane, does to the link is seen in the copies' own times, too.
TEST(SplitController, GoesBackToTheSmallestSplitWhereRecomputationSlowsTheLink) {
  for (const double recompute_s : {0.6e-6, 1.2e-6, 2.4e-6}) {
    for (const double slower : {1.2, 1.5, 2.0, 3.0}) {
      SCOPED_TRACE(testing::Message() << recompute_s << ", " << slower);
      LaneCosts costs = TrueCosts();
      costs.recompute_s = recompute_s;
      costs.host_attend_s = INFINITY;
      World world{.costs = costs};
      SplitController controller = ControllerOf(costs);
      int worse = 0, running = 0, longest = 0;
      const double smallest = SmallestSplit(SplitObjective::kStep, costs, Batch(4000))->times.layer_s;
      for (int i = 0; i < 1000; ++i) {
        const LanePlan plan = *controller.Plan(Batch(4000));
        world.costs.link_bytes_per_s = costs.link_bytes_per_s / (plan.rows.recomputed > 0 ? slower : 1);
        const bool is_worse = LayerOf(world.costs, plan.rows) > 1.001 * smallest;
        running = is_worse ? running + 1 : 0;
        longest = std::max(longest, running);
        worse += is_worse;
        controller.Observe(plan, world.Run(plan.rows));
      }
      EXPECT_LE(longest, 10);
      EXPECT_LE(worse, 100);
    }
  }
}

TEST(SplitController, HardlyRestsWhereEverythingTakesLongerThanPredicted) {
  World world;
  world.costs.host_attend_s = INFINITY;
  world.costs.recompute_s = 1.2e-6;  // what the solver gains is less than what is not foreseen
  world.layer = [](const LaneTimes& times, const LaneRows&) { return 2 * times.layer_s; };
  SplitController controller = ControllerOf(world.costs);
  int rested = 0;
  for (int i = 0; i < 1000; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000));
    rested += controller.resting();
    controller.Observe(plan, world.Run(plan.rows));
  }
  EXPECT_GT(rested, 0);
  EXPECT_LE(rested, 10);  // until it knows that of the smallest split too
}

TEST(SplitController, WhatWasSeenBeforeARestDoesNotEndTheNextTry) {
  World world;
  world.costs.host_attend_s = INFINITY;
  world.costs.recompute_s = 4e-6;  // a gain of 8% or so, and a disturbance that is no jump
  world.layer = [](const LaneTimes& times, const LaneRows& rows) {
    return times.layer_s * (rows.recomputed > 0 ? 1.2 : 1);
  };
  SplitController controller = ControllerOf(world.costs);
  int steps = 0;
  for (; steps < 40 && !controller.resting(); ++steps) {
    RunStep(controller, world);
  }
  ASSERT_TRUE(controller.resting());
  EXPECT_LE(steps, 20);
  world.layer = [](const LaneTimes& times, const LaneRows&) { return times.layer_s; };
  for (int i = 0; i < 40; ++i) RunStep(controller, world);
  EXPECT_FALSE(controller.resting());
}

TEST(SplitController, TriesAgainWhenTheReasonIsGone) {
  World world;
  world.layer = [](const LaneTimes& times, const LaneRows& rows) {
    return times.layer_s * (rows.recomputed + rows.host > 0 ? 3 : 1);
  };
  SplitController controller = ControllerOf(world.costs);
  for (int i = 0; i < 100; ++i) RunStep(controller, world);
  ASSERT_TRUE(controller.resting());
  world.layer = [](const LaneTimes& times, const LaneRows&) { return times.layer_s; };
  for (int i = 0; i < 150; ++i) RunStep(controller, world);
  EXPECT_FALSE(controller.resting());
  EXPECT_GT(controller.Plan(Batch(4000))->rows.recomputed, 0);
}

TEST(SplitController, RefusesWhatTheSolverRefuses) {
  LaneCosts no_link = TrueCosts();
  no_link.link_bytes_per_s = 0;
  EXPECT_EQ(SplitController::Create(SplitObjective::kStep, no_link).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SplitController::Create(SplitObjective::kStep, TrueCosts(), 0).ok());
  SplitController controller = ControllerOf(TrueCosts());
  const std::vector<LaneShape> bad = {{.length = 10, .x_stored = 5, .l_min = 6}};
  EXPECT_THAT(std::string(controller.Plan(bad).status().message()), ::testing::HasSubstr("l_min: 6 is beyond"));
  EXPECT_TRUE(controller.Plan(Batch(4000)).ok());
}

}  // namespace
}  // namespace runahead
