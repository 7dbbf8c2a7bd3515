#include "client/line_timing.h"

#include <algorithm>
#include <map>

#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

constexpr int kLeastRounds = 3;
constexpr size_t kLeastLengths = 5;

class Timing {
 public:
  Timing(const LineTimingOptions& options, const ChainTimer& timer, const Clock& clock, const TimingProgress& progress)
      : options_(options), timer_(timer), clock_(clock), progress_(progress), began_(clock.Now()) {}

  absl::StatusOr<LineTimes> Run() {
    RUNAHEAD_RETURN_IF_ERROR(WarmUp());
    probes_ = ProbesOf(lengths_, options_.workers);
    std::vector<std::vector<double>> times(probes_.size());
    int round = 0;
    for (bool going = true; going && round < options_.repeats; round += going) {
      for (size_t i = 0; i < probes_.size() && going; ++i) {
        going = round == 0 || took() + Expected(probes_[i].tokens) <= options_.budget;
        if (!going) break;
        progress_(probes_[i], round + 1, Left(i, round));
        RUNAHEAD_ASSIGN_OR_RETURN(const double seconds, Time(probes_[i].parts));
        times[i].push_back(seconds);
      }
    }
    LineTimes found{{}, round, runs_, took()};
    for (size_t i = 0; i < probes_.size(); ++i) found.probes.push_back({probes_[i], SampleOf(std::move(times[i]))});
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
      expected_[tokens] = clock_.Now() - began;
    }
    return absl::OkStatus();
  }

  // Whether there is time for a further length.
  bool Fits(int64_t tokens) {
    std::vector<int64_t> more = lengths_;
    more.push_back(tokens);
    absl::Duration round;
    for (const Probe& probe : ProbesOf(more, options_.workers)) round += Expected(probe.tokens);
    return took() + Expected(tokens) + kLeastRounds * round <= options_.budget;
  }

  // A chain is no slower than its head alone would be, mostly; what is longer than all so far grows with the square.
  absl::Duration Expected(int64_t tokens) const {
    if (const auto found = expected_.find(tokens); found != expected_.end()) return found->second;
    const auto& [longest, duration] = *expected_.rbegin();
    const double times = static_cast<double>(tokens) / static_cast<double>(longest);
    return duration * (times * times);
  }

  // For the rest, this probe of this round included.
  absl::Duration Left(size_t at, int round) const {
    absl::Duration rest, all;
    for (size_t i = 0; i < probes_.size(); ++i) {
      const absl::Duration expected = Expected(probes_[i].tokens);
      all += expected;
      if (i >= at) rest += expected;
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
  std::map<int64_t, absl::Duration> expected_;  // by tokens
  std::vector<Probe> probes_;
  int64_t runs_ = 0;
};

}  // namespace

absl::StatusOr<LineTimes> TimeLine(const LineTimingOptions& options, const ChainTimer& timer, const Clock& clock,
                                   const TimingProgress& progress) {
  return Timing(options, timer, clock, progress).Run();
}

}  // namespace runahead
