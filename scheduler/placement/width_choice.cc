#include "scheduler/placement/width_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "scheduler/partition/rest_of_prompt.h"

namespace runahead {
namespace {

// Backlogs are added up in whole ticks of about a nanosecond, so that segments of workers that are equally busy are
// equal wherever they stand: then the one nearest to the head of the line is taken.
constexpr double kTicksPerSecond = 1 << 30;
constexpr double kLongestBacklog = 1e6;  // seconds; more is as bad

// The largest of each `width()` values in a row; widths only grow.
class SlidingMax {
 public:
  explicit SlidingMax(std::vector<double> values) : largest_(std::move(values)) {}

  void Widen(size_t width) {
    while (width_ < width) {
      const size_t next = std::min(width, 2 * width_);  // two windows that overlap make up the next
      for (size_t i = 0; i + (next - width_) < largest_.size(); ++i) {
        largest_[i] = std::max(largest_[i], largest_[i + next - width_]);
      }
      largest_.resize(largest_.size() - (next - width_));
      width_ = next;
    }
  }

  double operator[](size_t first) const { return largest_[first]; }

 private:
  size_t width_ = 1;
  std::vector<double> largest_;
};

double OvertakingCost(double ttft, const WorkerLoad& worker, size_t workers, const QueueLoad& queue) {
  const double own = *worker.overtakes_after_s + ttft;
  return own + queue.arrivals_per_s * own / 2 * ttft / static_cast<double>(workers) + worker.jobs * ttft;
}

// What the segments of the line cost, width by width.
class SegmentCosts {
 public:
  SegmentCosts(absl::Span<const WorkerLoad> line, const QueueLoad& queue)
      : workers_(static_cast<double>(line.size())),
        queue_(queue),
        done_(Of(line, &WorkerLoad::backlog_s)),
        place_(Of(line, &WorkerLoad::place_s)),
        ticks_(line.size() + 1) {
    for (size_t i = 0; i < line.size(); ++i) {
      ticks_[i + 1] = ticks_[i] + std::llround(std::min(line[i].backlog_s, kLongestBacklog) * kTicksPerSecond);
    }
  }

  // Wider from call to call.
  void Widen(size_t width) {
    width_ = width;
    done_.Widen(width);
    place_.Widen(width);
  }

  // Seconds, as the header has it.
  double Cost(double ttft, size_t first) const {
    const double backlogs = static_cast<double>(ticks_[first + width_] - ticks_[first]) / kTicksPerSecond;
    const double own = done_[first] + ttft;
    const double work = static_cast<double>(width_) * own - backlogs;
    const double place = place_[first];
    return own + queue_.arrivals_per_s * own / 2 * work / workers_ +
           kHoldWeight * place * (queue_.waiting + queue_.arrivals_per_s * place);
  }

  bool MustWait(size_t first) const { return place_[first] > 0; }

 private:
  static std::vector<double> Of(absl::Span<const WorkerLoad> line, double WorkerLoad::*field) {
    std::vector<double> values;
    values.reserve(line.size());
    for (const WorkerLoad& worker : line) values.push_back(worker.*field);
    return values;
  }

  const double workers_;
  const QueueLoad& queue_;
  size_t width_ = 1;
  SlidingMax done_, place_;
  std::vector<int64_t> ticks_;  // of the backlogs of all workers before
};

}  // namespace

std::optional<WidthChoice> ChooseWidth(int64_t tokens, const TtftTable& times, absl::Span<const WorkerLoad> line,
                                       const QueueLoad& queue, const UsableSegments& usable, int64_t known_tokens) {
  SegmentCosts costs(line, queue);
  std::optional<WidthChoice> best;
  double least = 0;
  const auto offer = [&](const WidthChoice& choice, double cost) {
    if (best && cost >= least) return;
    least = cost;
    best = choice;
  };
  for (const int width : times.widths()) {
    if (width > tokens - known_tokens || static_cast<size_t>(width) > line.size()) break;
    const double ttft = SecondsOfChainRest(tokens, known_tokens, [&](int64_t of) { return times.Seconds(of, width); });
    const std::vector<char> may = usable(width);
    costs.Widen(width);
    for (size_t first = 0; first + width <= line.size(); ++first) {
      if (!may[first]) continue;
      offer({first, width, costs.MustWait(first)}, costs.Cost(ttft, first));
      if (width > 1 || !line[first].overtakes_after_s) continue;
      offer({first, 1, false, true}, OvertakingCost(ttft, line[first], line.size(), queue));
    }
  }
  return best;
}

}  // namespace runahead
