// KVPR against all KV streamed, all KV resident, and a sweep of l, side by side on the CPU's device with an emulated
// link.
//   kvpr [mha|gqa] [rho,...] [batch:length,...] [rounds] [steps] [budget in MiB] [host's speed by the link's]
// The 'device' is one thread. rho says how long recomputation takes of what copying KV takes; the link's rate follows.
// With a budget KV's newest part and X of the beginning stay on the device; then there is a host lane, too, of another
// thread, and what all is compared with is the window of KV alone.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/kvpr_setup.h"
#include "tests/bench/must.h"
#include "worker/decode/decode_loop.h"
#include "worker/decode/kvpr/host_profile.h"
#include "worker/decode/kvpr/kvpr_loop.h"

namespace runahead {
namespace {

constexpr int64_t kWarmSteps = 3, kAdaptSteps = 12;

struct Case {
  std::string name;
  Batch* batch = nullptr;
  std::unique_ptr<StepLoop> loop;
  int64_t warm = kWarmSteps;
  std::vector<double> seconds = {};
  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

struct Question {
  int64_t batch = 1, length = 512, rounds = 3, steps = 8, device_bytes = 0;
  double host_gbps = 0;  // that the host lane reads
};

// What a loop's last step was, and the costs as its steps had measured them by then.
struct LastStep {
  LanePlan plan;
  double overlap = 0;
  LaneCosts costs = {};
};

std::unique_ptr<StepLoop> MakeLoop(const BenchModel& of, Batch& batch, const Question& question,
                                   std::unique_ptr<SplitSource> split, LastStep* last = nullptr,
                                   bool host_lane = false) {
  KvprOptions options{.max_rows = question.batch, .device_bytes = question.device_bytes};
  if (last != nullptr) {
    options.on_step = [last, &from = *split](const KvprStep& step) {
      *last = {step.plan, step.times->OverlapRatio(), from.costs()};
    };
  }
  if (host_lane) options.host = of.host.get();
  options.emulated_host_gbps = question.host_gbps;
  return Must(KvprLoop::Create(*of.model, *of.device, batch.store(), batch.stream(), std::move(split), options));
}

std::unique_ptr<SplitSource> Solver(const LaneCosts& costs) {
  return std::make_unique<ControlledSplit>(Must(SplitController::Create(SplitObjective::kStep, costs)));
}

// The l of a sweep with which a step is shortest, by a short look.
int64_t BestOfSweep(const BenchModel& of, Batch& batch, const Question& question, const LaneCosts& costs) {
  int64_t best_l = 0;
  double best_s = std::numeric_limits<double>::infinity();
  for (int64_t part = 0; part <= 8; ++part) {
    const int64_t l = question.length * part / 8 / kSplitTile * kSplitTile;
    const auto loop = MakeLoop(of, batch, question, std::make_unique<FixedSplit>(l, costs));
    const double seconds = batch.StepSeconds(*loop, 1, std::max<int64_t>(2, question.steps / 2));
    if (seconds < best_s) best_s = seconds, best_l = l;
  }
  return best_l;
}

// How many times as fast as a step of `plain` the model says that the last step is.
double PredictedGain(const LaneCosts& costs, const LastStep& plain, const LastStep& last) {
  return TimesOfLanes(SplitObjective::kStep, costs, plain.plan.rows).layer_s /
         TimesOfLanes(SplitObjective::kStep, costs, last.plan.rows).layer_s;
}

void Print(const Question& question, const std::vector<Case>& cases) {
  const double plain = cases[0].Median();
  for (const Case& one : cases) {
    std::printf("  %-26s %8.2f ms a step, %8.1f tokens/s, %.3f x %s (%.3f to %.3f)\n", one.name.c_str(),
                1e3 * one.Median(), static_cast<double>(question.batch) / one.Median(), plain / one.Median(),
                cases[0].name.c_str(), plain / *std::max_element(one.seconds.begin(), one.seconds.end()),
                plain / *std::min_element(one.seconds.begin(), one.seconds.end()));
  }
}

void Print(const char* name, const Question& question, const LaneCosts& profile, const LastStep& plain,
           const LastStep& last) {
  const auto mean = [&](int64_t rows) { return static_cast<double>(rows) / static_cast<double>(question.batch); };
  const LaneRows& rows = last.plan.rows;
  std::printf(
      "  %s: of a sequence %.0f recomputed (%.0f of it from resident X), %.0f copied, %.0f on the host, %.0f resident; "
      "predicted gain %.3f (by the profile at start %.3f), overlap %.2f\n",
      name, mean(rows.recomputed), mean(rows.recomputed - rows.x_streamed), mean(rows.streamed), mean(rows.host),
      mean(rows.resident), PredictedGain(last.costs, plain, last), PredictedGain(profile, plain, last), last.overlap);
}

void Compare(const BenchModel& of, const Question& question) {
  const LaneCosts costs = Profile(of, question.batch).costs;
  const bool tiers = question.device_bytes > 0;
  LaneCosts with_host = costs;
  if (tiers) {
    const auto stream = of.host->NewStream("profile");
    Must(MeasureHostLane(*of.model, *of.device, {*of.host, *stream, question.host_gbps}, with_host));
  }
  const int64_t room = kAdaptSteps + question.steps + 2;
  Batch host(of, MemoryKind::kHost, question.batch, question.length, room);
  Batch resident(of, MemoryKind::kDevice, question.batch, question.length, room);
  LastStep plain, solved, hosted;
  std::vector<Case> cases;
  cases.push_back({tiers ? "window alone" : "l = 0", &host,
                   MakeLoop(of, host, question, std::make_unique<FixedSplit>(0, costs), &plain)});
  cases.push_back({"solver", &host, MakeLoop(of, host, question, Solver(costs), &solved), kAdaptSteps});
  if (tiers) {
    cases.push_back(
        {"solver, host lane", &host, MakeLoop(of, host, question, Solver(with_host), &hosted, true), kAdaptSteps});
  } else {
    const int64_t l = BestOfSweep(of, host, question, costs);
    cases.push_back({absl::StrCat("best of sweep, l = ", l), &host,
                     MakeLoop(of, host, question, std::make_unique<FixedSplit>(l, costs))});
  }
  cases.push_back({"all resident", &resident,
                   std::make_unique<DecodeLoop>(*of.model, *of.device, resident.store(), resident.stream())});
  for (int64_t round = 0; round < question.rounds; ++round) {
    for (Case& one : cases) one.seconds.push_back(one.batch->StepSeconds(*one.loop, one.warm, question.steps));
  }
  std::printf("batch %ld length %ld: link %.0f MB/s, rho %.2f, p %.2f ms a layer\n", static_cast<long>(question.batch),
              static_cast<long>(question.length), costs.link_bytes_per_s / 1e6,
              costs.recompute_s * costs.link_bytes_per_s / costs.kv_bytes, 1e3 * costs.project_s);
  Print(question, cases);
  Print("solver", question, costs, plain, solved);
  if (tiers) {
    std::printf("  the host attends over %.0f MB/s, small copies take %.0f us\n",
                costs.kv_bytes / with_host.host_attend_s / 1e6, 1e6 * with_host.signal_s);
    Print("host lane", question, with_host, plain, hosted);
  } else {
    // The mean of what the timed steps find stored.
    const double stored =
        static_cast<double>(question.length + kWarmSteps) + static_cast<double>(question.steps - 1) / 2;
    const double streamed_s = costs.kv_bytes * static_cast<double>(question.batch) * stored *
                              static_cast<double>(of.model->config().layers) / costs.link_bytes_per_s;
    std::printf("  bytes over bandwidth is %.1f%% of l = 0\n", 100 * streamed_s / cases[0].Median());
  }
  std::printf("\n");
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const auto argument = [&](int index, const char* otherwise) {
    return std::string(argc > index ? argv[index] : otherwise);
  };
  const std::string path = WriteModel(argument(1, "mha") == "gqa");
  const BenchModel unpaced = Load(path, 0);
  const LaneCosts free = Profile(unpaced, 1).costs;
  for (const auto& rho : absl::StrSplit(argument(2, "0.5,1,2"), ',')) {
    const double bytes_per_s = Number(std::string(rho)) * free.kv_bytes / free.recompute_s;
    const BenchModel paced = Load(path, bytes_per_s * 8 / 1e9);
    for (const auto& pair : absl::StrSplit(argument(3, "1:512,1:4096,8:512,8:4096,32:512"), ',')) {
      const std::vector<std::string> parts = absl::StrSplit(pair, ':');
      Question question;
      question.batch = static_cast<int64_t>(Number(parts.at(0)));
      question.length = static_cast<int64_t>(Number(parts.at(1)));
      question.rounds = static_cast<int64_t>(Number(argument(4, "3")));
      question.steps = static_cast<int64_t>(Number(argument(5, "8")));
      question.device_bytes = static_cast<int64_t>(Number(argument(6, "0")) * (1 << 20));
      question.host_gbps = Number(argument(7, "4")) * bytes_per_s * 8 / 1e9;
      std::printf("rho %s wanted; ", std::string(rho).c_str());
      Compare(paced, question);
    }
  }
  unlink(path.c_str());
  return 0;
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  return runahead::Main(argc, argv);
}
