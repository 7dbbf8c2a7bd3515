#include "scheduler/placement/width_choice.h"

#include <algorithm>

namespace runahead {
namespace {

// Seconds, as the header has it.
double Cost(double ttft, absl::Span<const WorkerLoad> segment, size_t workers, const QueueLoad& queue) {
  double done = 0, place = 0, backlogs = 0;
  for (const WorkerLoad& worker : segment) {
    done = std::max(done, worker.backlog_s);
    place = std::max(place, worker.place_s);
    backlogs += worker.backlog_s;
  }
  const double width = static_cast<double>(segment.size());
  const double own = done + ttft;
  const double work = width * own - backlogs;
  return own + queue.arrivals_per_s * own / 2 * work / static_cast<double>(workers) +
         kHoldWeight * place * (queue.waiting + queue.arrivals_per_s * place);
}

double InterleavedCost(double ttft, const WorkerLoad& worker, size_t workers, const QueueLoad& queue) {
  const double own = *worker.interleave_after_s + ttft;
  return own + queue.arrivals_per_s * own / 2 * ttft / static_cast<double>(workers) + worker.jobs * ttft;
}

bool MustWait(absl::Span<const WorkerLoad> segment) {
  return std::any_of(segment.begin(), segment.end(), [](const WorkerLoad& worker) { return worker.place_s > 0; });
}

}  // namespace

std::optional<WidthChoice> ChooseWidth(int64_t tokens, const TtftTable& times, absl::Span<const WorkerLoad> line,
                                       const QueueLoad& queue, const std::function<bool(size_t, int)>& usable) {
  std::optional<WidthChoice> best;
  double least = 0;
  const auto offer = [&](const WidthChoice& choice, double cost) {
    if (best && cost >= least) return;
    least = cost;
    best = choice;
  };
  for (const int width : times.widths()) {
    if (width > tokens || static_cast<size_t>(width) > line.size()) break;
    const double ttft = times.Seconds(tokens, width);
    for (size_t first = 0; first + width <= line.size(); ++first) {
      if (!usable(first, width)) continue;
      const absl::Span<const WorkerLoad> segment = line.subspan(first, width);
      offer({first, width, MustWait(segment)}, Cost(ttft, segment, line.size(), queue));
      if (width > 1 || !line[first].interleave_after_s) continue;
      offer({first, 1, false, true}, InterleavedCost(ttft, line[first], line.size(), queue));
    }
  }
  return best;
}

}  // namespace runahead
