// The controller against simulated steps, one by one: what it measures comes from costs that it does not know. Whole
// answers: split_controller_promises_test.
#include "scheduler/recompute/split_controller.h"

#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

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
  absl::Time now = absl::UnixEpoch();

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
    this->now += absl::Milliseconds(100);
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

LanePlan RunStep(SplitController& controller, World& world, const std::vector<LaneShape>& shapes = Batch(4000)) {
  LanePlan plan = *controller.Plan(shapes, world.now);
  controller.Observe(plan, world.Run(plan.rows));
  return plan;
}

void RunSteps(SplitController& controller, World& world, int steps) {
  for (int i = 0; i < steps; ++i) RunStep(controller, world);
}

double BestLayer(const LaneCosts& costs, const std::vector<LaneShape>& shapes) {
  return SolveLanes(SplitObjective::kStep, costs, shapes)->times.layer_s;
}

double LayerOf(const LaneCosts& costs, const LaneRows& rows) {
  return TimesOfLanes(SplitObjective::kStep, costs, rows).layer_s;
}

constexpr int kSettled = 10;  // steps

TEST(SplitController, BeginsWithTheSmallestSplitAProbeAndATrial) {
  World world;
  world.costs.host_attend_s = INFINITY;
  SplitController controller = ControllerOf(world.costs);
  std::vector<LanePlan> plans;
  for (int i = 0; i < kSettled; ++i) plans.push_back(RunStep(controller, world));
  EXPECT_TRUE(plans[0].smallest);
  EXPECT_TRUE(plans[1].probe);
  EXPECT_EQ(plans[1].rows.recomputed, kSplitTile);
  EXPECT_GT(plans[2].rows.recomputed, 16 * 1000) << "a trial";
  EXPECT_TRUE(plans[3].smallest) << "which tells whether the trial was of the same time";
  for (int i = 4; i < 7; ++i) EXPECT_EQ(plans[static_cast<size_t>(i)].rows, plans[2].rows);
  EXPECT_EQ(plans[2].cuts, SolveLanes(SplitObjective::kStep, world.costs, Batch(4000))->cuts);
}

TEST(SplitController, AProbeOfTheHostLaneIsOnePiece) {
  World world;
  world.costs.recompute_s = 1;
  SplitController controller = ControllerOf(world.costs);
  RunStep(controller, world);
  const LanePlan probe = RunStep(controller, world);
  EXPECT_TRUE(probe.probe);
  EXPECT_EQ(probe.rows.host, 256);
  EXPECT_EQ(probe.rows.recomputed, 0);
}

TEST(SplitController, KeepsTheSolversPlanWhileTheProfileIsRight) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  int checks = 0;
  for (int i = 0; i < 100; ++i) {
    const LanePlan plan = RunStep(controller, world, Batch(4000 + i));
    if (i < kSettled) continue;
    checks += plan.smallest;
    EXPECT_EQ(controller.rest(), plan.smallest ? SplitRest::kMeasuring : SplitRest::kNone);
    if (plan.smallest) continue;
    EXPECT_EQ(plan.cuts, SolveLanes(SplitObjective::kStep, world.costs, Batch(4000 + i))->cuts);
  }
  EXPECT_LE(checks, 3);
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
        int checks = 0;
        for (int i = 0; i < 200; ++i) {
          if (i == 40) world.costs.*field *= factor;
          const LanePlan plan = RunStep(controller, world, Batch(length));
          if (i < 40 + kSettled) continue;
          if (plan.smallest) {
            ++checks;
            continue;
          }
          EXPECT_LE(LayerOf(world.costs, plan.rows), 1.1 * BestLayer(world.costs, Batch(length))) << i << " " << factor;
        }
        EXPECT_LE(checks, 4);
      }
    }
  }
}

// How often the split changes in 2,000 steps of one shape, and how far the worst is from the best.
int Changes(double noise, int seed, const ControllerOptions& options, double* worst) {
  World world{.noise = noise};
  world.random.seed(static_cast<uint32_t>(seed));
  SplitController controller = *SplitController::Create(SplitObjective::kStep, world.costs, kSplitTile, options);
  int changes = 0;
  std::optional<LaneRows> last;
  for (int i = 0; i < 2000; ++i) {
    const LanePlan plan = RunStep(controller, world);
    if (controller.rest() != SplitRest::kNone) continue;
    changes += last.has_value() && plan.rows != *last ? 1 : 0;
    last = plan.rows;
    *worst = std::max(*worst, LayerOf(world.costs, plan.rows) / BestLayer(world.costs, Batch(4000)));
  }
  return changes;
}

