// What the controller does when the link's rate halves in the middle of decode, and what it does when nothing changes.
//   kvpr_adapt [rho] [batch] [length]
// MHA, on the CPU's device with an emulated link. In the end its steps are compared, by turns, with those of the best l
// of a sweep at the new rate.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/kvpr_setup.h"
#include "tests/bench/must.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kBefore = 24, kAfter = 24, kTurns = 5, kStepsOfATurn = 6;

double MeanL(const LanePlan& plan) {
  return static_cast<double>(plan.rows.recomputed) / static_cast<double>(plan.cuts.size());
}

// Steps until l stays within a tenth of the last one.
size_t SettledAfter(const std::vector<double>& l) {
  size_t settled = l.size();
  while (settled > 0 && std::abs(l[settled - 1] - l.back()) <= 0.1 * l.back()) --settled;
  return settled;
}

void Print(const char* name, const std::vector<double>& l) {
  std::printf("%s:", name);
  for (const double each : l) std::printf(" %.0f", each);
  std::printf("\n");
}

int Main(int argc, char** argv) {
  const auto number = [&](int index, double otherwise) { return NumberAt(argc, argv, index, otherwise); };
  const std::string path = WriteModel(false);
  const LaneCosts free = Profile(Load(path, 0), 1).costs;
  const double gbps = number(1, 1) * free.kv_bytes / free.recompute_s * 8 / 1e9;
  const BenchModel of = Load(path, gbps);
  unlink(path.c_str());
  const auto size = static_cast<int64_t>(number(2, 8)), length = static_cast<int64_t>(number(3, 1024));
  const LaneCosts costs = Profile(of, size).costs;
  Batch batch(of, MemoryKind::kHost, size, length, kBefore + kAfter + 2);
  std::vector<double> l;
  KvprOptions options{.max_rows = size};
  options.on_step = [&l](const KvprStep& step) { l.push_back(MeanL(step.plan)); };
  const auto adapts = Must(KvprLoop::Create(
      *of.model, *of.device, batch.store(), batch.stream(),
      std::make_unique<ControlledSplit>(Must(SplitController::Create(SplitObjective::kStep, costs))), options));
  batch.StepSeconds(*adapts, 0, kBefore);
  const std::vector<double> before = std::exchange(l, {});
  Must(of.link->SetRate(gbps / 2));
  batch.StepSeconds(*adapts, 0, kAfter);
  const std::vector<double> after = std::exchange(l, {});

  const auto fixed = [&](int64_t tokens) {
    return Must(KvprLoop::Create(*of.model, *of.device, batch.store(), batch.stream(),
                                 std::make_unique<FixedSplit>(tokens, costs), {.max_rows = size}));
  };
  int64_t best_l = 0;
  double best_s = std::numeric_limits<double>::infinity();
  for (int64_t part = 0; part <= 8; ++part) {
    const int64_t tokens = length * part / 8 / kSplitTile * kSplitTile;
    const double seconds = batch.StepSeconds(*fixed(tokens), 1, 3);
    if (seconds < best_s) best_s = seconds, best_l = tokens;
  }
  const auto best = fixed(best_l);
  std::vector<double> ratios;
  for (int64_t turn = 0; turn < kTurns; ++turn) {
    const double of_best = batch.StepSeconds(*best, 1, kStepsOfATurn);
    ratios.push_back(batch.StepSeconds(*adapts, 1, kStepsOfATurn) / of_best);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("batch %ld length %ld, link %.0f MB/s, then half of it\n", static_cast<long>(size),
              static_cast<long>(length), costs.link_bytes_per_s / 1e6);
  Print("l before", before);
  Print("l after ", after);
  std::printf(
      "settled %zu steps after the change; a step takes %.3f of one at the sweep's best l = %ld (%.3f to %.3f)\n",
      SettledAfter(after), ratios[kTurns / 2], static_cast<long>(best_l), ratios.front(), ratios.back());
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
