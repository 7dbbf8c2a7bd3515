// Whether a worker that answers gets nothing done. Pure: time is an argument.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace runahead {

// What a worker says of one of its threads, and of the device behind it.
struct ProgressView {
  bool computing = false;     // it has all that it needs; one that waits for others, or stalls on a ring, is not
  absl::Duration since = {};  // for so long, without getting anything done
  absl::Duration usual = {};  // what a layer or a step of that size took there; 0: unknown
  bool first = false;         // none of that size is done yet, and kernels may be compiled for it
  uint64_t done = 0;          // layers or steps so far
  absl::Duration waited =
      {};  // of `since`, for so long its threads waited for cores that others had: it does not count
};

// A layer or a step may take ten times what it usually takes, and this long in any case.
inline constexpr double kTimesUsual = 10;
inline constexpr absl::Duration kLeastPatience = absl::Seconds(5);
// The first one of its size compiles kernels for it, and is not known well: it is reckoned by a smaller one.
inline constexpr absl::Duration kPatienceWithFirst = absl::Minutes(1);
// One that nothing at all is known of may be of any size. A worker measures a layer and a step at its start, before it
// serves (WarmUp), so this is the bound of its first layer or step only where it could not: where weights are streamed.
inline constexpr absl::Duration kPatienceWithUnknown = absl::Minutes(10);
// A suspect has so long to get something done, and is asked at least twice meanwhile: it may just have been stopped.
inline constexpr absl::Duration kSuspicion = absl::Seconds(1);

// For how long it may compute.
absl::Duration PatienceWith(const ProgressView& progress);

enum class Liveness { kFine, kSuspected, kHung };

// What has been seen of one thread. Not thread-safe.
class ProgressJudge {
 public:
  // What it is by the answer that came at `now`.
  Liveness Judge(const ProgressView& progress, absl::Time now);

 private:
  absl::Time suspected_ = absl::InfiniteFuture();  // since then
  uint64_t done_ = 0;                              // then
};

}  // namespace runahead
