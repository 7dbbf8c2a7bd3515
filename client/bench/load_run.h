// Sends a load to a door and takes the times of its answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "client/bench/arrivals.h"
#include "client/bench/bench_door.h"
#include "client/bench/bench_record.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

struct LoadOptions {
  int64_t requests = 1;
  int64_t concurrency = 1;  // most that are under way at once
  // Whether requests have planned times. Without, each starts when it is sent.
  bool planned = false;
  absl::Duration duration = absl::InfiniteDuration();  // after which nothing is sent any more
};

struct LoadOutcome {
  std::vector<BenchRecord> records;  // of all that were sent, in the order of their starts
  int64_t unsent = 0;
  int64_t peak = 0;  // most that were under way at once
};

struct LoadCounts {
  int64_t under_way = 0;
  int64_t ended = 0;
  int64_t failed = 0;  // of those that have ended
};

class LoadRun {
 public:
  // The request of a number, from 0. Called on the thread of Run, before the request's time.
  using Source = std::function<BenchRequest(int64_t)>;

  // Both outlive it. Times are those of `clock`.
  LoadRun(BenchDoor& door, Clock& clock) : door_(door), clock_(clock) {}

  // Blocks until every request that was sent has ended. May be called again when it has returned.
  LoadOutcome Run(const LoadOptions& options, const Source& source, PoissonArrivals arrivals) RUNAHEAD_EXCLUDES(mu_);

  // Sends nothing more and cancels what is under way, in this run and in later ones. Any thread.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

  LoadCounts counts() const RUNAHEAD_EXCLUDES(mu_);  // any thread

 private:
  class Recorder;
  struct Turn {
    size_t place;  // among `records_`
    absl::Time start;
  };
  // Waits until a request may be sent; nothing where it never may.
  std::optional<Turn> AwaitTurn(const LoadOptions& options, absl::Duration planned) RUNAHEAD_EXCLUDES(mu_);
  void Ended(size_t place, const BenchRecord& record) RUNAHEAD_EXCLUDES(mu_);

  BenchDoor& door_;
  Clock& clock_;
  absl::Time began_;  // of the thread of Run, and constant while requests are under way
  mutable Mutex mu_;
  CondVar changed_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  LoadCounts counts_ RUNAHEAD_GUARDED_BY(mu_);
  int64_t peak_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::Time held_until_ RUNAHEAD_GUARDED_BY(mu_);  // the last one that waited for a place
  std::vector<BenchRecord> records_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
