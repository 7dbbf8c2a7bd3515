#include "scheduler/placement/chain_plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status_macros.h"
#include "scheduler/placement/segments.h"

namespace runahead {
namespace {

// In an error message.
constexpr size_t kShownParts = 16;

// What each member of a chain with these parts must hold.
std::vector<int64_t> HeldTokens(const ChainRequest& request, absl::Span<const int64_t> parts) {
  if (IsTsp(request.schedule)) return std::vector<int64_t>(parts.size(), request.tokens);
  std::vector<int64_t> held(parts.size());
  std::partial_sum(parts.begin(), parts.end(), held.begin());
  for (int64_t& tokens : held) tokens += request.known_tokens;
  return held;
}

absl::StatusOr<Partition> Cut(const ChainRequest& request, int width, const PartitionTable& table) {
  if (!request.parts.empty()) return Partition{request.parts, PartitionSource::kEven};
  if (request.known_tokens > 0) {
    RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int64_t> behind,
                              table.PartsBehind(request.known_tokens, request.tokens, width));
    return Partition{std::move(behind), PartitionSource::kEven};
  }
  if (request.schedule == Schedule::kKvr && width > 1) return table.Lookup(request.tokens, width);
  RUNAHEAD_ASSIGN_OR_RETURN(std::vector<int64_t> parts, EvenParts(request.tokens, width));
  return Partition{std::move(parts), PartitionSource::kEven};
}

int AskedWidth(const ChainRequest& request) {
  if (!request.parts.empty()) return static_cast<int>(request.parts.size());
  if (request.schedule == Schedule::kSingle) return 1;
  return request.width;
}

int64_t LongestPrefix(absl::Span<const WorkerView> line) {
  int64_t longest = 0;
  for (const WorkerView& worker : line) {
    if (worker.max_prefix_tokens != kNeverReached) longest = std::max(longest, worker.max_prefix_tokens);
  }
  return longest;
}

absl::Status NothingFound(const ChainRequest& request, Obstacle mildest, absl::Span<const WorkerView> line) {
  if (mildest == Obstacle::kBusy) return absl::ResourceExhaustedError("every prefill worker is busy");
  if (mildest == Obstacle::kMemory) {
    return absl::OutOfRangeError(absl::StrCat("prompt: ", request.tokens,
                                              " tokens; the memory of the prefill workers holds at most ",
                                              LongestPrefix(line), " of one prompt"));
  }
  if (AskedWidth(request) > 1) {
    return absl::UnavailableError(
        absl::StrCat("no ", AskedWidth(request), " prefill workers that stand side by side on the line are ready"));
  }
  if (std::any_of(line.begin(), line.end(), [](const WorkerView& worker) { return worker.ready; })) {
    return absl::UnavailableError(
        absl::StrCat("no prefill worker whose memory holds a prompt of ", request.tokens, " tokens is ready"));
  }
  return absl::UnavailableError("no prefill worker is ready");
}

ChainPlan PlanOf(const ChainRequest& request, size_t first, Partition partition) {
  ChainPlan plan{first, std::move(partition.parts), request.schedule, std::nullopt};
  const bool looked_up = request.schedule == Schedule::kKvr && request.parts.empty() && request.known_tokens == 0 &&
                         plan.parts.size() > 1;
  if (looked_up) plan.source = partition.source;
  plan.known_tokens = request.known_tokens;
  return plan;
}

ChainPlan OvertakingOn(const ChainRequest& request, size_t worker) {
  return {worker, {request.tokens}, request.schedule, std::nullopt, true};
}

// Where those bear it whose allowance is meant.
std::optional<ChainPlan> PlanWithin(Allowance WorkerView::*allowance, const ChainRequest& request,
                                    absl::Span<const WorkerView> line) {
  if (!MayOvertake(request)) return std::nullopt;
  std::optional<size_t> best;
  for (size_t i = 0; i < line.size(); ++i) {
    const WorkerView& worker = line[i];
    const bool fits =
        worker.ready && request.tokens <= worker.max_prefix_tokens && (worker.*allowance).Fits(request.expected_s);
    if (fits && (!best || worker.unfinished_jobs < line[*best].unfinished_jobs)) best = i;
  }
  if (!best) return std::nullopt;
  return OvertakingOn(request, *best);
}

// Nothing when no segment could take the prompt even if it were idle.
std::optional<absl::StatusOr<ChainPlan>> PlanByTimes(const ChainRequest& request, const PartitionTable& table,
                                                     absl::Span<const WorkerView> line, const Segments& segments,
                                                     const QueueLoad& queue) {
  std::vector<WorkerLoad> loads;
  loads.reserve(line.size());
  for (const WorkerView& worker : line) {
    WorkerLoad load{worker.backlog_s, worker.place_s};
    load.jobs = worker.unfinished_jobs;
    const bool may = MayOvertake(request);
    if (may && worker.overtake.Fits(request.expected_s)) load.overtakes_after_s = worker.place_s;
    if (may && worker.interleave.Fits(request.expected_s)) load.overtakes_after_s = worker.layer_s;
    loads.push_back(load);
  }
  const auto usable = [&](int width) {
    std::vector<char> first(line.size() - width + 1);
    const absl::StatusOr<Partition> partition = Cut(request, width, table);
    if (!partition.ok()) return first;
    const std::vector<Obstacle> obstacles = segments.Obstacles(HeldTokens(request, partition->parts));
    for (size_t i = 0; i < first.size(); ++i) first[i] = obstacles[i] <= Obstacle::kBusy;
    return first;
  };
  const std::optional<WidthChoice> choice = ChooseWidth(request.tokens, table.times(), loads, queue, usable,
                                                        request.known_tokens);
  if (!choice) return std::nullopt;
  if (choice->overtakes) return OvertakingOn(request, choice->first);
  if (choice->wait || segments.Busy(choice->first, choice->width)) {
    return absl::ResourceExhaustedError("the prefill workers that suit the prompt best are busy");
  }
  RUNAHEAD_ASSIGN_OR_RETURN(Partition partition, Cut(request, choice->width, table));
  return PlanOf(request, choice->first, std::move(partition));
}

// Widths worth trying where none is asked for: no wider than what is wanted and free. One in any case, for the sake of
// what stands in its way: nothing milder stands in a wider segment's, whose last member must hold the whole prompt too.
int WidestTried(const ChainRequest& request, const Segments& segments, bool idle) {
  const bool tsp = IsTsp(request.schedule);
  const int64_t most = tsp ? request.tokens : std::min(request.rest() / kTokensPerWorker, kMostUntimedWorkers);
  const int64_t free = static_cast<int64_t>(segments.LongestFree(tsp ? request.tokens : 0, idle));
  return static_cast<int>(std::max<int64_t>(1, std::min(most, free)));
}

// The widest segment that is asked for or wanted and has a place; `idle`: that has nothing else to do. Where there is
// none, the mildest of what stands in the way.
absl::StatusOr<std::optional<ChainPlan>> WidestFree(const ChainRequest& request, const PartitionTable& table,
                                                    const Segments& segments, bool idle, Obstacle* mildest) {
  const int asked = AskedWidth(request);
  for (int width = asked > 0 ? asked : WidestTried(request, segments, idle); width >= std::max(asked, 1); --width) {
    RUNAHEAD_ASSIGN_OR_RETURN(Partition partition, Cut(request, width, table));
    const std::vector<Obstacle> obstacles = segments.Obstacles(HeldTokens(request, partition.parts));
    std::optional<size_t> best;
    for (size_t first = 0; first < obstacles.size(); ++first) {
      *mildest = std::min(*mildest, obstacles[first]);
      if (obstacles[first] != Obstacle::kNone || (idle && segments.Jobs(first, width) > 0)) continue;
      if (!best || segments.Jobs(first, width) < segments.Jobs(*best, width)) best = first;
    }
    if (best) return PlanOf(request, *best, std::move(partition));
  }
  return std::nullopt;
}

}  // namespace

