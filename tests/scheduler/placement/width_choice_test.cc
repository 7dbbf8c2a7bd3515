#include "scheduler/placement/width_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <limits>
#include <random>
#include <vector>

#include "scheduler/partition/chain_simulator.h"
#include "scheduler/partition/partition_search.h"
#include "scheduler/placement/chain_plan.h"

namespace runahead {
namespace {

// Of a line that is no longer than this.
constexpr size_t kLongest = 16;

std::vector<char> Any(int) {
  return std::vector<char>(kLongest, true);
}

// Two workers halve a long prompt and do nothing for a short one.
TtftTable Times() {
  return *TtftTable::Create({{1, 100, 0.1}, {1, 10'000, 4.0}, {2, 100, 0.1}, {2, 10'000, 2.0}});
}

TEST(ChooseWidth, LongPromptsTakeTheWholeLineAndShortOnesOneWorker) {
  const std::vector<WorkerLoad> idle(2);
  const WidthChoice wide = *ChooseWidth(10'000, Times(), idle, {}, Any);
  EXPECT_EQ(wide.width, 2);
  EXPECT_FALSE(wide.wait);
  EXPECT_EQ(ChooseWidth(100, Times(), idle, {}, Any)->width, 1);  // a tie
  EXPECT_EQ(ChooseWidth(1, Times(), idle, {}, Any)->width, 1);
}

TEST(ChooseWidth, ABusyNeighbourIsNotWaitedForLongerThanItGains) {
  EXPECT_EQ(ChooseWidth(10'000, Times(), {{0, 0}, {1.9, 0}}, {}, Any)->width, 2);
  const WidthChoice alone = *ChooseWidth(10'000, Times(), {{2.1, 0}, {0, 0}}, {}, Any);
  EXPECT_EQ(alone.width, 1);
  EXPECT_EQ(alone.first, 1u);
}

TEST(ChooseWidth, WaitsForAPlaceWhereThatIsBestAndNotWhenOthersWaitBehind) {
  const std::vector<WorkerLoad> line = {{0, 0}, {1.2, 1.0}};
  const WidthChoice waits = *ChooseWidth(10'000, Times(), line, {}, Any);
  EXPECT_EQ(waits.width, 2);
  EXPECT_TRUE(waits.wait);
  EXPECT_EQ(ChooseWidth(10'000, Times(), line, {.waiting = 5, .arrivals_per_s = 0}, Any)->width, 1);
}

TEST(ChooseWidth, ManyArrivalsMakeChainsNarrowerWhereWidthCostsWork) {
  const TtftTable times = *TtftTable::Create({{1, 1000, 1.0}, {2, 1000, 0.9}});
  const std::vector<WorkerLoad> idle(2);
  EXPECT_EQ(ChooseWidth(1000, times, idle, {}, Any)->width, 2);
  EXPECT_EQ(ChooseWidth(1000, times, idle, {.waiting = 0, .arrivals_per_s = 2}, Any)->width, 1);
}

TEST(ChooseWidth, BetweenLayersWhereThatCostsTheOthersLessThanItGains) {
  WorkerLoad busy{.backlog_s = 3, .jobs = 1, .overtakes_after_s = 0.1};
  const WidthChoice between = *ChooseWidth(100, Times(), {busy}, {}, Any);
  EXPECT_TRUE(between.overtakes);
  EXPECT_FALSE(between.wait);
  busy.place_s = 1;  // it needs no place
  EXPECT_TRUE(ChooseWidth(100, Times(), {busy}, {}, Any)->overtakes);
  busy.place_s = 0;
  busy.backlog_s = 0.15;  // waiting takes 0.15, being let in 0.1 and what the other loses 0.1
  EXPECT_FALSE(ChooseWidth(100, Times(), {busy}, {}, Any)->overtakes);
  busy.backlog_s = 3;
  EXPECT_EQ(ChooseWidth(100, Times(), {busy, {}}, {}, Any)->first, 1u);  // idle
  busy.overtakes_after_s = std::nullopt;
  EXPECT_FALSE(ChooseWidth(100, Times(), {busy}, {}, Any)->overtakes);
}

TEST(ChooseWidth, TakesOnlyWhatIsUsableAndKnown) {
  const std::vector<WorkerLoad> idle(3);
  EXPECT_FALSE(ChooseWidth(10'000, Times(), idle, {}, [](int) { return std::vector<char>(3, false); }));
  const auto last_two = [](int) { return std::vector<char>{false, true, true}; };
  EXPECT_EQ(ChooseWidth(10'000, Times(), idle, {}, last_two)->first, 1u);
  EXPECT_EQ(ChooseWidth(10'000, Times(), idle, {}, Any)->width, 2);  // nothing is known of three
  EXPECT_EQ(ChooseWidth(10'000, Times(), std::vector<WorkerLoad>(1), {}, Any)->width, 1);
}

// ---- A pool under load: requests of a Poisson process, jobs in the order in which each worker was given them.

constexpr int kWorkers = 4;
constexpr int kLayers = 32;

// The fit of the paper's TSP columns (paper_figures_test): Llama-7B, dense rectangle; or with an attention that skips
// what causality hides, where a chain saves nothing on the triangle.
TtftTable LlamaTimes(bool causal_skip) {
  CostModel model;
  model.layers = kLayers;
  model.kv_bytes_per_token = 512 * 1024;
  model.fixed_s = 0.0158;
  model.linear_s_per_token = 0.0848 / 1024;
  model.attention_s_per_token_pair = 0.02159 / 1024 / 1024 * (causal_skip ? 2 : 1);
  model.floor_s = 0.101;
  model.causal_skip = causal_skip;
  model.links = {LinkCost{60e-6, 300e9}};
  std::vector<TtftEntry> entries;
  for (int width = 1; width <= kWorkers; ++width) {
    for (const int64_t tokens : {64, 1024, 2048, 4096, 8192, 12288, 16384}) {
      const auto seconds = [&](absl::Span<const int64_t> parts) -> absl::StatusOr<double> {
        return SimulateChain(model, Schedule::kKvr, parts)->ttft_s;
      };
      SearchOptions options;
      options.last_stride = std::max<int64_t>(1, tokens / 128);
      options.thorough = false;
      entries.push_back({width, tokens, SearchPartition(tokens, width, ObjectiveOf(seconds), options)->best.seconds});
    }
  }
  return *TtftTable::Create(entries);
}

struct Request {
  double at = 0;
  int64_t tokens = 0;
  Allowance allowance = {};  // once it waits
};

// One long prompt (8k to 16k) for four short ones (100 to 1,500 tokens), at `load` of what single workers could do.
std::vector<Request> Mix(const TtftTable& times, double load, int count) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> even;
  const auto tokens = [&] {
    return static_cast<int64_t>(even(random) < 0.2 ? 8192 + 8192 * even(random) : 100 + 1400 * even(random));
  };
  double work = 0;
  for (int i = 0; i < 4000; ++i) work += times.Seconds(tokens(), 1) / 4000;
  std::exponential_distribution<double> gap(load * kWorkers / work);
  std::vector<Request> requests;
  double now = 0;
  for (int i = 0; i < count; ++i) {
    now += gap(random);
    requests.push_back({.at = now, .tokens = tokens()});
  }
  return requests;
}

using Rule = std::function<std::optional<WidthChoice>(int64_t, absl::Span<const WorkerLoad>, const QueueLoad&)>;

struct Outcome {
  double mean = 0, p99 = 0;
};

class Pool {
 public:
  // `interleaves`: short prompts may overtake others (overtaking.h), in the queue and between two layers.
  Pool(const TtftTable& times, const Rule& rule, double arrivals_per_s, bool interleaves)
      : times_(times), rule_(rule), arrivals_per_s_(arrivals_per_s), interleaves_(interleaves) {}

  Outcome Run(const std::vector<Request>& requests) {
    for (size_t next = 0; next < requests.size() || !queue_.empty() || NextEnd() < kNever;) {
      const double end = NextEnd();
      if (next < requests.size() && requests[next].at <= end) {
        now_ = requests[next].at;
        Arrive(requests[next++]);
      } else {
        now_ = end;
      }
      Dispatch();
    }
    std::sort(ttft_.begin(), ttft_.end());
    double sum = 0;
    for (const double seconds : ttft_) sum += seconds;
    return {sum / static_cast<double>(ttft_.size()), ttft_[ttft_.size() * 99 / 100]};
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Job {
    double asked_at = 0;
    double seconds = 0;  // alone on its workers
    double end = 0;
    size_t first = 0;
    int width = 1;
    bool interleaved = false;
    Allowance allowance = {};  // on each of its workers
  };

  double Alone(int64_t tokens) const { return times_.Seconds(tokens, 1); }

  double Fastest(int64_t tokens) const {
    double fastest_s = kNever;
    for (const int width : times_.widths()) fastest_s = std::min(fastest_s, times_.Seconds(tokens, width));
    return fastest_s;
  }

  void Arrive(Request request) {
    const std::vector<WorkerLoad> line = Loads(request.tokens);
    double front_s = kNever;
    for (const WorkerLoad& worker : line) front_s = std::min(front_s, worker.backlog_s);
    for (const Request& other : queue_) front_s += Alone(other.tokens) / kWorkers;
    request.allowance = Allowance::Of(front_s + Fastest(request.tokens));
    queue_.push_back(request);
  }

  std::vector<WaitingPrompt> Waiting() const {
    std::vector<WaitingPrompt> waiting;
    for (const Request& request : queue_) {
      waiting.push_back(
          {.expected_s = Alone(request.tokens), .allowance = request.allowance, .may_overtake = interleaves_});
    }
    return waiting;
  }

  void Leave(size_t index) {
    for (size_t i = 0; i < index; ++i) queue_[i].allowance.Take(Alone(queue_[index].tokens));
    queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  double NextEnd() const {
    double next = kNever;
    for (const Job& job : jobs_) next = std::min(next, job.end);
    return next;
  }

  bool On(const Job& job, size_t worker) const {
    return job.first <= worker && worker < job.first + static_cast<size_t>(job.width);
  }

  // The one that the worker computes, if any.
  Job* Computed(size_t worker) {
    for (Job& job : jobs_) {
      if (!job.interleaved && On(job, worker)) return &job;
    }
    return nullptr;
  }

  std::vector<WorkerLoad> Loads(int64_t tokens) {
    std::vector<WorkerLoad> line(kWorkers);
    for (size_t i = 0; i < line.size(); ++i) {
      for (const Job& job : jobs_) {
        if (!On(job, i)) continue;
        line[i].backlog_s = std::max(line[i].backlog_s, job.end - now_);
        line[i].jobs += !job.interleaved;
      }
      const Job* const computed = Computed(i);
      if (line[i].jobs >= kMaxUnfinishedJobs) line[i].place_s = computed->end - now_;
      if (!interleaves_ || computed == nullptr) continue;
      double left_s = kNever, others_s = 0;
      for (const Job& job : jobs_) {
        if (!On(job, i)) continue;
        if (job.interleaved) others_s = std::max(others_s, job.end - now_);
        if (!job.interleaved) left_s = std::min(left_s, job.allowance.left_s());
      }
      if (!Allowance::Left(left_s).Fits(Alone(tokens))) continue;
      line[i].overtakes_after_s = std::max(others_s, computed->seconds / kLayers);
    }
    return line;
  }

  void Give(const Request& request, const WidthChoice& choice, absl::Span<const WorkerLoad> line) {
    Job job{request.at,      times_.Seconds(request.tokens, choice.width), now_, choice.first, choice.width,
            choice.overtakes};
    if (job.interleaved) {
      for (Job& longer : jobs_) {
        if (longer.interleaved || !On(longer, job.first)) continue;
        longer.allowance.Take(job.seconds);
        longer.end += job.seconds;
      }
      job.end += *line[job.first].overtakes_after_s + job.seconds;
    } else {
      job.allowance = request.allowance;
      for (int i = 0; i < job.width; ++i) job.end = std::max(job.end, now_ + line[job.first + i].backlog_s);
      job.end += job.seconds;
    }
    jobs_.push_back(job);
    Delay();
  }

  // Each begins when those before it have left its workers.
  void Delay() {
    std::vector<double> free(kWorkers, 0);
    for (Job& job : jobs_) {
      if (job.interleaved) continue;
      for (int i = 0; i < job.width; ++i) {
        if (free[job.first + i] > 0) job.end = std::max(job.end, free[job.first + i] + job.seconds);
      }
      for (int i = 0; i < job.width; ++i) free[job.first + i] = job.end;
    }
  }

  void Dispatch() {
    for (const Job& job : jobs_) {
      if (job.end <= now_) ttft_.push_back(job.end - job.asked_at);
    }
    jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.end <= now_; }),
                jobs_.end());
    while (Begins() || Overtakes()) {
    }
  }

  bool Begins() {
    const std::optional<size_t> next = WhoBegins(Waiting());
    if (!next) return false;
    const Request request = queue_[*next];
    const std::vector<WorkerLoad> line = Loads(request.tokens);
    const std::optional<WidthChoice> choice =
        rule_(request.tokens, line, {static_cast<int>(queue_.size()) - 1, arrivals_per_s_});
    if (!choice || choice->wait) return false;
    Leave(*next);
    Give(request, *choice, line);
    return true;
  }

  bool Overtakes() {
    double room_s = 0;
    for (const Job& job : jobs_) room_s = std::max(room_s, job.allowance.left_s());
    const std::optional<size_t> found = WhoOvertakes(Waiting(), room_s);
    if (!found) return false;
    const Request request = queue_[*found];
    const std::vector<WorkerLoad> line = Loads(request.tokens);
    std::optional<size_t> best;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i].overtakes_after_s && (!best || line[i].jobs < line[*best].jobs)) best = i;
    }
    if (!best) return false;
    Leave(*found);
    Give(request, {*best, 1, false, true}, line);
    return true;
  }

  const TtftTable& times_;
  const Rule rule_;
  const double arrivals_per_s_;
  const bool interleaves_;
  double now_ = 0;
  std::vector<Job> jobs_;  // unfinished, in the order in which they were given
  std::deque<Request> queue_;
  std::vector<double> ttft_;
};

std::optional<WidthChoice> AlwaysAll(int64_t, absl::Span<const WorkerLoad> line, const QueueLoad&) {
  const bool full = std::any_of(line.begin(), line.end(), [](const WorkerLoad& w) { return w.place_s > 0; });
  return WidthChoice{0, kWorkers, full};
}

std::optional<WidthChoice> AlwaysOne(int64_t, absl::Span<const WorkerLoad> line, const QueueLoad&) {
  const auto least = std::min_element(line.begin(), line.end(), [](const WorkerLoad& a, const WorkerLoad& b) {
    return std::make_pair(a.place_s > 0, a.backlog_s) < std::make_pair(b.place_s > 0, b.backlog_s);
  });
  return WidthChoice{static_cast<size_t>(least - line.begin()), 1, least->place_s > 0};
}

// At low load always-all is as good, near saturation always-one: there the rule may be as good as the better of both,
// but for a few percent; over all loads it is ahead of each.
constexpr double kAsGood = 1.05;
constexpr double kAhead = 0.95;
// What the longest prompts lose to those that overtake them; a quarter by the law.
constexpr double kOvertaken = 1.1;

TEST(ChooseWidthUnderLoad, MeanAndP99AreBetterThanAlwaysAllAndAlwaysOne) {
  for (const bool causal_skip : {false, true}) {
    const TtftTable times = LlamaTimes(causal_skip);
    double mean_all = 1, mean_one = 1, p99_all = 1, p99_one = 1;  // products of ratios, chosen to the other
    const std::vector<double> loads = {0.2, 0.4, 0.6, 0.8};
    for (const double load : loads) {
      const std::vector<Request> requests = Mix(times, load, 20'000);
      const double arrivals_per_s = static_cast<double>(requests.size()) / requests.back().at;
      const auto run = [&](const Rule& rule, bool interleaves = false) {
        return Pool(times, rule, arrivals_per_s, interleaves).Run(requests);
      };
      const Rule chooses = [&](int64_t tokens, absl::Span<const WorkerLoad> line, const QueueLoad& queue) {
        return ChooseWidth(tokens, times, line, queue, Any);
      };
      const Outcome all = run(AlwaysAll), one = run(AlwaysOne), chosen = run(chooses), interleaved = run(chooses, true);
      std::printf(
          "load %.1f, %s: mean (p99) in s: all %.2f (%.2f), one %.2f (%.2f), chosen %.2f (%.2f), "
          "interleaved %.2f (%.2f)\n",
          load, causal_skip ? "causal skip" : "dense", all.mean, all.p99, one.mean, one.p99, chosen.mean, chosen.p99,
          interleaved.mean, interleaved.p99);
      EXPECT_LT(interleaved.mean, chosen.mean) << load;
      EXPECT_LT(interleaved.mean, kAsGood * std::min(all.mean, one.mean)) << load;
      EXPECT_LT(interleaved.p99, kOvertaken * std::min(all.p99, one.p99)) << load;
      EXPECT_LT(chosen.mean, kAsGood * std::min(all.mean, one.mean)) << load;
      EXPECT_LT(chosen.p99, kAsGood * std::min(all.p99, one.p99)) << load;
      mean_all *= chosen.mean / all.mean;
      mean_one *= chosen.mean / one.mean;
      p99_all *= chosen.p99 / all.p99;
      p99_one *= chosen.p99 / one.p99;
    }
    for (const double product : {mean_all, mean_one, p99_all, p99_one}) {
      EXPECT_LT(std::pow(product, 1.0 / static_cast<double>(loads.size())), kAhead);
    }
  }
}

}  // namespace
}  // namespace runahead
