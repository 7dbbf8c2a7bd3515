// Which workers prefill a prompt, and which tokens each of them takes. Pure: load is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/partition/schedule.h"
#include "scheduler/placement/capacity.h"
#include "scheduler/placement/overtaking.h"
#include "scheduler/placement/width_choice.h"

namespace runahead {

// Jobs that a worker may have unfinished: the one it computes and the one whose KV already flows in. Short prompts that
// go together count as one. One that runs between the former's layers comes on top.
inline constexpr int kMaxUnfinishedJobs = 2;

// Where nothing is known of times: one more worker of the chain for every so many tokens of the prompt. Below about
// this length reading the weights is what a part costs, so that another worker adds hops and takes little away.
inline constexpr int64_t kTokensPerWorker = 16;

// And so many at most: the ninth takes a ninth off the prompt's time at the very best, the tenth a tenth, and each is
// missing for other prompts all the while. A table that knows times may say more.
inline constexpr int64_t kMostUntimedWorkers = 8;

// A prefill worker as the planner sees it, in line order.
struct WorkerView {
  bool ready = false;  // false: dead, absent or not agreed with; it splits the line
  int unfinished_jobs = 0;
  // Longest prefix [0, end of part) that its buffers can hold; TSP: longest prompt. Of one that is not ready: as last
  // known.
  int64_t max_prefix_tokens = kNeverReached;
  double backlog_s = 0;        // predicted, until it has finished its jobs
  double place_s = 0;          // predicted, until it has less than kMaxUnfinishedJobs; 0 when it has
  int64_t room = 0;            // tokens of one more prompt with the short ones that wait for it together
  Allowance interleave = {};   // of all that it has: who fits begins between two layers of the one that it computes
  Allowance overtake = {};     // of those behind that one; nobody fits where there are none
  double layer_s = 0;          // predicted: until one that is interleaved may begin
  bool linked_to_next = true;  // false: the edge to the next worker of the line is broken; no chain crosses it
};

struct ChainRequest {
  int64_t tokens = 0;  // of the prompt
  Schedule schedule = Schedule::kKvr;
  int width = 0;               // asked for; 0: the planner's choice
  std::vector<int64_t> parts;  // asked for, in tokens; empty: the schedule's
  double expected_s = 0;       // what it takes on one worker; 0: not known, so it overtakes nobody
  // The chain's head gets KV of so many of the prompt's first tokens from a decode worker. The chain computes the
  // others alone, and neither overtakes nor goes together with others. Without parts; schedule kvr, kvr-even or single.
  int64_t known_tokens = 0;

  int64_t rest() const { return tokens - known_tokens; }
};

struct ChainPlan {
  size_t first = 0;            // index of the chain's head in the line; the chain is [first, first + parts.size())
  std::vector<int64_t> parts;  // tokens, each >= 1, adding up to what the chain computes of the prompt
  Schedule schedule = Schedule::kKvr;
  std::optional<PartitionSource> source;  // absent where the table was not asked
  bool overtakes = false;                 // jobs that its only worker has: it takes no place there
  int64_t known_tokens = 0;               // as the request's: the first part begins behind these
};

// What is wrong with the request itself, whatever the line does: INVALID_ARGUMENT naming experiment.width or
// experiment.parts, and the prompt's number of tokens. `line_size` counts workers that are not ready too.
absl::Status CheckChainRequest(const ChainRequest& request, size_t line_size);

// Takes a contiguous segment of ready workers with less than kMaxUnfinishedJobs each and no broken edge between them.
// Width, unless asked for: by ChooseWidth, where the table knows times for schedule kvr; else one worker for every
// kTokensPerWorker tokens, kMostUntimedWorkers at most (TSP: the whole line), or as many fewer as are free beside each
// other now. Of the segments of a width that was not chosen by time the one with the fewest unfinished jobs, then the
// one nearest to the head of the line. A prompt that would wait, or queue behind others by a width not chosen by time,
// overtakes them where it may. Takes time in proportion to the line's length and the number of widths looked at.
// Errors, beside CheckChainRequest's:
//   RESOURCE_EXHAUSTED  all are busy, or the best segment is worth waiting for: ask again when a job ends
//   UNAVAILABLE         no worker that could hold the prompt is ready, or not as many side by side as were asked for
//   OUT_OF_RANGE        no segment's memory could ever hold the prompt, were all of the line ready; names both sizes
absl::StatusOr<ChainPlan> PlanChain(const ChainRequest& request, const PartitionTable& table,
                                    absl::Span<const WorkerView> line, const QueueLoad& queue = {});

// Whether the request may overtake others, where these bear what it takes: it asks for no more than one worker.
bool MayOvertake(const ChainRequest& request);

// Before jobs that a worker has: between two layers of what it computes, or, where that is nowhere borne, before what
// stands behind that. Of the workers where it fits the one with the fewest unfinished jobs. Nothing unless MayOvertake.
std::optional<ChainPlan> PlanOvertaking(const ChainRequest& request, absl::Span<const WorkerView> line);

// With short prompts that wait for a worker, in their place: of the workers that have room there the one that is done
// first. Nothing where the request asks for more than one worker.
std::optional<ChainPlan> PlanTogether(const ChainRequest& request, absl::Span<const WorkerView> line);

}  // namespace runahead