absl::Status CheckChainRequest(const ChainRequest& request, size_t line_size) {
  const auto refuse = [&](auto... text) { return absl::InvalidArgumentError(absl::StrCat(text...)); };
  const std::string prompt = absl::StrCat("the prompt has ", request.tokens, " tokens");
  if (!request.parts.empty()) {
    int64_t sum = 0;
    for (int64_t part : request.parts) {
      if (part < 1) return refuse("experiment.parts: ", part, " is not at least 1; ", prompt);
      sum += part;
    }
    if (sum != request.tokens) {
      const absl::Span<const int64_t> shown = absl::MakeConstSpan(request.parts).subspan(0, kShownParts);
      const char* const more = shown.size() < request.parts.size() ? ",.." : "";
      return refuse("experiment.parts: ", absl::StrJoin(shown, ","), more, " add up to ", sum, "; ", prompt);
    }
    if (request.width != 0 && static_cast<size_t>(request.width) != request.parts.size()) {
      return refuse("experiment.width: ", request.width, ", but experiment.parts has ", request.parts.size());
    }
  }
  const int64_t width = std::max<int64_t>(request.width, request.parts.size());
  if (request.schedule == Schedule::kSingle && width > 1) {
    return refuse("experiment.width: ", width, ", but schedule single takes one worker");
  }
  if (width > request.tokens) return refuse("experiment.width: ", width, " is more than one worker a token; ", prompt);
  if (width > static_cast<int64_t>(line_size)) {
    return refuse("experiment.width: ", width, " is more than the ", line_size, " prefill workers of the line");
  }
  return absl::OkStatus();
}

