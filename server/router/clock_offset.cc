#include "server/router/clock_offset.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace runahead {

int64_t ClockOffset::DriftIn(int64_t time) {
  return static_cast<int64_t>(std::ceil(kDrift * std::abs(static_cast<double>(time))));
}

void ClockOffset::Add(int64_t sent, int64_t received, int64_t theirs) {
  const int64_t half = (received - sent + 1) / 2;
  const Sample sample{received, {theirs - (sent + half), half}};
  const std::optional<Estimate> before = At(received);
  if (before && std::abs(sample.estimate.offset - before->offset) > sample.estimate.error + before->error) {
    samples_.clear();
  }
  samples_.push_back(sample);
  if (samples_.size() > kSamples) samples_.pop_front();
}

std::optional<ClockOffset::Estimate> ClockOffset::At(int64_t now) const {
  std::optional<Estimate> best;
  for (const Sample& sample : samples_) {
    const int64_t error = sample.estimate.error + DriftIn(now - sample.at);
    if (!best || error < best->error) best = {sample.estimate.offset, error};
  }
  return best;
}

void PeerClock::Asked(uint64_t ping, absl::Time now) {
  MutexLock lock(mu_);
  under_way_.push_back({ping, absl::ToUnixNanos(now)});
  if (under_way_.size() > ClockOffset::kSamples) under_way_.pop_front();
}

std::optional<absl::Time> PeerClock::Answered(uint64_t ping, int64_t theirs_ns, absl::Time now) {
  MutexLock lock(mu_);
  const auto found =
      std::find_if(under_way_.begin(), under_way_.end(), [ping](const Ping& p) { return p.number == ping; });
  if (found == under_way_.end()) return std::nullopt;
  const int64_t sent = found->sent;
  if (theirs_ns != 0) offset_.Add(sent, absl::ToUnixNanos(now), theirs_ns);
  under_way_.erase(found);
  return absl::FromUnixNanos(sent);
}

std::optional<ClockOffset::Estimate> PeerClock::At(absl::Time now) const {
  MutexLock lock(mu_);
  return offset_.At(absl::ToUnixNanos(now));
}

}  // namespace runahead
