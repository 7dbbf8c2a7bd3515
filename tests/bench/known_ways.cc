// Whether the router's choice of who computes the rest of a prompt, whose beginning is known, is the best one.
//
// Random cases of known and new tokens, sequences that decode beside, and links. Each asks its prompt again and again,
// with the same known beginning and new tokens each time, turn about: a chain computes all, the decode worker computes
// the rest, a chain does, and the router chooses. A line a case: the medians in ms, what was chosen, and its regret,
// which is how much longer that way takes than the best of the three, as a share.
//
// The router learns from all of these what prompts take, as one that meets all kinds does.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "server/base/logging.h"
#include "tests/bench/known_ways_cluster.h"
#include "tests/bench/known_ways_regret.h"
#include "tests/testing/synthetic_gguf.h"

namespace runahead {
namespace {

struct Options {
  ClusterSetup cluster;
  int cases = 60, repeats = 3, most_load = 8;
  uint32_t seed = 34;
  std::vector<double> links = {0, 3, 1, 0.3};
};

// Of full attention, so that a token's KV is much beside what it takes to compute. A prompt of 6,000 tokens takes
// seconds.
std::string WriteBenchModel() {
  SyntheticModel model;
  model.layers = 4;
  model.hidden = 512;
  model.heads = model.kv_heads = 8;
  model.ffn = 1376;
  model.context_length = 1 << 15;  // what sequences of the load decode into
  model.SetWeightType(WeightType::kQ8_0);
  const std::string path = absl::StrCat("/tmp/runahead_known_ways_", getpid(), ".gguf");
  Must(WriteSyntheticGguf(model, path));
  return path;
}

class Prompts {
 public:
  explicit Prompts(uint32_t seed) : random_(seed) {}
  std::vector<int32_t> Fresh(int64_t tokens) { return Behind({}, tokens); }
  std::vector<int32_t> Behind(std::vector<int32_t> ids, int64_t tokens) {
    for (int64_t i = 0; i < tokens; ++i) ids.push_back(3 + static_cast<int32_t>(random_() % 300));
    return ids;
  }

