#include "client/profile/line_profile.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/measure/chain_guess.h"
#include "client/measure/median.h"
#include "client/measure/solve_rising.h"
#include "client/plan/cost_file.h"
#include "client/plan/cost_keys.h"
#include "client/plan/fit_file.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/chain_simulator.h"

namespace runahead {
namespace {

// What medians of a few runs differ by on a quiet machine.
constexpr double kLeastNoise = 0.03;
// What a link must add to be told from what the model does not describe.
constexpr double kLeastDelay = 0.05;
// Links that differ by less are alike.
constexpr double kAlike = 1.15;
// Factors, links and factors again: each is found with the others as they are known.
constexpr int kPasses = 3;

// What chains are off by in the mean for no reason that is known.
constexpr double kLeastBias = 0.015;
constexpr double kLeastTogether = 0.95;  // less is no effect of working together
constexpr double kMostTogether = 10;

constexpr double kLeastFactor = 0.01;
constexpr double kMostFactor = 100;
constexpr double kLeastLatency = 1e-7;
constexpr double kMostLatency = 10;

// Digits beyond the third are noise, and hard to read.
double Rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::pow(10, std::floor(std::log10(std::abs(value))) - 3);
  return std::round(value / unit) * unit;
}

bool Alike(double a, double b) {
  return a == b || std::max(a, b) < kAlike * std::min(a, b);
}

class Analysis {
 public:
  Analysis(CostModel start, absl::Span<const TimedProbe> probes, int workers) : workers_(workers) {
    found_.fit.model = std::move(start);
    std::vector<double> noises;
    for (const TimedProbe& timed : probes) {
      by_kind_[timed.probe.kind].push_back(timed);
      noises.push_back(timed.noise_s / timed.seconds);
    }
    noise_ = std::max(kLeastNoise, MedianOf(std::move(noises)));
  }

  absl::StatusOr<LineProfile> Run() {
    RUNAHEAD_RETURN_IF_ERROR(FitSingles());
    if (workers_ > 1) {
      model().worker_factors.assign(workers_, 1);
      model().links.assign(workers_ - 1, {});
      for (int pass = 0; pass < kPasses; ++pass) {
        for (const TimedProbe& tail : by_kind_[Probe::Kind::kTail]) FindFactor(tail);
        found_.links.assign(workers_ - 1, {});
        for (int link = 0; link + 1 < workers_; ++link) FindLink(link);
      }
      FindTogetherFactor();
      DropWhatChainsDeny();
      Simplify();
      JudgeChains();
    }
    return std::move(found_);
  }

 private:
  CostModel& model() { return found_.fit.model; }

  double NoiseOf(const TimedProbe& timed) const { return std::max(noise_, timed.noise_s / timed.seconds); }

  absl::Status FitSingles() {
    FitFile file;
    file.model = model();
    file.find_floor = true;
    for (const TimedProbe& single : by_kind_[Probe::Kind::kSingle]) {
      file.runs.push_back({Schedule::kKvr, single.probe.parts, single.seconds});
    }
    RUNAHEAD_ASSIGN_OR_RETURN(found_.fit, FitOf(file));
    noise_ = std::max(noise_, 2 * found_.fit.rms_error);
    found_.runs = std::move(file.runs);
    return absl::OkStatus();
  }

  // What a probe would have taken if the model described single prompts of its length exactly.
  double Target(const TimedProbe& timed) {
    for (size_t i = 0; i < found_.runs.size(); ++i) {
      if (found_.runs[i].parts[0] != timed.probe.tokens) continue;
      return timed.seconds * (1 + found_.fit.residuals[i].error);
    }
    return timed.seconds;
  }

  void FindFactor(const TimedProbe& tail) {
    double& factor = model().worker_factors[tail.probe.number];
    factor = SolveRising(kLeastFactor, kMostFactor, Target(tail), [&](double tried) {
      factor = tried;
      return PredictSeconds(model(), tail.probe.parts);
    });
    if (std::abs(factor - 1) <= NoiseOf(tail)) factor = 1;
    factor = Rounded(factor);
  }