TEST(SplitController, DoesNotOscillateUnderNoise) {
  for (int seed = 1; seed <= 5; ++seed) {
    double worst = 0, any = 0;
    EXPECT_LE(Changes(0.1, seed, {}, &worst), 40) << "one in 50 steps";
    EXPECT_LE(worst, 1.1);
    EXPECT_LE(Changes(0.2, seed, {}, &worst), 200) << "one in ten, when every time is off by up to a fifth";
    EXPECT_LE(worst, 1.2);
    // What keeps it still is the gain that it asks for.
    EXPECT_GT(Changes(0.2, seed, {.keep = 0}, &any), 500);
  }
}

TEST(SplitController, OutliersMoveNothing) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  RunSteps(controller, world, kSettled);
  const LaneRows first = controller.Plan(Batch(4000), world.now)->rows;
  int others = 0;
  for (int i = 0; i < 300; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000), world.now);
    others += plan.rows == first ? 0 : 1;
    LaneMeasurement measured = world.Run(plan.rows);
    if (i % 10 == 0) measured.link_s *= 50, measured.layer_s *= 50;
    if (i % 10 == 5) measured = {.link_s = NAN, .recompute_s = -1, .layer_s = INFINITY};
    controller.Observe(plan, measured);
  }
  EXPECT_LE(others, 10);
}

// Lanes that do not overlap: a layer takes the sum of what link and device take.
double Serial(const LaneTimes& times, const LaneRows&) {
  return times.link_s + times.device_s;
}

// How many of 1,000 steps are slower than the smallest split, probes aside, and how many one after the other.
struct Slower {
  int steps = 0, longest = 0;
};
Slower StepsSlower(World* world, const std::function<void(World*, const LaneRows&)>& before_step = {}) {
  const LaneCosts undisturbed = world->costs;
  SplitController controller = ControllerOf(undisturbed);
  Slower slower;
  int running = 0;
  for (int i = 0; i < 1000; ++i) {
    const LanePlan plan = *controller.Plan(Batch(4000), world->now);
    if (before_step) before_step(world, plan.rows);
    const LaneMeasurement measured = world->Run(plan.rows);
    const LaneTimes smallest = SmallestSplit(SplitObjective::kStep, undisturbed, Batch(4000))->times;
    running = !plan.probe && measured.layer_s > 1.001 * world->layer(smallest, {}) ? running + 1 : 0;
    slower.longest = std::max(slower.longest, running);
    slower.steps += running > 0;
    controller.Observe(plan, measured);
  }
  return slower;
}

TEST(SplitController, GoesBackToTheSmallestSplitWhereTheModelIsWrong) {
  World serial;
  serial.costs.recompute_s = 1.2e-6;  // recomputation that pays only where it overlaps
  serial.costs.host_attend_s = INFINITY;
  serial.layer = Serial;
  World contended;  // whatever is not streamed as KV makes all copies three times slower, unseen in link_s
  contended.layer = [](const LaneTimes& times, const LaneRows& rows) {
    return times.layer_s * (rows.recomputed + rows.host > 16 * 100 ? 3 : 1);
  };
  for (World* world : {&serial, &contended}) {
    const Slower slower = StepsSlower(world);
    EXPECT_LE(slower.steps, 12);
    EXPECT_LE(slower.longest, 1);
  }
}

