// How many workers prefill a prompt, and which. Pure: load is an argument.
//
// The rule looks at the whole queue, not at one request. Of all segments of the line it takes the one with the least
//   d + t + arrivals * (d + t) / 2 * work / workers + kHoldWeight * h * (waiting + arrivals * h)
// where t is the time to first token on that width, d when all its workers are done with what they have, work the
// worker-seconds that it keeps from others (width * t, and what the faster ones idle), h how long nobody behind may be
// started because the segment still has no place. The first two terms are what the request itself sees; the third is
// what those who come meanwhile lose by its width: each finds that much less of the pool; the fourth what they lose
// when it waits for a place at the head of the queue. Ties go to fewer workers. Where it may overtake what one worker
// has it begins after a time o, between two layers of what is computed or behind it; t is then lost by each of these:
//   o + t + arrivals * (o + t) / 2 * t / workers + jobs * t
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "scheduler/partition/ttft_table.h"

namespace runahead {

// From simulations of Poisson mixes (width_choice_test): between 1 and 4 mean and p99 change by a few percent.
inline constexpr double kHoldWeight = 1.5;

// A prefill worker of the line.
struct WorkerLoad {
  double backlog_s = 0;  // until it has finished all that it was given
  double place_s = 0;    // until it takes another job; 0: now
  int jobs = 0;          // that it was given and has not finished
  // Until the prompt could begin before what the worker has; nothing: it may not.
  std::optional<double> overtakes_after_s = {};
};

struct QueueLoad {
  int waiting = 0;            // requests behind this one
  double arrivals_per_s = 0;  // lately
};

struct WidthChoice {
  size_t first = 0;  // index of the chain's head in the line
  int width = 1;
  bool wait = false;       // for a place on a worker of the segment: nothing that can start now is better
  bool overtakes = false;  // what the worker `first` has; needs no place
};

// Which segments of a width may take the prompt at all (all ready, and memory for it), by their first worker: true or
// false for the line's length - width + 1 of them; what comes after these is not looked at.
using UsableSegments = std::function<std::vector<char>(int width)>;

// For a prompt of so many tokens, of which KV of the first known_tokens is there: t is then what the rest takes. Widths
// that `times`, which must not be empty, does not know are not taken. Nothing when no segment is usable. Takes
// time in proportion to the line's length and the widths of `times`, beside what `usable` takes, which is asked once
// for each of them.
std::optional<WidthChoice> ChooseWidth(int64_t tokens, const TtftTable& times, absl::Span<const WorkerLoad> line,
                                       const QueueLoad& queue, const UsableSegments& usable, int64_t known_tokens = 0);

}  // namespace runahead
