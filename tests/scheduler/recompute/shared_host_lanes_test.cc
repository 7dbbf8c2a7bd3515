// Host lanes of several decode workers on one host, which share its memory (KVPR's paper, figure 14, shows what
// attention on the host's CPU comes to then): each keeps what it gains, and turns itself off where it would cost.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "scheduler/recompute/split_controller.h"

namespace runahead {
namespace {

constexpr double kHostMemory = 10e9;  // bytes a second of the host, for all
constexpr int64_t kSequences = 4, kLength = 8192, kWindow = 512, kSharedSteps = 240, kSharedSettled = 20;

// GQA: X is no smaller than KV, so what is to be gained is the host lane's.
LaneCosts CostsOfOne() {
  LaneCosts costs;
  costs.link_bytes_per_s = 2e9;
  costs.kv_bytes = costs.x_bytes = 1536;
  costs.recompute_s = 1;
  costs.project_s = 100e-6;
  costs.attend_s = 0.02e-6;
  costs.signal_s = 30e-6;
  costs.host_attend_s = costs.kv_bytes / 8e9;  // alone
  costs.host_bytes_per_s = kHostMemory;
  return costs;
}

std::vector<LaneShape> ShapesAt(int64_t step) {
  const int64_t length = kLength + step;
  return std::vector<LaneShape>(static_cast<size_t>(kSequences),
                                LaneShape{.length = length, .resident_from = length - kWindow});
}

// Memory carries copies first; what they leave all host lanes have in equal parts.
class SharedHost {
 public:
  explicit SharedHost(int64_t workers) : workers_(workers), copied_(static_cast<size_t>(workers), 0) {}

  // A layer of `rows` of one worker, and what the lanes cost in it. `copied`: bytes a second that all of them copy.
  std::pair<LaneCosts, LaneTimes> At(const LaneRows& rows, double copied) const {
    LaneCosts costs = CostsOfOne();
    costs.link_bytes_per_s = std::min(costs.link_bytes_per_s, kHostMemory / static_cast<double>(workers_));
    const double left = std::max(0.02 * kHostMemory, kHostMemory - copied) / static_cast<double>(workers_);
    costs.host_attend_s = std::max(costs.host_attend_s, costs.kv_bytes / left);
    costs.host_bytes_per_s = std::numeric_limits<double>::infinity();
    return {costs, TimesOfLanes(SplitObjective::kStep, costs, rows)};
  }
  double copied() const { return std::accumulate(copied_.begin(), copied_.end(), 0.0); }
  void SetCopied(size_t worker, double bytes_per_s) { copied_[worker] = bytes_per_s; }
  // Where all have the same rows for long.
  double Steady(const LaneRows& rows) const {
    double layer_s = At(rows, 0).second.layer_s;
    for (int i = 0; i < 50; ++i) {
      const double copied = CostsOfOne().kv_bytes * static_cast<double>(rows.streamed) / layer_s;
      layer_s = (layer_s + At(rows, copied * static_cast<double>(workers_)).second.layer_s) / 2;
    }
    return layer_s;
  }

 private:
  const int64_t workers_;
  std::vector<double> copied_;  // bytes a second of each, in its last layer
};

struct Shared {
  double took = 0, smallest = 0, best = 0;  // seconds, of all workers' steps once settled
  int64_t with_lane = 0, steps = 0;         // steps that had a host lane
};

Shared DecodeTogether(int64_t workers) {
  SharedHost host(workers);
  std::mt19937 random(17);
  const auto off = [&] { return std::uniform_real_distribution<double>(0.97, 1.03)(random); };
  std::vector<SplitController> controllers;
  for (int64_t i = 0; i < workers; ++i) {
    controllers.push_back(*SplitController::Create(SplitObjective::kStep, CostsOfOne()));
  }
  std::vector<absl::Time> now(controllers.size(), absl::UnixEpoch());
  Shared shared;
  for (int64_t step = 0; step < kSharedSteps; ++step) {
    const LaneRows smallest = SmallestSplit(SplitObjective::kStep, CostsOfOne(), ShapesAt(step))->rows;
    double best = host.Steady(smallest);
    for (int64_t part = 1; part < 32; ++part) {
      LaneRows rows = smallest;
      rows.host = smallest.streamed * part / 32 / 256 * 256;
      rows.streamed -= rows.host;
      best = std::min(best, host.Steady(rows));
    }
    for (size_t i = 0; i < controllers.size(); ++i) {
      const LanePlan plan = *controllers[i].Plan(ShapesAt(step), now[i]);
      const auto [costs, times] = host.At(plan.rows, host.copied());
      const double layer_s = times.layer_s * off();
      host.SetCopied(i, costs.kv_bytes * static_cast<double>(plan.rows.streamed) / layer_s);
      now[i] += 30 * absl::Seconds(layer_s);
      controllers[i].Observe(plan,
                             {.link_s = times.link_s * off(),
                              .project_s = costs.project_s * off(),
                              .attend_s = costs.attend_s * static_cast<double>(plan.rows.streamed + plan.rows.resident),
                              .signal_s = plan.rows.host > 0 ? costs.signal_s : 0,
                              .host_attend_s = costs.host_attend_s * static_cast<double>(plan.rows.host) * off(),
                              .layer_s = layer_s});
      if (step < kSharedSettled) continue;
      shared.took += layer_s;
      shared.smallest += host.Steady(smallest);
      shared.best += best;
      shared.with_lane += plan.rows.host > 256;
      ++shared.steps;
    }
  }
  return shared;
}

TEST(SharedHostLanes, KeepNineTenthsOfWhatTheyCanHaveTogetherOrTurnThemselvesOff) {
  for (const int64_t workers : {1, 2, 4, 8}) {
    SCOPED_TRACE(workers);
    const Shared shared = DecodeTogether(workers);
    EXPECT_LE(shared.took, 1.03 * shared.smallest) << "with the lane off";
    if (shared.smallest >= 1.1 * shared.best) {
      EXPECT_LE(shared.took, shared.best / 0.9);
      EXPECT_GT(shared.with_lane, shared.steps * 4 / 5);
    }
  }
  // Eight copy all that memory gives: the lanes would take from the copies.
  const Shared eight = DecodeTogether(8);
  EXPECT_LT(eight.smallest, 1.1 * eight.best);
  EXPECT_LT(eight.with_lane, eight.steps / 10);
}

}  // namespace
}  // namespace runahead
