// What a thread, and the device behind it, gets done: for those who judge whether it hangs, whatever the rest of the
// process does.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

// What a job does now.
enum class JobActivity {
  kQueued,      // others come first
  kComputing,   // it has all that its next step needs
  kWaiting,     // for what others bring, or take
  kDelivering,  // it is computed; others have not acknowledged all of it yet
};

// Thread-safe; its lock is held for some 100 ns. One thread works: it rests until something is wanted of it. What it
// hands to the device, or computes itself, is a unit of so much work; units end in the order in which they began.
class ProgressMeter {
 public:
  struct Job {
    uint64_t job = 0;
    JobActivity activity = JobActivity::kQueued;
    std::string waits_for;  // whom or what; empty: nobody
    uint64_t steps = 0;     // that it has begun
    absl::Duration since;   // for how long it has done that
  };
  struct Reading {
    bool computing = false;  // there is something to do that waits for nobody; else it waits, or has nothing to do
    // For so long without a unit's end, or without the thread's taking up what is wanted.
    absl::Duration since;
    absl::Duration
        usual;  // what a unit of that size took here; 0: no unit is under way, or nothing like it was measured
    // No unit of its size has ended yet, and it may be that kernels are compiled for it; or nothing at all is known.
    bool first = false;
    uint64_t done = 0;  // units
    std::vector<Job> jobs;
  };

  // `patient`: units may take long for reasons of their own, so each counts as the first of its size.
  explicit ProgressMeter(Clock& clock = RealClock(), bool patient = false) : clock_(clock), patient_(patient) {}

  // What a unit of so much work took at the start, before the thread had any; by it units of all sizes are reckoned.
  // `compiles`: the first of a size may still compile kernels. Without that only a meter that nothing is known of, and
  // a patient one, read `first`.
  void Expect(double work, absl::Duration took, bool compiles) RUNAHEAD_EXCLUDES(mu_);

  // From any thread: there is something for the thread to do.
  void Wanted() RUNAHEAD_EXCLUDES(mu_);
  // From the thread: it takes up what is wanted; it is about to rest.
  void Awake() RUNAHEAD_EXCLUDES(mu_);
  void Resting() RUNAHEAD_EXCLUDES(mu_);

  // A unit begins. `work` grows with the time that it takes; units of as much, within a factor of two, are alike. One
  // that is not `whole` takes at most what such a unit takes, and its end tells nothing of how long others take.
  void Begin(double work, bool whole = true) RUNAHEAD_EXCLUDES(mu_);
  // The oldest unit that has not ended ends.
  void End() RUNAHEAD_EXCLUDES(mu_);

  void SetJob(uint64_t job, JobActivity activity, const std::string& waits_for = "") RUNAHEAD_EXCLUDES(mu_);
  void EndJob(uint64_t job) RUNAHEAD_EXCLUDES(mu_);

  Reading Read() const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Unit {
    double work;
    bool whole;
    absl::Time begun;
  };
  struct JobState {
    Job told;  // but for `since`
    absl::Time since;
  };
  static int SizeOf(double work);
  void Measured(double work, absl::Duration took) RUNAHEAD_REQUIRES(mu_);
  absl::Duration Usual(double work) const RUNAHEAD_REQUIRES(mu_);

  Clock& clock_;
  const bool patient_;
  mutable Mutex mu_;
  std::optional<absl::Time> wanted_ RUNAHEAD_GUARDED_BY(mu_);  // since when, and not taken up
  std::optional<absl::Time> awake_ RUNAHEAD_GUARDED_BY(mu_);   // since when, without a look at what is wanted
  std::deque<Unit> units_ RUNAHEAD_GUARDED_BY(mu_);            // under way
  bool compiles_ RUNAHEAD_GUARDED_BY(mu_) = true;
  absl::Time last_end_ RUNAHEAD_GUARDED_BY(mu_) = absl::InfinitePast();
  std::map<int, double> seconds_per_work_ RUNAHEAD_GUARDED_BY(mu_);  // by size
  std::map<uint64_t, JobState> jobs_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t done_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

// A meter, and what it is of: "prefill", "decode", "control" ...
struct NamedMeter {
  std::string name;
  std::shared_ptr<const ProgressMeter> meter;
};

}  // namespace runahead
