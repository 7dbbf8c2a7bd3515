// PlanChain against the plain search that it must equal: every segment of every width, each looked at from end to end.
#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/placement/chain_plan.h"

namespace runahead {
namespace {

// ---- The plain search.

enum class Way { kFree, kBusy, kNotReady, kMemory };

int Asked(const ChainRequest& request) {
  if (!request.parts.empty()) return static_cast<int>(request.parts.size());
  return request.schedule == Schedule::kSingle ? 1 : request.width;
}

std::vector<int64_t> PartsOf(const ChainRequest& request, int width, const PartitionTable& table) {
  if (!request.parts.empty()) return request.parts;
  const bool looked_up = request.schedule == Schedule::kKvr && width > 1;
  return looked_up ? table.Lookup(request.tokens, width)->parts : *EvenParts(request.tokens, width);
}

Way Examine(const ChainRequest& request, absl::Span<const WorkerView> segment, absl::Span<const int64_t> parts) {
  Way worst = Way::kFree;
  int64_t end = 0;
  for (size_t i = 0; i < segment.size(); ++i) {
    end += parts[i];
    Way here = Way::kFree;
    if ((IsTsp(request.schedule) ? request.tokens : end) > segment[i].max_prefix_tokens) {
      here = Way::kMemory;
    } else if (!segment[i].ready || (i + 1 < segment.size() && !segment[i].linked_to_next)) {
      here = Way::kNotReady;
    } else if (segment[i].unfinished_jobs >= kMaxUnfinishedJobs) {
      here = Way::kBusy;
    }
    worst = std::max(worst, here);
  }
  return worst;
}

int Jobs(absl::Span<const WorkerView> segment) {
  int jobs = 0;
  for (const WorkerView& worker : segment) jobs += worker.unfinished_jobs;
  return jobs;
}

struct Choice {
  absl::StatusCode code = absl::StatusCode::kOk;
  size_t first = 0;
  std::vector<int64_t> parts = {};
  bool overtakes = false;
};

double CostOf(double ttft, absl::Span<const WorkerView> segment, size_t workers, const QueueLoad& queue) {
  double done = 0, place = 0, backlogs = 0;
  for (const WorkerView& worker : segment) {
    done = std::max(done, worker.backlog_s);
    place = std::max(place, worker.place_s);
    backlogs += worker.backlog_s;
  }
  const double own = done + ttft;
  const double work = static_cast<double>(segment.size()) * own - backlogs;
  return own + queue.arrivals_per_s * own / 2 * work / static_cast<double>(workers) +
         kHoldWeight * place * (queue.waiting + queue.arrivals_per_s * place);
}

std::optional<Choice> ByTimes(const ChainRequest& request, const PartitionTable& table,
                              absl::Span<const WorkerView> line, const QueueLoad& queue) {
  std::optional<Choice> best;
  double least = 0;
  const auto offer = [&](const Choice& choice, double cost) {
    if (best && cost >= least) return;
    least = cost;
    best = choice;
  };
  for (const int width : table.times().widths()) {
    if (width > request.tokens || static_cast<size_t>(width) > line.size()) break;
    const double ttft = table.times().Seconds(request.tokens, width);
    const std::vector<int64_t> parts = PartsOf(request, width, table);
    for (size_t first = 0; first + width <= line.size(); ++first) {
      const absl::Span<const WorkerView> segment = line.subspan(first, width);
      const Way way = Examine(request, segment, parts);
      if (way > Way::kBusy) continue;
      bool wait = way == Way::kBusy;
      for (const WorkerView& worker : segment) wait |= worker.place_s > 0;
      const absl::StatusCode code = wait ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk;
      offer({code, first, parts}, CostOf(ttft, segment, line.size(), queue));
      const bool between = line[first].interleave.Fits(request.expected_s);
      if (width > 1 || (!between && !line[first].overtake.Fits(request.expected_s))) continue;
      const double own = (between ? line[first].layer_s : line[first].place_s) + ttft;
      offer({absl::StatusCode::kOk, first, {request.tokens}, true},
            own + queue.arrivals_per_s * own / 2 * ttft / static_cast<double>(line.size()) +
                line[first].unfinished_jobs * ttft);
    }
  }
  return best;
}

Choice Plainly(const ChainRequest& request, const PartitionTable& table, absl::Span<const WorkerView> line,
               const QueueLoad& queue) {
  const std::optional<ChainPlan> before = PlanOvertaking(request, line), with = PlanTogether(request, line);
  const Choice overtaking = before ? Choice{absl::StatusCode::kOk, before->first, before->parts, true} : Choice{};
  const Choice together = with ? Choice{absl::StatusCode::kOk, with->first, with->parts} : Choice{};
  const bool between = before && line[before->first].interleave.Fits(request.expected_s);
  const int asked = Asked(request);
  if (asked == 0 && request.schedule == Schedule::kKvr && !table.times().empty()) {
    if (const std::optional<Choice> timed = ByTimes(request, table, line, queue)) {
      if (timed->code == absl::StatusCode::kOk || (!before && !with)) return *timed;
      return before ? overtaking : together;
    }
  }
  const int64_t most =
      IsTsp(request.schedule) ? request.tokens : std::min(request.tokens / kTokensPerWorker, kMostUntimedWorkers);
  const int wanted = static_cast<int>(std::clamp<int64_t>(most, 1, line.size()));
  Way mildest = Way::kMemory;
  for (int width = asked > 0 ? asked : wanted; width >= std::max(1, asked); --width) {
    const std::vector<int64_t> parts = PartsOf(request, width, table);
    std::optional<size_t> best;
    for (size_t first = 0; first + width <= line.size(); ++first) {
      const absl::Span<const WorkerView> segment = line.subspan(first, width);
      const Way way = Examine(request, segment, parts);
      mildest = std::min(mildest, way);
      if (way != Way::kFree || (between && Jobs(segment) > 0)) continue;
      if (!best || Jobs(segment) < Jobs(line.subspan(*best, width))) best = first;
    }
    if (best) return {absl::StatusCode::kOk, *best, parts};
  }
  if (before) return overtaking;
  if (with) return together;
  if (mildest == Way::kBusy) return {absl::StatusCode::kResourceExhausted};
  return {mildest == Way::kMemory ? absl::StatusCode::kOutOfRange : absl::StatusCode::kUnavailable};
}

// ---- Random lines, small enough that many choices are equally good.

class RandomCase {
 public:
  explicit RandomCase(uint32_t seed) : random_(seed) {}