 private:
  std::mt19937 random_;
};

// As a router that has run for a while: it knows what prompts take, and what bringing does.
void WarmUp(KnownWaysCluster& cluster, Prompts& prompts) {
  for (const int64_t tokens : {64, 256, 1024, 4096, 8000}) {
    std::vector<int32_t> known = prompts.Fresh(tokens);
    cluster.Ask(known, KnownWay::kNone);
    cluster.Ask(prompts.Fresh(tokens), KnownWay::kNone);
    if (tokens > 6000) continue;
    for (const int64_t fresh : {64, 512}) {
      for (const KnownWay way : {KnownWay::kRows, KnownWay::kChain}) cluster.Ask(prompts.Behind(known, fresh), way);
    }
  }
}

// What is known by chance besides, of the first new tokens, is nothing beside the rest.
constexpr int64_t kByChance = 4;

// New tokens behind these, by this way. A worker may have no place for them at the moment: it is asked again then.
KnownAnswer AskBy(size_t way, KnownWaysCluster& cluster, Prompts& prompts, const std::vector<int32_t>& known,
                  int64_t fresh) {
  constexpr int kTries = 3;
  const auto of = static_cast<int64_t>(known.size());
  KnownAnswer answer;
  for (int i = 0; i < kTries; ++i) {
    answer = cluster.Ask(prompts.Behind(known, fresh), kKnownWays[way]);
    const bool begins = answer.known >= of && answer.known <= of + kByChance;
    if (answer.way == kKnownWays[way] && (begins || answer.way == KnownWay::kNone)) return answer;
  }
  Must(absl::InternalError(absl::StrCat(kKnownWayNames[way], " was asked for, but ", answer.known, " of ", of,
                                        " known tokens were used by ",
                                        kKnownWayNames[static_cast<size_t>(answer.way)])));
  return answer;
}

CaseTimes Measure(KnownWaysCluster& cluster, Prompts& prompts, const KnownCase& of, int repeats) {
  const std::vector<int32_t> known = prompts.Fresh(of.known);
  cluster.Ask(known, KnownWay::kNone);
  std::vector<std::unique_ptr<KnownWaysCluster::Sequence>> load;
  for (int i = 0; i < of.load; ++i) load.push_back(cluster.Decode(prompts.Fresh(64)));
  CaseTimes times;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (size_t way = 0; way < kKnownWays.size(); ++way) {
      times.by_way[way].push_back(AskBy(way, cluster, prompts, known, of.fresh).ttft_s);
    }
    const KnownAnswer answer = cluster.Ask(prompts.Behind(known, of.fresh), std::nullopt);
    times.planned.push_back(answer.ttft_s);
    times.chosen.push_back(static_cast<size_t>(answer.way));
  }
  return times;
}

std::string LinkText(double gbps) {
  return gbps == 0 ? "free" : absl::StrCat(gbps);
}

void PrintCase(const KnownCase& of, const CaseTimes& times) {
  std::string chosen;
  for (size_t i = 0; i < times.chosen.size(); ++i) {
    const std::string name = kKnownWayNames[times.chosen[i]];
    if (chosen.find(name) == std::string::npos) absl::StrAppend(&chosen, chosen.empty() ? "" : "+", name);
  }
  absl::PrintF("%5d %5d %5d %6s %9.1f %9.1f %9.1f %9.1f   %-5s %-10s %7.1f%% %7.1f%%\n", of.known, of.fresh, of.load,
               LinkText(of.gbps), 1e3 * times.MedianOfWay(0), 1e3 * times.MedianOfWay(1), 1e3 * times.MedianOfWay(2),
               1e3 * MedianOf(times.planned), kKnownWayNames[times.best()], chosen, 100 * times.RegretOfChoice(),
               100 * times.RegretAsMeasured());
  std::fflush(stdout);
}

void PrintSummary(const std::vector<CaseTimes>& all) {
  std::array<int, 3> best = {};
  for (const CaseTimes& times : all) ++best[times.best()];
  std::printf("\nbest:");
  for (size_t way = 0; way < best.size(); ++way) std::printf(" %s in %d", kKnownWayNames[way], best[way]);
  std::printf(" of %zu cases\n%-22s %8s %8s %8s\n", all.size(), "regret", "mean", "p95", "most");
  const auto print = [&](const std::string& name, const auto& regret_of) {
    std::vector<double> regrets;
    for (const CaseTimes& times : all) regrets.push_back(regret_of(times));
    const RegretSummary of = SummaryOf(std::move(regrets));
    absl::PrintF("%-22s %7.1f%% %7.1f%% %7.1f%%\n", name, 100 * of.mean, 100 * of.p95, 100 * of.most);
  };
  print("the router's choice", [](const CaseTimes& times) { return times.RegretOfChoice(); });
  print("the same, as measured", [](const CaseTimes& times) { return times.RegretAsMeasured(); });
  for (size_t way = 0; way < kKnownWays.size(); ++way) {
    print(absl::StrCat("always ", kKnownWayNames[way]), [way](const CaseTimes& times) { return times.RegretOf(way); });
  }
}

void Run(const Options& options) {
  std::map<double, std::vector<KnownCase>> by_link;  // a cluster each
  for (const KnownCase& one : DrawCases(options.cases, options.seed, options.most_load, options.links)) {
    by_link[one.gbps].push_back(one);
  }
  absl::PrintF("%5s %5s %5s %6s %9s %9s %9s %9s   %-5s %-10s %8s %8s\n", "known", "new", "load", "Gbit/s", "none",
               "rows", "chain", "router", "best", "chosen", "regret", "measured");
  Prompts prompts(options.seed);
  std::vector<CaseTimes> all;
  for (const auto& [gbps, cases] : by_link) {
    ClusterSetup setup = options.cluster;
    setup.gbps = gbps;
    KnownWaysCluster cluster(setup);
    WarmUp(cluster, prompts);
    for (const KnownCase& one : cases) {
      all.push_back(Measure(cluster, prompts, one, options.repeats));
      PrintCase(one, all.back());
    }
  }
  PrintSummary(all);
}

}  // namespace
}  // namespace runahead

int main(int argc, char** argv) {
  runahead::InitLogging("known_ways", runahead::LogLevel::kError);
  runahead::Options options;
  CLI::App app("The router's choice of who computes the rest of a prompt, beside each of the three ways.");
  app.add_option("--cases", options.cases, "How many (60)")->check(CLI::Range(1, 100000));
  app.add_option("--repeats", options.repeats, "Of each case (3)")->check(CLI::Range(1, 1000));
  app.add_option("--seed", options.seed, "Of the cases (34)");
  app.add_option("--load", options.most_load, "Sequences that decode beside, at most (8)")->check(CLI::Range(0, 64));
  app.add_option("--links", options.links, "Gigabits per second of links, one is drawn a case; 0: not paced")
      ->delimiter(',');
  app.add_option("--model", options.cluster.model, "GGUF file; a synthetic one when absent");
  app.add_option("--table", options.cluster.table, "The router's partition file");
  app.add_option("--dtype", options.cluster.dtype, "Of the workers (auto)");
  app.add_option("--prefill", options.cluster.prefill, "Prefill workers (2)")->check(CLI::Range(1, 64));
  app.add_option("--threads", options.cluster.threads, "Of each worker (1)")->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  const bool own = options.cluster.model.empty();
  if (own) options.cluster.model = runahead::WriteBenchModel();
  runahead::Run(options);
  if (own) std::filesystem::remove(options.cluster.model);
  return 0;
}
