#include "server/router/placed_jobs.h"

#include <algorithm>
#include <utility>

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
  view.interleave = interleave;
  view.layer_s = layer_s;
}

void PlacedJobs::Add(PlacedJob job) {
  Given given{std::move(job)};
  if (given.interleaved) {
    Given& longer = *Computed();
    longer.interleave.Take(given.tokens);
    given.longer = longer.placement;
    for (Given& other : jobs_) other.end += given.computing;
  }
  jobs_.push_back(std::move(given));
  LookAhead();
}

void PlacedJobs::Finish(uint64_t placement) {
  Remove(placement);
  LookAhead();
}

void PlacedJobs::Withdraw(uint64_t placement) {
  const std::optional<Given> job = Remove(placement);
  if (job && job->interleaved) {
    for (Given& other : jobs_) other.end -= job->computing;
    Given* const computed = Computed();
    if (computed != nullptr && computed->placement == job->longer) computed->interleave.GiveBack(job->tokens);
  }
  LookAhead();
}

PlacedJobs::Given* PlacedJobs::Computed() {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [](const Given& job) { return !job.interleaved; });
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

void PlacedJobs::LookAhead() {
  outlook_ = Outlook();
  bool interleaved = false;
  for (const Given& job : jobs_) {
    outlook_.done = std::max(outlook_.done, job.end);
    interleaved |= job.interleaved;
    outlook_.unfinished += !job.interleaved;
  }
  const Given* const computed = Computed();
  if (computed == nullptr) return;
  if (outlook_.unfinished >= kMaxUnfinishedJobs) outlook_.place_free = computed->end;
  if (interleaved) return;
  outlook_.interleave = computed->interleave;
  outlook_.layer_s = absl::ToDoubleSeconds(computed->layer);
}

}  // namespace runahead
