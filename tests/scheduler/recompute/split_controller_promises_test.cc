// What the split controller promises of whole answers, on simulated decode workers of which it knows nothing: never 3%
// slower than the smallest split over 60 tokens, nine tenths of what can be had, settled within ten steps.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/scheduler/recompute/lane_plant.h"

namespace runahead {
namespace {

using testing::Disturbance;
using testing::LanePlant;
using testing::PlantCosts;
using testing::PlantOptions;
using testing::PlantShapes;

constexpr int64_t kAnswer = 60;  // tokens
constexpr int64_t kSettledAt = 10;

struct AnswerBatch {
  int64_t sequences, length;
};
constexpr AnswerBatch kPlantBatches[] = {{1, 512}, {1, 4096}, {8, 512}, {8, 4096}};
constexpr double kPlantLinks[] = {1, 4, 16};  // gigabits a second

// Seconds of each step: as it was planned, with the smallest split, and with the best l.
struct Answered {
  std::vector<double> planned, smallest, best;

  static double Sum(const std::vector<double>& of, int64_t from, int64_t to) {
    double sum = 0;
    for (int64_t i = from; i < to; ++i) sum += of[static_cast<size_t>(i)];
    return sum;
  }
  int64_t steps() const { return static_cast<int64_t>(planned.size()); }
  // The slowest 60 steps in a row, of what the smallest split takes.
  double Worst() const {
    double worst = 0;
    for (int64_t i = 0; i + kAnswer <= steps(); ++i) {
      worst = std::max(worst, Sum(planned, i, i + kAnswer) / Sum(smallest, i, i + kAnswer));
    }
    return worst;
  }
  double Gain() const { return Sum(smallest, kSettledAt, steps()) / Sum(best, kSettledAt, steps()); }
  double OfTheBest() const { return Sum(best, kSettledAt, steps()) / Sum(planned, kSettledAt, steps()); }
};

// The layer with the best of 64 splits, without noise.
double BestPlantLayer(const LanePlant& plant, int64_t step, const LaneRows& smallest, int64_t stored,
                      int64_t sequences) {
  double best = plant.LayerAt(step, smallest);
  for (int64_t part = 1; part <= 64; ++part) {
    LaneRows rows = smallest;
    rows.recomputed = rows.computed = rows.x_streamed = stored * part / 64 / kSplitTile * kSplitTile * sequences;
    rows.streamed -= rows.recomputed;
    best = std::min(best, plant.LayerAt(step, rows));
  }
  return best;
}

// As decode does it: a step is planned before the one in front of it is observed.
Answered Decode(const PlantOptions& options, const LaneCosts& profile, const AnswerBatch& batch, int64_t steps,
                int seed) {
  LanePlant plant(options, seed);
  SplitController controller = *SplitController::Create(SplitObjective::kStep, profile);
  Answered answered;
  LanePlan next = *controller.Plan(PlantShapes(batch.sequences, batch.length, 0), plant.now());
  std::optional<std::pair<LanePlan, LaneMeasurement>> done;
  for (int64_t i = 0; i < steps; ++i) {
    const LanePlan running = next;
    if (done.has_value()) controller.Observe(done->first, done->second);
    const std::vector<LaneShape> shapes = PlantShapes(batch.sequences, batch.length, i);
    const LaneRows smallest = SmallestSplit(SplitObjective::kStep, plant.At(i), shapes)->rows;
    const LanePlant::Step run = plant.Run(i, running.rows, smallest);
    next = *controller.Plan(PlantShapes(batch.sequences, batch.length, i + 1), plant.now());
    done = {running, run.measured};
    const double best = BestPlantLayer(plant, i, smallest, shapes[0].x_stored, batch.sequences);
    answered.planned.push_back(run.layer_s);
    answered.smallest.push_back(run.smallest_s);
    answered.best.push_back(best * run.smallest_s / plant.LayerAt(i, smallest));
  }
  return answered;
}

// How the lanes overlap, and what else the machine does.
struct PlantWorld {
  const char* name;
  double serial, contention;
  std::vector<Disturbance> disturbances;
  double of_the_best = 0.9;  // that is promised where there are 10% to be had
};
std::vector<PlantWorld> PlantWorlds() {
  return {
      {"quiet", 0, 1, {}},
      {"lanes overlap half", 0.5, 1, {}},
      {"lanes do not overlap", 1, 1, {}},
      {"recomputation slows copies", 0, 1.5, {}},
      {"recomputation makes copies three times as slow", 0, 3, {}},
      {"a busy device", 0, 1, {{0, 400, 2, 1}}},
      {"a busy link", 0, 1, {{0, 400, 1, 2}}},
      {"a device that is busy for a while", 0, 1, {{100, 200, 2, 1}}},
      {"a link that is busy for a while", 0, 1, {{100, 200, 1, 3}}},
      {"both busy by turns", 0, 1, {{40, 80, 2, 2}, {120, 160, 2, 2}, {200, 240, 2, 2}, {280, 320, 2, 2}}, 0.85},
      {"a device that is busy by short turns",
       0,
       1,
       {{40, 60, 2, 1}, {80, 100, 2, 1}, {120, 140, 2, 1}, {160, 180, 2, 1}}},
  };
}

// Every batch over every link, with start profiles that are right, or off by three times either way.
void ForEachCase(const PlantWorld& world, const std::function<void(const std::string&, const Answered&)>& use) {
  for (const AnswerBatch& batch : kPlantBatches) {
    for (const double link : kPlantLinks) {
      for (const auto field : {&LaneCosts::recompute_s, &LaneCosts::link_bytes_per_s}) {
        for (const double wrong : {1.0 / 3, 1.0, 3.0}) {
          for (int seed = 1; seed <= 2; ++seed) {
            PlantOptions options{.costs = PlantCosts(link),
                                 .serial = world.serial,
                                 .contention = world.contention,
                                 .noise = 0.05,
                                 .delays = 0.01,
                                 .disturbances = world.disturbances};
            LaneCosts profile = options.costs;
            profile.*field *= wrong;
            use(absl::StrCat(world.name, ": ", batch.sequences, " x ", batch.length, " over ", link, " Gbit/s, ",
                             field == &LaneCosts::recompute_s ? "R" : "link", " off by ", wrong, ", seed ", seed),
                Decode(options, profile, batch, 400, seed));
          }
        }
      }
    }
  }
}

TEST(SplitControllerPromises, SixtyTokensNeverTakeThreePercentMoreThanWithTheSmallestSplit) {
  for (const PlantWorld& world : PlantWorlds()) {
    ForEachCase(world,
                [](const std::string& name, const Answered& answered) { EXPECT_LE(answered.Worst(), 1.03) << name; });
  }
}

TEST(SplitControllerPromises, ReachesNineTenthsOfWhatCanBeHadWhereThatIsTenPercent) {
  for (const PlantWorld& world : PlantWorlds()) {
    int with_gain = 0;
    ForEachCase(world, [&](const std::string& name, const Answered& answered) {
      if (answered.Gain() < 1.1) return;
      ++with_gain;
      EXPECT_GE(answered.OfTheBest(), world.of_the_best) << name << ", gain " << answered.Gain();
    });
    EXPECT_GT(with_gain, 40) << world.name;
  }
}

// Whatever the profile said. Afterwards all steps but checks are about as short as they can be.
TEST(SplitControllerPromises, SettlesWithinTenSteps) {
  ForEachCase({"quiet", 0, 1, {}}, [](const std::string& name, const Answered& answered) {
    int long_ones = 0;
    for (size_t i = kSettledAt; i < kSettledAt + 40; ++i) long_ones += answered.planned[i] > 1.05 * answered.best[i];
    EXPECT_LE(long_ones, 6) << name;  // of 40: checks, and what delays cost
  });
}

// Single steps are off by so much that they say little; the more of the gain is kept, the less has been given up for
// nothing. `of_the_best` is of the mean over all batches and links where there is a gain. Where lanes disturb each
// other as well, so that there may be none, a few of 72 runs miss the 3% somewhere.
TEST(SplitControllerPromises, KeepMostOfTheGainWhereEveryStepIsDisturbed) {
  struct Noisy {
    double noise, delays, of_the_best;
    double serial = 0, contention = 1;
    bool busy_by_turns = false;
    int missed = 0;
  };
  for (const Noisy& one :
       {Noisy{0.2, 0.05, 0.91}, Noisy{0.35, 0.1, 0.79},
        Noisy{.noise = 0.2, .delays = 0.05, .of_the_best = 0.84, .busy_by_turns = true}, Noisy{0.2, 0.05, 0.93, 0, 1.5},
        Noisy{0.35, 0.1, 0.82, 0, 1.5, false, 2}, Noisy{0.35, 0.1, 0.83, 0.5, 1, false, 2}}) {
    SCOPED_TRACE(absl::StrCat("noise ", one.noise, ", serial ", one.serial, ", contention ", one.contention,
                              one.busy_by_turns ? ", busy by turns" : ""));
    double of_the_best = 0;
    int with_gain = 0, missed = 0;
    for (const AnswerBatch& batch : kPlantBatches) {
      for (const double link : kPlantLinks) {
        for (int seed = 1; seed <= 6; ++seed) {
          PlantOptions options{.costs = PlantCosts(link),
                               .serial = one.serial,
                               .contention = one.contention,
                               .noise = one.noise,
                               .delays = one.delays};
          for (int64_t at = 20; one.busy_by_turns && at < 380; at += 14) {
            options.disturbances.push_back({at, at + 7, 2, 1.5});
          }
          const Answered answered = Decode(options, options.costs, batch, 400, seed);
          missed += answered.Worst() > 1.03;
          EXPECT_LE(answered.Worst(), 1.1) << seed;
          if (answered.Gain() < 1.1) continue;
          of_the_best += answered.OfTheBest();
          ++with_gain;
        }
      }
    }
    EXPECT_LE(missed, one.missed);
    EXPECT_GE(with_gain, 48);
    EXPECT_GE(of_the_best / with_gain, one.of_the_best);
  }
}

// A worker and a load that are drawn: `most` is how much slower others make the device, and the link.
Answered DecodeDrawn(int seed, double most_device, double most_link) {
  std::mt19937 random(static_cast<uint32_t>(seed * 7919));
  const auto real = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  const AnswerBatch batch = kPlantBatches[random() % 4];
  PlantOptions options{.costs = PlantCosts(kPlantLinks[random() % 3]), .noise = 0.05};
  options.costs.recompute_s *= real(0.5, 3);
  options.costs.project_s *= real(0.3, 5);
  options.serial = random() % 2 == 0 ? 0 : real(0, 1);
  options.contention = random() % 2 == 0 ? 1 : real(1, 3);
  options.delays = real(0, 0.02);
  for (auto at = static_cast<int64_t>(real(5, 60)); at < 400;) {
    const auto steps = static_cast<int64_t>(real(5, 80));
    options.disturbances.push_back({at, at + steps, real(1, most_device), real(1, most_link)});
    at += steps + static_cast<int64_t>(real(5, 80));
  }
  LaneCosts profile = options.costs;
  for (const auto field : {&LaneCosts::recompute_s, &LaneCosts::link_bytes_per_s, &LaneCosts::project_s}) {
    profile.*field *= std::exp(real(-1.1, 1.1));
  }
  return Decode(options, profile, batch, 400, seed);
}

TEST(SplitControllerPromises, HoldOnQuietWorkersOfAnyKind) {
  int short_of = 0, slower = 0;
  for (int seed = 1; seed <= 400; ++seed) {  // 340 windows of 60 tokens each
    const Answered answered = DecodeDrawn(seed, 1, 1);
    slower += answered.Worst() > 1.03;
    EXPECT_LE(answered.Worst(), 1.05) << seed;
    if (answered.Gain() >= 1.1) short_of += answered.OfTheBest() < 0.9;
  }
  EXPECT_LE(slower, 4);
  EXPECT_LE(short_of, 2);
}

// The promise does not hold where lanes disturb each other as well and a load comes and goes every few steps: a change
// that comes with a trial deceives the controller. Then one answer in seven loses more than 3% somewhere. Of any 60
// tokens in a run of 400, that is; the controller of before lost up to half of its speed for hundreds of steps.
TEST(SplitControllerPromises, AreMissedInFewOfTheWorstLoads) {
  int slower = 0, short_of = 0, with_gain = 0;
  double worst = 0;
  constexpr int kRuns = 400;
  for (int seed = 1; seed <= kRuns; ++seed) {
    const Answered answered = DecodeDrawn(seed, 2, 3);
    slower += answered.Worst() > 1.03;
    worst = std::max(worst, answered.Worst());
    if (answered.Gain() < 1.1) continue;
    ++with_gain;
    short_of += answered.OfTheBest() < 0.9;
  }
  EXPECT_LE(slower, kRuns / 6);
  EXPECT_LE(worst, 1.3);
  EXPECT_LE(short_of, with_gain / 7);
}

}  // namespace
}  // namespace runahead
