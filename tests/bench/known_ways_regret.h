// What it costs to choose among the ways of a prompt whose beginning is known, beside the best one of each case. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "scheduler/placement/continuation_choice.h"

namespace runahead {

inline constexpr std::array<KnownWay, 3> kKnownWays = {KnownWay::kNone, KnownWay::kRows, KnownWay::kChain};
inline constexpr std::array<const char*, 3> kKnownWayNames = {"none", "rows", "chain"};

// 0 where there are none.
inline double MedianOf(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// A prompt of `known` tokens of which a decode worker has KV and `fresh` ones behind them, beside `load` sequences that
// decode, over links of `gbps` gigabits per second; 0: as fast as they are.
struct KnownCase {
  int64_t known = 0, fresh = 0;
  int load = 0;
  double gbps = 0;
};

// The same seed draws the same. Lengths are as likely in each octave; half of the cases have no load.
inline std::vector<KnownCase> DrawCases(int count, uint32_t seed, int most_load, const std::vector<double>& links) {
  std::mt19937 random(seed);
  const auto share = [&random] { return static_cast<double>(random()) / 4294967296.0; };
  const auto between = [&](double least, double most) {
    return static_cast<int64_t>(std::lround(least * std::pow(most / least, share())));
  };
  std::vector<KnownCase> cases(static_cast<size_t>(count));
  for (KnownCase& one : cases) {
    one.known = between(64, 6000);
    one.fresh = between(32, 3000);
    const bool alone = most_load < 1 || share() < 0.5;
    one.load = alone ? 0 : 1 + static_cast<int>(share() * most_load);
    one.gbps = links[static_cast<size_t>(share() * static_cast<double>(links.size()))];
  }
  return cases;
}

// Of a case: seconds until the first token.
struct CaseTimes {
  std::array<std::vector<double>, 3> by_way;  // as kKnownWays; each has one at least
  std::vector<double> planned;                // where the router chose
  std::vector<size_t> chosen;                 // which way, each of these times

  double MedianOfWay(size_t way) const { return MedianOf(by_way[way]); }
  size_t best() const {
    size_t best = 0;
    for (size_t way = 1; way < by_way.size(); ++way) {
      if (MedianOfWay(way) < MedianOfWay(best)) best = way;
    }
    return best;
  }
  // Of going this way: by how much longer it takes than the best one, as a share.
  double RegretOf(size_t way) const { return MedianOfWay(way) / MedianOfWay(best()) - 1; }
  // Of what was chosen, each time: 0 where that was always the best one.
  double RegretOfChoice() const {
    double sum = 0;
    for (const size_t way : chosen) sum += RegretOf(way);
    return chosen.empty() ? 0 : sum / static_cast<double>(chosen.size());
  }
  // By the times themselves where the router chose, with what these vary by themselves.
  double RegretAsMeasured() const { return MedianOf(planned) / MedianOfWay(best()) - 1; }
};

struct RegretSummary {
  double mean = 0, p95 = 0, most = 0;
};
// p95: no more than 5 % are above it. All 0 where there are none.
inline RegretSummary SummaryOf(std::vector<double> regrets) {
  if (regrets.empty()) return {};
  std::sort(regrets.begin(), regrets.end());
  double sum = 0;
  for (const double regret : regrets) sum += regret;
  const size_t at = (regrets.size() * 95 + 99) / 100 - 1;
  return {sum / static_cast<double>(regrets.size()), regrets[at], regrets.back()};
}

}  // namespace runahead