  // With the fewest tokens, and with the most.
  std::pair<TimedProbe, TimedProbe> ProbesOfLink(int number) {
    std::vector<TimedProbe> probes;
    for (const TimedProbe& timed : by_kind_[Probe::Kind::kLink]) {
      if (timed.probe.number == number) probes.push_back(timed);
    }
    return {probes.front(), probes.back()};
  }

  void FindLink(int number) {
    const auto [small, large] = ProbesOfLink(number);
    LinkCost& link = model().links[number];
    LinkFinding& finding = found_.links[number];
    link = {};
    const auto seen = [this](const TimedProbe& timed) {
      const double delay = Target(timed) / PredictSeconds(model(), timed.probe.parts) - 1;
      return delay > std::max(kLeastDelay, NoiseOf(timed));
    };
    finding.bandwidth_seen = seen(large);
    finding.latency_seen = small.probe.tokens < large.probe.tokens && seen(small);
    // Each with the other as it is known by now; the small probe has little of the bandwidth, so this ends soon.
    for (int step = 0; step < 20 && (finding.bandwidth_seen || finding.latency_seen); ++step) {
      if (finding.bandwidth_seen) link.bytes_per_s = Bandwidth(link, large.probe, Target(large));
      if (finding.latency_seen) link.latency_s = Latency(link, small.probe, Target(small));
    }
    // What the other explains is not seen for its own.
    if (finding.latency_seen && !Matters(small.probe, link.latency_s, 0)) {
      finding.latency_seen = false;
      link.latency_s = 0;
    }
    if (finding.bandwidth_seen && !Matters(large.probe, link.bytes_per_s, std::numeric_limits<double>::infinity())) {
      finding.bandwidth_seen = false;
      link.bytes_per_s = std::numeric_limits<double>::infinity();
    }
    link = {Rounded(link.latency_s), Rounded(link.bytes_per_s)};
    AddBounds(small, large, link, &finding);
  }

  // Whether `field` of a link adds to the probe's time what can be seen.
  bool Matters(const Probe& probe, double& field, double none) {
    const double with = PredictSeconds(model(), probe.parts);
    const double found = std::exchange(field, none);
    const double without = PredictSeconds(model(), probe.parts);
    field = found;
    return with > without * (1 + kLeastDelay / 2);
  }

  double Bandwidth(LinkCost& link, const Probe& probe, double target) {
    const double seconds_per_byte =
        SolveRising(1 / BytesPerSecond(kMaxLinkGbps), 1 / BytesPerSecond(kMinLinkGbps), target, [&](double tried) {
          link.bytes_per_s = 1 / tried;
          return PredictSeconds(model(), probe.parts);
        });
    return 1 / seconds_per_byte;
  }

  double Latency(LinkCost& link, const Probe& probe, double target) {
    return SolveRising(kLeastLatency, kMostLatency, target, [&](double tried) {
      link.latency_s = tried;
      return PredictSeconds(model(), probe.parts);
    });
  }

  // Slower links than these bounds would have been seen.
  void AddBounds(const TimedProbe& small, const TimedProbe& large, LinkCost& link, LinkFinding* finding) {
    const auto most = [&](const TimedProbe& timed) {
      const double tolerance = 1 + std::max(kLeastDelay, NoiseOf(timed));
      return std::max(Target(timed), PredictSeconds(model(), timed.probe.parts)) * tolerance;
    };
    const LinkCost found = link;
    if (!finding->bandwidth_seen) finding->least_bytes_per_s = Rounded(Bandwidth(link, large.probe, most(large)));
    link = found;
    if (!finding->latency_seen) finding->most_latency_s = Rounded(Latency(link, small.probe, most(small)));
    link = found;
  }

  // Such that predictions for chains are too long as often and as much as they are too short. Where links hold the
  // chain up, its times say little of this: what is within the noise stays.
  void FindTogetherFactor() {
    double& factor = model().together_factor;
    factor = 1;
    if (std::abs(ChainBias() - 1) < kLeastBias) return;
    factor = Rounded(SolveRising(kLeastTogether, kMostTogether, 1, [&](double tried) {
      factor = tried;
      return ChainBias();
    }));
  }

