// Which workers of a role get no work for a time because they fail again and again by their own fault. One that fails
// ends its requests early and so looks free: without this it would attract all traffic.
#pragma once

#include <deque>
#include <vector>

#include "absl/time/time.h"

namespace runahead {

// A worker is ejected when it has failed so often without a success between: one bad request in a row of good ones is
// no reason, and fewer than five would let a burst of bad luck take a good worker.
inline constexpr int kFailuresInARow = 5;
// Or when it fails now and then, but more than the others do: where at least so many workers of the role have each been
// judged so often, and its rate of success is so far below that of the others together.
inline constexpr int kRatedWorkers = 5;
inline constexpr int kRatedRequests = 20;
inline constexpr double kRateBehind = 0.25;
// The n-th time it lasts n times the first, up to the longest. It is the first time again after so long without.
inline constexpr absl::Duration kFirstEjection = absl::Seconds(30);
inline constexpr absl::Duration kLongestEjection = absl::Minutes(5);

// Workers are numbered from 0. Time is an argument; not thread-safe.
class Ejection {
 public:
  explicit Ejection(int workers) : records_(workers) {}

  // What a worker did with a request. Of failures only its own: not a client's cancel, deadline or bad input, and not
  // what another worker did. After its return the first failure ejects it again, until it has succeeded once.
  void Succeeded(int worker);
  void Failed(int worker, absl::Time now);
  // It is another process now.
  void Forget(int worker) { records_[worker] = Record(); }

  // When its last ejection ends or ended.
  absl::Time until(int worker) const { return records_[worker].until; }

  // Who is to get no work at `now`, by worker, of those that are `ready`: at most half of these, rounded down, so never
  // the last one; those that were ejected first go before others.
  std::vector<bool> Ejected(const std::vector<bool>& ready, absl::Time now) const;

 private:
  struct Record {
    int in_a_row = 0;         // failures since the last success
    std::deque<bool> lately;  // whether requests succeeded, at most kRatedRequests, the latest last
    int times = 0;
    absl::Time since = absl::InfinitePast();
    absl::Time until = absl::InfinitePast();

    void Add(bool succeeded);
    double rate() const;
    bool rated() const { return static_cast<int>(lately.size()) == kRatedRequests; }
  };

  bool FarBehind(int worker) const;

  std::vector<Record> records_;
};

}  // namespace runahead