// What recomputation, or the host lane, does to the link is seen in the copies' own times, too.
TEST(SplitController, GoesBackToTheSmallestSplitWhereRecomputationSlowsTheLink) {
  for (const double recompute_s : {0.6e-6, 1.2e-6, 2.4e-6}) {
    for (const double by : {1.2, 1.5, 2.0, 3.0}) {
      World world;
      world.costs.recompute_s = recompute_s;
      world.costs.host_attend_s = INFINITY;
      const double alone = world.costs.link_bytes_per_s;
      const Slower slower = StepsSlower(&world, [&](World* at, const LaneRows& rows) {
        at->costs.link_bytes_per_s = alone / (rows.recomputed > kSplitTile ? by : 1);
      });
      EXPECT_LE(slower.steps, 12) << recompute_s << ", " << by;
      EXPECT_LE(slower.longest, 1);
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
  for (int i = 0; i < 1000; ++i) rested += RunStep(controller, world).smallest;
  EXPECT_LE(rested, 10);
}

// A rest for want of overlap: the reason is gone, but only a trial tells.
TEST(SplitController, TriesAgainAfterSeconds) {
  World world;
  world.layer = [](const LaneTimes& times, const LaneRows& rows) {
    return times.layer_s * (rows.recomputed + rows.host > 16 * 100 ? 3 : 1);
  };
  SplitController controller = ControllerOf(world.costs);
  int slower = 0;
  for (int i = 0; i < 50; ++i) {
    RunStep(controller, world);
    slower += controller.rest() == SplitRest::kSlower;
    ASSERT_NE(controller.rest(), SplitRest::kNone);
  }
  EXPECT_GT(slower, 10);
  world.layer = [](const LaneTimes& times, const LaneRows&) { return times.layer_s; };
  world.now += absl::Minutes(5);
  RunSteps(controller, world, 100);  // until the allowance is back
  EXPECT_EQ(controller.rest(), SplitRest::kNone);
}

// A rest for want of speed: rates say when that is over, without any time having to pass.
TEST(SplitController, ARestEndsWhenRatesChange) {
  World world;
  world.costs.host_attend_s = INFINITY;
  const LaneCosts fast = world.costs;
  world.costs.recompute_s *= 30;
  world.costs.project_s *= 3;
  SplitController controller = ControllerOf(world.costs);
  RunSteps(controller, world, 100);
  ASSERT_EQ(controller.rest(), SplitRest::kNoGain);
  world.costs = fast;
  const absl::Time then = world.now;
  RunSteps(controller, world, 15);
  EXPECT_EQ(controller.rest(), SplitRest::kNone);
  EXPECT_LE(world.now - then, absl::Seconds(1.6));
}

TEST(SplitController, SaysWhyItRestsAndSinceWhen) {
  World world;
  world.costs.host_attend_s = INFINITY;
  world.costs.recompute_s *= 30;
  SplitController controller = ControllerOf(world.costs);
  EXPECT_EQ(controller.rest(), SplitRest::kMeasuring);
  RunSteps(controller, world, 5);
  ASSERT_EQ(controller.rest(), SplitRest::kNoGain);
  const absl::Time since = controller.rest_since();
  EXPECT_GT(since, absl::UnixEpoch());
  EXPECT_LT(since, world.now);
  RunSteps(controller, world, 3);
  EXPECT_EQ(controller.rest_since(), since);
  std::vector<std::string> names;
  for (const SplitRest rest : {SplitRest::kNone, SplitRest::kMeasuring, SplitRest::kNoGain, SplitRest::kSlower}) {
    names.emplace_back(SplitRestName(rest));
  }
  EXPECT_THAT(names, ::testing::ElementsAre("none", "measuring", "no_gain", "slower"));
}

TEST(SplitController, ARestartKeepsWhatTrialsTold) {
  World world;
  SplitController controller = ControllerOf(world.costs);
  RunSteps(controller, world, 20);
  LaneCosts profile = world.costs;
  profile.link_bytes_per_s *= 1.1;
  controller.Restart(profile);
  RunSteps(controller, world, 4);
  EXPECT_EQ(controller.rest(), SplitRest::kNone);
  profile.link_bytes_per_s = NAN;
  controller.Restart(profile);
  EXPECT_TRUE(controller.Plan(Batch(4000), world.now).ok()) << "impossible costs are ignored";
}

// The papers' splits, where they are faster than the smallest as decode runs them.
TEST(SplitController, RunsTheSplitOfAnyObjective) {
  for (const SplitObjective objective :
       {SplitObjective::kRow, SplitObjective::kColumn, SplitObjective::kPipelined, SplitObjective::kStep}) {
    World world;
    world.costs.host_attend_s = INFINITY;
    world.costs.recompute_s = 0.4e-6;
    SplitController controller = *SplitController::Create(objective, world.costs);
    RunSteps(controller, world, kSettled);
    const LanePlan plan = RunStep(controller, world);
    EXPECT_EQ(controller.rest(), SplitRest::kNone) << SplitObjectiveName(objective);
    EXPECT_EQ(plan.cuts, SolveLanes(objective, world.costs, Batch(4000))->cuts);
    EXPECT_EQ(plan.times.layer_s, LayerOf(controller.costs(), plan.rows)) << "what is predicted is the step";
  }
}

TEST(SplitController, NoObjectiveMakesStepsLonger) {
  World world;
  world.costs.host_attend_s = INFINITY;
  world.costs.kv_bytes = 4096;  // grouped heads: X is twice as large as KV, and row charges no X
  ASSERT_GT(SolveLanes(SplitObjective::kRow, world.costs, Batch(4000))->rows.recomputed, 0);
  SplitController controller = *SplitController::Create(SplitObjective::kRow, world.costs);
  for (int i = 0; i < 100; ++i) {
    const LanePlan plan = RunStep(controller, world);
    EXPECT_TRUE(plan.smallest || plan.probe) << i;
  }
}

TEST(SplitController, RefusesWhatTheSolverRefuses) {
  LaneCosts no_link = TrueCosts();
  no_link.link_bytes_per_s = 0;
  EXPECT_EQ(SplitController::Create(SplitObjective::kStep, no_link).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(SplitController::Create(SplitObjective::kStep, TrueCosts(), 0).ok());
  SplitController controller = ControllerOf(TrueCosts());
  const std::vector<LaneShape> bad = {{.length = 10, .x_stored = 5, .l_min = 6}};
  EXPECT_THAT(std::string(controller.Plan(bad, absl::UnixEpoch()).status().message()),
              ::testing::HasSubstr("l_min: 6 is beyond"));
  EXPECT_TRUE(controller.Plan(Batch(4000), absl::UnixEpoch()).ok());
}

}  // namespace
}  // namespace runahead