  std::vector<WorkerView> Line() {
    std::vector<WorkerView> line(Below(3) == 0 ? 1 + Below(4) : 1 + Below(40));
    const int busy = Below(4), broken = Below(3), lost = Below(3), unequal = Below(3), budgets = Below(3);
    for (WorkerView& worker : line) {
      worker.ready = !OneOf(lost, 6);
      worker.unfinished_jobs = Below(1 + busy);
      worker.max_prefix_tokens = OneOf(unequal, 3) ? Below(4000) : OneOf(unequal, 8) ? kNeverReached : 4000;
      // Sums of such are exact in whatever order they are added up.
      worker.backlog_s = worker.unfinished_jobs * Below(4) / 8.0;
      worker.place_s = worker.unfinished_jobs >= kMaxUnfinishedJobs ? worker.backlog_s / 2 : 0;
      if (worker.unfinished_jobs >= kMaxUnfinishedJobs) worker.room = Below(200);
      worker.layer_s = Below(3) / 64.0;
      if (worker.unfinished_jobs > 0 && OneOf(budgets, 4)) worker.interleave = Allowance::Of(Below(8000));
      if (worker.unfinished_jobs > 1 && OneOf(budgets, 4)) {
        worker.overtake = Allowance::Left(worker.interleave.left_s() + Below(1000));
      }
      worker.linked_to_next = !OneOf(broken, 5);
    }
    return line;
  }

  PartitionTable Table() {
    if (Below(3) == 0) return PartitionTable();
    const bool timed = Below(4) > 0;
    std::vector<PartitionEntry> entries;
    for (int width = 1; width <= 12; ++width) {
      if (width > 1 && Below(3) == 0) continue;
      std::vector<double> fractions;
      for (int i = 0; i < width; ++i) fractions.push_back(1 + Below(3));
      double sum = 0;
      for (const double fraction : fractions) sum += fraction;
      for (double& fraction : fractions) fraction /= sum;
      for (const int64_t tokens : {512, 2048}) {
        const double seconds = static_cast<double>(tokens) / 512 / (1 + Below(width));
        entries.push_back({width, tokens, fractions, timed ? seconds : 0});
      }
    }
    return *PartitionTable::Create(entries);
  }

  ChainRequest Request(size_t line) {
    ChainRequest request;
    request.tokens = Below(4) == 0 ? 1 + Below(40) : 1 + Below(4096);
    request.expected_s = static_cast<double>(request.tokens);
    constexpr Schedule kSchedules[] = {Schedule::kKvr, Schedule::kKvr, Schedule::kKvrEven, Schedule::kSingle,
                                       Schedule::kTsp};
    request.schedule = kSchedules[Below(5)];
    const int widest = static_cast<int>(std::min<int64_t>(static_cast<int64_t>(line), request.tokens));
    if (request.schedule != Schedule::kSingle && Below(4) == 0) request.width = 1 + Below(std::min(widest, 10));
    if (request.width > 0 && Below(2) == 0) request.parts = *EvenParts(request.tokens, request.width);
    return request;
  }

  QueueLoad Queue() { return {.waiting = Below(3), .arrivals_per_s = Below(3) / 2.0}; }

 private:
  int Below(int end) { return static_cast<int>(random_() % static_cast<uint32_t>(end)); }
  // Never where `often` is 0.
  bool OneOf(int often, int of) { return often > 0 && Below(of) < often; }

  std::mt19937 random_;
};

TEST(PlanChainRandom, ChoosesAsThePlainSearchDoes) {
  std::map<absl::StatusCode, int> seen;
  int chains = 0, overtaking = 0;
  for (uint32_t seed = 0; seed < 30'000; ++seed) {
    RandomCase random(seed);
    const std::vector<WorkerView> line = random.Line();
    const PartitionTable table = random.Table();
    const ChainRequest request = random.Request(line.size());
    const QueueLoad queue = random.Queue();
    const Choice wanted = Plainly(request, table, line, queue);
    const absl::StatusOr<ChainPlan> plan = PlanChain(request, table, line, queue);
    ASSERT_EQ(plan.status().code(), wanted.code) << seed << ": " << plan.status();
    ++seen[wanted.code];
    if (!plan.ok()) continue;
    ASSERT_EQ(plan->first, wanted.first) << seed;
    ASSERT_EQ(plan->parts, wanted.parts) << seed;
    ASSERT_EQ(plan->overtakes, wanted.overtakes) << seed;
    chains += plan->parts.size() > 1;
    overtaking += plan->overtakes;
  }
  // Whether the cases are worth looking at.
  EXPECT_GT(chains, 1000);
  EXPECT_GT(overtaking, 500);
  for (const absl::StatusCode code :
       {absl::StatusCode::kResourceExhausted, absl::StatusCode::kUnavailable, absl::StatusCode::kOutOfRange}) {
    EXPECT_GT(seen[code], 1000) << absl::StatusCodeToString(code);
  }
}

}  // namespace
}  // namespace runahead
