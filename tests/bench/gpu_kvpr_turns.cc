#include "tests/bench/gpu_kvpr_turns.h"

#include <numeric>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/decode/decode_loop.h"

namespace runahead {
namespace {

constexpr int kLeastTurns = 5;
constexpr int64_t kTimedSteps = 2;  // of a turn
// KVPR's first step of a turn has no copies ahead of it, and brings what is to be resident; the controller has its
// split after some steps more.
constexpr int64_t kWarmSteps = 2, kAdaptSteps = 12;
static_assert(kAdaptSteps + kTimedSteps < KvprTurns::kRoom);

double DeviceSeconds(const StepTimes& times) {
  return times.Busy(StepLane::kProject) + times.Busy(StepLane::kRecompute) + times.AttendSeconds();
}

}  // namespace

double KvprTurns::Case::BusyShare() const {
  double busy = 0;
  for (const Taken& step : taken) busy += step.device_s;
  return busy / std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

void KvprTurns::AddPlain(std::string name, const Model& model, DecodeBatch& batch) {
  // The first step loads kernels, the second is recorded as a graph.
  cases_.push_back({.name = std::move(name), .batch = &batch, .first_warm = 3, .warm = 1});
  cases_.back().loop = std::make_unique<DecodeLoop>(model, device_, batch.store(), batch.stream());
}

absl::Status KvprTurns::AddPlainKvpr(std::string name, const Model& model, DecodeBatch& batch, const LaneCosts& costs,
                                     const KvprOptions& options) {
  return AddKvpr({.name = std::move(name), .batch = &batch, .first_warm = kWarmSteps, .warm = kWarmSteps}, model,
                 std::make_unique<FixedSplit>(0, costs), options);
}

absl::Status KvprTurns::AddSolver(std::string name, const Model& model, DecodeBatch& batch, const LaneCosts& costs,
                                  const KvprOptions& options) {
  RUNAHEAD_ASSIGN_OR_RETURN(SplitController controller, SplitController::Create(SplitObjective::kStep, costs));
  return AddKvpr({.name = std::move(name), .batch = &batch, .first_warm = kAdaptSteps, .warm = kWarmSteps}, model,
                 std::make_unique<ControlledSplit>(std::move(controller)), options);
}

absl::Status KvprTurns::AddKvpr(Case added, const Model& model, std::unique_ptr<SplitSource> split,
                                KvprOptions options) {
  Case& one = cases_.emplace_back(std::move(added));
  options.on_step = [&one, &from = *split](const KvprStep& step) {
    one.taken.push_back({step.plan.rows, from.costs(), DeviceSeconds(*step.times), step.times->OverlapRatio()});
  };
  absl::StatusOr<std::unique_ptr<KvprLoop>> loop =
      KvprLoop::Create(model, device_, one.batch->store(), one.batch->stream(), std::move(split), options);
  if (!loop.ok()) {
    cases_.pop_back();
    return loop.status();
  }
  one.loop = *std::move(loop);
  return absl::OkStatus();
}

absl::Status KvprTurns::Run(int64_t position, double seconds) {
  const double begin = SecondsNow();
  const double until = begin + seconds * static_cast<double>(cases_.size());
  for (int turn = 0; turn < kLeastTurns || SecondsNow() < until; ++turn) {
    for (Case& one : cases_) {
      const size_t before = one.taken.size();
      const int64_t warm = turn == 0 ? one.first_warm : one.warm;
      RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<double> timed,
                                one.batch->StepSeconds(*one.loop, position, warm, kTimedSteps));
      one.seconds.insert(one.seconds.end(), timed.begin(), timed.end());
      if (one.taken.empty()) continue;
      const auto first = one.taken.begin() + static_cast<std::ptrdiff_t>(before);
      one.taken.erase(first, first + static_cast<std::ptrdiff_t>(warm));
    }
  }
  return absl::OkStatus();
}

double PredictedGain(const KvprTurns::Case& before, const KvprTurns::Case& after) {
  const KvprTurns::Taken &was = before.taken.back(), &is = after.taken.back();
  LaneCosts costs = is.costs;
  const double after_s = TimesOfLanes(SplitObjective::kStep, costs, is.rows).layer_s;
  costs.other_link_bytes = was.costs.other_link_bytes;
  return TimesOfLanes(SplitObjective::kStep, costs, was.rows).layer_s / after_s;
}

}  // namespace runahead