bool MayOvertake(const ChainRequest& request) {
  return AskedWidth(request) <= 1 && !IsTsp(request.schedule) && request.known_tokens == 0;
}

std::optional<ChainPlan> PlanOvertaking(const ChainRequest& request, absl::Span<const WorkerView> line) {
  std::optional<ChainPlan> interleaved = PlanWithin(&WorkerView::interleave, request, line);
  return interleaved ? std::move(interleaved) : PlanWithin(&WorkerView::overtake, request, line);
}

std::optional<ChainPlan> PlanTogether(const ChainRequest& request, absl::Span<const WorkerView> line) {
  if (!MayOvertake(request)) return std::nullopt;  // nor go together with others
  std::optional<size_t> best;
  for (size_t i = 0; i < line.size(); ++i) {
    const WorkerView& worker = line[i];
    const bool fits = worker.ready && request.tokens <= worker.max_prefix_tokens && request.tokens <= worker.room;
    if (fits && (!best || worker.backlog_s < line[*best].backlog_s)) best = i;
  }
  if (!best) return std::nullopt;
  return ChainPlan{*best, {request.tokens}, request.schedule, std::nullopt};
}

absl::StatusOr<ChainPlan> PlanChain(const ChainRequest& request, const PartitionTable& table,
                                    absl::Span<const WorkerView> line, const QueueLoad& queue) {
  RUNAHEAD_RETURN_IF_ERROR(CheckChainRequest(request, line.size()));
  if (line.empty()) return NothingFound(request, Obstacle::kNotReady, line);
  const Segments segments(line);
  const std::optional<ChainPlan> overtaking = PlanOvertaking(request, line);
  // Rather than wait.
  const std::optional<ChainPlan> otherwise = overtaking ? overtaking : PlanTogether(request, line);
  if (AskedWidth(request) == 0 && request.schedule == Schedule::kKvr && !table.times().empty()) {
    if (std::optional<absl::StatusOr<ChainPlan>> plan = PlanByTimes(request, table, line, segments, queue)) {
      return absl::IsResourceExhausted(plan->status()) && otherwise ? *otherwise : *plan;
    }
  }
  // Rather alone between the layers of a longer prompt than behind it.
  const bool only_idle = PlanWithin(&WorkerView::interleave, request, line).has_value();
  Obstacle mildest = Obstacle::kMemory;
  RUNAHEAD_ASSIGN_OR_RETURN(const std::optional<ChainPlan> widest,
                            WidestFree(request, table, segments, only_idle, &mildest));
  if (widest) return *widest;
  if (otherwise) return *otherwise;
  return NothingFound(request, mildest, line);
}

}  // namespace runahead