  // How many times too long predictions for chains are; the geometric mean.
  double ChainBias() {
    const std::vector<TimedProbe>& chains = by_kind_[Probe::Kind::kChain];
    double sum = 0;
    for (const TimedProbe& chain : chains) sum += std::log(PredictSeconds(model(), chain.probe.parts) / chain.seconds);
    return std::exp(sum / static_cast<double>(chains.size()));
  }

  // Links that delay their probes delay chains as well: where these are described no worse without them, something else
  // delayed the probes. So it is with factors, which are likelier: there chains must be described far better without.
  void DropWhatChainsDeny() {
    const auto is_seen = [](const LinkFinding& finding) { return finding.bandwidth_seen || finding.latency_seen; };
    const bool seen = std::any_of(found_.links.begin(), found_.links.end(), is_seen);
    if (seen && Without([this] { model().links.assign(workers_ - 1, {}); }, 1)) {
      for (int link = 0; link + 1 < workers_; ++link) {
        found_.links[link] = {};
        const auto [small, large] = ProbesOfLink(link);
        AddBounds(small, large, model().links[link], &found_.links[link]);
      }
    }
    Without([this] { model().worker_factors.assign(workers_, 1); }, 0.25);
  }

  // Whether the model stays as `change` makes it: if the chains' error falls to `share` of what it is, or below.
  bool Without(const std::function<void()>& change, double share) {
    const CostModel before = model();
    const double error = ChainError();
    change();
    FindTogetherFactor();
    if (ChainError() <= share * error) return true;
    model() = before;
    return false;
  }

  // Squares of the logarithms, added up.
  double ChainError() {
    double sum = 0;
    for (const TimedProbe& chain : by_kind_[Probe::Kind::kChain]) {
      const double error = std::log(PredictSeconds(model(), chain.probe.parts) / chain.seconds);
      sum += error * error;
    }
    return sum;
  }

  // One number stands for what is alike: then the file answers for lines of any length.
  void Simplify() {
    const auto is_one = [](double factor) { return factor == 1; };
    std::vector<double>& factors = model().worker_factors;
    if (std::all_of(factors.begin(), factors.end(), is_one)) factors.clear();
    std::vector<LinkCost>& links = model().links;
    LinkCost sum{0, 0};
    for (const LinkCost& link : links) {
      if (!Alike(link.bytes_per_s, links[0].bytes_per_s) || !Alike(link.latency_s, links[0].latency_s)) return;
      sum = {sum.latency_s + link.latency_s, sum.bytes_per_s + link.bytes_per_s};
    }
    const double count = static_cast<double>(links.size());
    links = {{Rounded(sum.latency_s / count), Rounded(sum.bytes_per_s / count)}};
  }

  void JudgeChains() {
    std::vector<double> errors;
    CostFit& fit = found_.fit;
    for (const TimedProbe& chain : by_kind_[Probe::Kind::kChain]) {
      const double predicted_s = PredictSeconds(fit.model, chain.probe.parts);
      const double error = predicted_s / chain.seconds - 1;
      found_.runs.push_back({Schedule::kKvr, chain.probe.parts, chain.seconds});
      fit.residuals.push_back({predicted_s, error});
      errors.push_back(std::abs(error));
    }
    double sum = 0;
    for (const FitResidual& residual : fit.residuals) {
      sum += residual.error * residual.error;
      fit.worst_error = std::max(fit.worst_error, std::abs(residual.error));
    }
    fit.rms_error = std::sqrt(sum / static_cast<double>(fit.residuals.size()));
    found_.chain_error = MedianOf(errors);
    if (found_.chain_error > kPoorChainError) {
      fit.doubts.push_back(absl::StrFormat("the median error over %d chains is %.0f%%, more than %.0f%%", errors.size(),
                                           100 * found_.chain_error, 100 * kPoorChainError));
    }
  }

  const int workers_;
  double noise_ = 0;  // what a time is off by, mostly: repetitions, and what the constants leave unexplained
  std::map<Probe::Kind, std::vector<TimedProbe>> by_kind_;
  LineProfile found_;
};

}  // namespace

absl::StatusOr<LineProfile> ProfileLine(CostModel start, absl::Span<const TimedProbe> probes, int workers) {
  start.causal_skip = true;
  start.receive_ahead_layers = kRunaheadReceiveAhead;
  return Analysis(std::move(start), probes, workers).Run();
}

}  // namespace runahead
