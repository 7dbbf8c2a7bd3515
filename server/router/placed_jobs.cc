#include "server/router/placed_jobs.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "scheduler/placement/together.h"

namespace runahead {
namespace {

// A job that is past its predicted end is expected to take this much longer.
constexpr absl::Duration kAboutToEnd = absl::Milliseconds(1);

double SecondsUntil(absl::Time end, absl::Time now) {
  if (end == absl::InfinitePast()) return 0;
  return absl::ToDoubleSeconds(std::max(end - now, kAboutToEnd));
}

}  // namespace

void PlacedJobs::Outlook::Fill(absl::Time now, WorkerView& view) const {
  view.unfinished_jobs = unfinished;
  view.backlog_s = SecondsUntil(done, now);
  view.place_s = SecondsUntil(place_free, now);
  view.room = room;
  view.interleave = interleave;
  view.overtake = overtake;
  view.layer_s = layer_s;
}

size_t PlacedJobs::Add(PlacedJob job) {
  Given given{std::move(job)};
  given.place = given.placement;
  if (given.alone && !given.overtakes && given.tokens <= outlook_.room) given.place = Last()->place;
  const Given* const computed = Computed();
  for (Given& other : jobs_) {
    if (!given.overtakes || other.overtakes) continue;
    if (other.place == computed->place && !outlook_.interleave.Fits(given.expected_s)) continue;
    other.allowance.Take(given.expected_s);
    other.end += given.computing;
    given.overtaken.push_back(other.placement);
  }
  const size_t overtaken = given.overtaken.size();
  jobs_.push_back(std::move(given));
  LookAhead();
  return overtaken;
}

void PlacedJobs::Finish(uint64_t placement) {
  Remove(placement);
  LookAhead();
}

void PlacedJobs::Withdraw(uint64_t placement) {
  const std::optional<Given> job = Remove(placement);
  for (Given& other : jobs_) {
    if (!job || std::count(job->overtaken.begin(), job->overtaken.end(), other.placement) == 0) continue;
    other.end -= job->computing;
    other.allowance.GiveBack(job->expected_s);
  }
  LookAhead();
}

PlacedJobs::Given* PlacedJobs::Computed() {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [](const Given& job) { return !job.overtakes; });
  return found == jobs_.end() ? nullptr : &*found;
}

std::optional<PlacedJobs::Given> PlacedJobs::Remove(uint64_t placement) {
  const auto found =
      std::find_if(jobs_.begin(), jobs_.end(), [placement](const Given& job) { return job.placement == placement; });
  if (found == jobs_.end()) return std::nullopt;
  const Given job = *found;
  jobs_.erase(found);
  return job;
}

const PlacedJobs::Given* PlacedJobs::Last() const {
  const auto found = std::find_if(jobs_.rbegin(), jobs_.rend(), [](const Given& job) { return !job.overtakes; });
  return found == jobs_.rend() ? nullptr : &*found;
}

// What is computed has its company already.
int64_t PlacedJobs::RoomInLastPlace(uint64_t computed) const {
  const Given& last = *Last();
  if (last.place == computed) return 0;
  int64_t taken = 0;
  for (const Given& job : jobs_) {
    if (job.overtakes || job.place != last.place) continue;
    if (!job.alone || !FitTogether(0, job.tokens)) return 0;
    taken += job.tokens;
  }
  return kRowsTogether - taken;
}

void PlacedJobs::LookAhead() {
  outlook_ = Outlook();
  const Given* const computed = Computed();
  double computed_bears_s = std::numeric_limits<double>::infinity(), behind_bear_s = computed_bears_s;
  std::set<uint64_t> places;
  for (const Given& job : jobs_) {
    outlook_.done = std::max(outlook_.done, job.end);
    if (job.overtakes) {
      outlook_.layer_s += job.expected_s;
      continue;
    }
    places.insert(job.place);
    double& bear_s = job.place == computed->place ? computed_bears_s : behind_bear_s;
    bear_s = std::min(bear_s, BearsS(job.expected_s, job.allowance));
  }
  outlook_.unfinished = static_cast<int>(places.size());
  if (computed == nullptr) return;
  outlook_.room = RoomInLastPlace(computed->place);
  if (outlook_.unfinished >= kMaxUnfinishedJobs) outlook_.place_free = computed->end;
  outlook_.interleave = Allowance::Left(std::min(behind_bear_s, computed_bears_s));
  if (outlook_.unfinished > 1) outlook_.overtake = Allowance::Left(behind_bear_s);
  outlook_.layer_s += absl::ToDoubleSeconds(computed->layer);
}

}  // namespace runahead
