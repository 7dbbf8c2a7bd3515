#include "client/profile/line_timing.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "client/measure/median.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int kLeastRounds = 3;
constexpr size_t kLeastLengths = 5;

TimedProbe TimedOf(const Probe& probe, const std::vector<double>& times) {
  return {probe, MedianOf(times), 2 * MedianDeviationOf(times)};
}

class Timing {
 public:
  Timing(const LineTimingOptions& options, const ChainTimer& timer, const Clock& clock, const TimingProgress& progress)
      : options_(options), timer_(timer), clock_(clock), progress_(progress), began_(clock.Now()) {}

  absl::StatusOr<LineTimes> Run() {
    RUNAHEAD_RETURN_IF_ERROR(WarmUp());
    probes_ = ProbesOf(lengths_, options_.workers);
    for (const Probe& probe : probes_) durations_.push_back(Expected(probe));
    std::vector<std::vector<double>> times(probes_.size());
    int round = 0;
    for (bool going = true; going && round < options_.repeats; round += going) {
      for (size_t i = 0; i < probes_.size() && going; ++i) {
        going = round == 0 || took() + durations_[i] <= options_.budget;
        if (!going) break;
        progress_(probes_[i], round + 1, Left(i, round));
        const absl::Time began = clock_.Now();
        RUNAHEAD_ASSIGN_OR_RETURN(const double seconds, Time(probes_[i].parts));
        durations_[i] = clock_.Now() - began;
        times[i].push_back(seconds);
      }
    }
    LineTimes found{{}, round, runs_, took()};
    for (size_t i = 0; i < probes_.size(); ++i) found.probes.push_back(TimedOf(probes_[i], times[i]));
    return found;
  }

 private:
  absl::Duration took() const { return clock_.Now() - began_; }

  absl::StatusOr<double> Time(absl::Span<const int64_t> parts) {
    ++runs_;
    return timer_(parts);
  }

  absl::Status WarmUp() {
    const bool given = !options_.tokens.empty();
    for (const int64_t tokens : given ? options_.tokens : ProbeLengths(options_.longest, options_.workers)) {
      if (!given && lengths_.size() >= kLeastLengths && !Fits(tokens)) return absl::OkStatus();
      const Probe probe{Probe::Kind::kSingle, 0, tokens, {tokens}};
      progress_(probe, 0, std::max(options_.budget - took(), absl::ZeroDuration()));
      const absl::Time began = clock_.Now();
      const absl::Status status = Time(probe.parts).status();
      if (!given && absl::IsOutOfRange(status) && !lengths_.empty()) return absl::OkStatus();
      RUNAHEAD_RETURN_IF_ERROR(status);
      lengths_.push_back(tokens);
      singles_[tokens] = clock_.Now() - began;
    }
    return absl::OkStatus();
  }

  // Whether there is time for a further length.
  bool Fits(int64_t tokens) {
    std::vector<int64_t> more = lengths_;
    more.push_back(tokens);
    absl::Duration round;
    for (const Probe& probe : ProbesOf(more, options_.workers)) round += Expected(probe);
    return took() + Single(tokens) + kLeastRounds * round <= options_.budget;
  }

  absl::Duration Expected(const Probe& probe) const {
    const double share =
        probe.kind == Probe::Kind::kChain ? std::min(1.0, 1.5 / static_cast<double>(probe.parts.size())) : 1;
    return share * Single(probe.tokens);
  }

  // On one worker. What is longer than all so far grows as it has, and a little faster; at most with the square.
  absl::Duration Single(int64_t tokens) const {
    if (const auto found = singles_.find(tokens); found != singles_.end()) return found->second;
    const auto last = std::prev(singles_.end());
    double power = 2;
    if (singles_.size() > 1) {
      const auto before = std::prev(last);
      const double growth = std::log(absl::FDivDuration(last->second, before->second));
      const double length = std::log(static_cast<double>(last->first) / static_cast<double>(before->first));
      power = std::clamp(growth / length + 0.3, 1.0, 2.0);
    }
    return last->second * std::pow(static_cast<double>(tokens) / static_cast<double>(last->first), power);
  }

  // For the rest, this probe of this round included.
  absl::Duration Left(size_t at, int round) const {
    absl::Duration rest, all;
    for (size_t i = 0; i < probes_.size(); ++i) {
      all += durations_[i];
      if (i >= at) rest += durations_[i];
    }
    const absl::Duration left = rest + (options_.repeats - 1 - round) * all;
    return round == 0 ? left : std::min(left, options_.budget - took());
  }

  const LineTimingOptions& options_;
  const ChainTimer& timer_;
  const Clock& clock_;
  const TimingProgress& progress_;
  const absl::Time began_;
  std::vector<int64_t> lengths_;
  std::map<int64_t, absl::Duration> singles_;  // by tokens
  std::vector<Probe> probes_;
  std::vector<absl::Duration> durations_;  // of each: as expected, then of its last run
  int64_t runs_ = 0;
};

}  // namespace

absl::StatusOr<LineTimes> TimeLine(const LineTimingOptions& options, const ChainTimer& timer, const Clock& clock,
                                   const TimingProgress& progress) {
  return Timing(options, timer, clock, progress).Run();
}

}  // namespace runahead
