#include "server/base/progress_meter.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace runahead {
namespace {

// The weight of the last unit in the mean of what units of its size take.
constexpr double kNewest = 0.25;

}  // namespace

void ProgressMeter::Expect(double work, absl::Duration took, bool compiles) {
  MutexLock lock(mu_);
  compiles_ = compiles;
  Measured(work, took);
}

void ProgressMeter::Measured(double work, absl::Duration took) {
  const double per_work = absl::ToDoubleSeconds(took) / std::max(work, 1.0);
  const auto [known, fresh] = seconds_per_work_.emplace(SizeOf(work), per_work);
  if (!fresh) known->second += kNewest * (per_work - known->second);
}

void ProgressMeter::Wanted() {
  MutexLock lock(mu_);
  if (!wanted_) wanted_ = clock_.Now();
}

void ProgressMeter::Awake() {
  MutexLock lock(mu_);
  wanted_.reset();
  awake_ = clock_.Now();
}

void ProgressMeter::Resting() {
  MutexLock lock(mu_);
  awake_.reset();
}

void ProgressMeter::Begin(double work, bool whole) {
  MutexLock lock(mu_);
  units_.push_back({work, whole, clock_.Now()});
}

void ProgressMeter::End() {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  const Unit unit = units_.front();
  units_.pop_front();
  if (unit.whole) Measured(unit.work, now - std::max(unit.begun, last_end_));
  last_end_ = now;
  ++done_;
}

void ProgressMeter::SetJob(uint64_t job, JobActivity activity, const std::string& waits_for) {
  MutexLock lock(mu_);
  JobState& state = jobs_[job];
  state.told.job = job;
  state.told.steps += activity == JobActivity::kComputing;
  state.told.activity = activity;
  state.told.waits_for = waits_for;
  state.since = clock_.Now();
}

void ProgressMeter::EndJob(uint64_t job) {
  MutexLock lock(mu_);
  jobs_.erase(job);
}

int ProgressMeter::SizeOf(double work) {
  return std::ilogb(std::max(work, 1.0));
}

// By the size itself, else by the next smaller one, from which work tells how much longer it takes; else by a larger
// one.
absl::Duration ProgressMeter::Usual(double work) const {
  if (seconds_per_work_.empty()) return absl::ZeroDuration();
  auto known = seconds_per_work_.upper_bound(SizeOf(work));
  if (known != seconds_per_work_.begin()) --known;
  return absl::Seconds(known->second * std::max(work, 1.0));
}

ProgressMeter::Reading ProgressMeter::Read() const {
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  Reading reading;
  reading.done = done_;
  absl::Time since = absl::InfiniteFuture();
  if (awake_) since = std::min(since, *awake_);
  if (wanted_ && !awake_) since = std::min(since, *wanted_);
  if (!units_.empty()) {
    const Unit& unit = units_.front();
    since = std::min(since, std::max(unit.begun, last_end_));
    reading.usual = Usual(unit.work);
    const bool first_of_size = !seconds_per_work_.contains(SizeOf(unit.work));
    reading.first = patient_ || seconds_per_work_.empty() || (compiles_ && first_of_size);
  }
  reading.computing = since != absl::InfiniteFuture();
  if (reading.computing) reading.since = now - since;
  for (const auto& [id, state] : jobs_) {
    reading.jobs.push_back(state.told);
    reading.jobs.back().since = now - state.since;
  }
  return reading;
}

}  // namespace runahead
