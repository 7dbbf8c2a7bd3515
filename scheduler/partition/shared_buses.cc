#include "scheduler/partition/shared_buses.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "scheduler/partition/link_slowdown.h"

namespace runahead {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();  // of a time; of a rate: no limit

struct Worker {
  enum class Phase { kProject, kWait, kRest, kDone };
  Phase phase = Phase::kProject;
  int64_t layer = 0;
  double until_s = 0;  // end of kProject or kRest
  double own_s = 0;    // when its own K and V of the layer were there
};

// One direction of a link.
struct Direction {
  enum class Phase { kIdle, kLatency, kBytes };
  int from = 0, to = 0;
  LinkCost cost;
  uint64_t number = 0;
  int bus = -1;

  int64_t layer = 0;
  std::vector<int> left;  // parts of this layer that have not begun
  Phase phase = Phase::kIdle;
  int part = 0;          // that is under way
  double until_s = 0;    // end of kLatency, and of kBytes at the rate of now
  double bytes = 0;      // to go, in kBytes
  double rate = kNever;  // bytes a second
};

class Events {
 public:
  Events(const CostModel& model, const ChainWork& work)
      : model_(model), work_(work), parts_(static_cast<size_t>(work.workers)), workers_(parts_) {
    whole_s_.assign(static_cast<size_t>(model.layers) * parts_ * parts_, kNever);
    finished_s_.assign(static_cast<size_t>(model.layers + 1) * parts_, kNever);
    run_.waiting_s.resize(parts_);
    for (int i = 0; i < work.workers; ++i) {
      finished_s_[i] = 0;
      workers_[i].until_s = work.times(0, i).qkv_s;
    }
    for (int link = 0; link + 1 < work.workers; ++link) {
      AddDirection(link, link + 1, link, /*upstream=*/false);
      if (work.both_directions) AddDirection(link + 1, link, link, /*upstream=*/true);
    }
  }

  RunOnBuses Run() {
    const auto done = [](const Worker& worker) { return worker.phase == Worker::Phase::kDone; };
    while (!std::all_of(workers_.begin(), workers_.end(), done)) {
      while (StepWorkers() || StepLinks()) {
      }
      ShareBuses();
      const double next = NextEvent();
      if (next == kNever) break;  // all are done
      for (Direction& link : links_) {
        if (link.phase != Direction::Phase::kBytes) continue;
        link.bytes = link.until_s <= next ? 0 : link.bytes - link.rate * (next - now_);
      }
      now_ = next;
    }
    run_.last_layer_s = finished_s_[static_cast<size_t>(model_.layers) * parts_ + parts_ - 1];
    return std::move(run_);
  }

 private:
  double& Whole(int64_t layer, int at, int part) {
    return whole_s_[(static_cast<size_t>(layer) * parts_ + at) * parts_ + part];
  }

  void AddDirection(int from, int to, int link, bool upstream) {
    Direction direction;
    direction.from = from;
    direction.to = to;
    direction.cost = LinkOf(model_, link);
    direction.number = DirectionNumber(link, upstream);
    direction.bus = BusOf(model_, link);
    links_.push_back(std::move(direction));
    BeginLayer(links_.back());
  }

  // What a direction carries of its layer: of layers without frames nothing, so it may go on at once.
  void BeginLayer(Direction& link) {
    for (; link.layer < model_.layers; ++link.layer) {
      const bool down = link.from < link.to;
      for (int part = down ? 0 : link.from; part <= (down ? link.from : work_.workers - 1); ++part) {
        if (work_.bytes(link.layer, link.to, part) >= 0) link.left.push_back(part);
      }
      if (!link.left.empty()) return;
    }
  }

  // All K and V that worker `i` attends over in its layer are there.
  bool HasAll(int i, int64_t layer) {
    for (int part = 0; part < (work_.both_directions ? work_.workers : i); ++part) {
      const bool comes = part == i || work_.bytes(layer, i, part) >= 0;
      if (comes && Whole(layer, i, part) > now_) return false;
    }
    return true;
  }

  // Whether any worker went on.
  bool StepWorkers() {
    bool stepped = false;
    for (int i = 0; i < work_.workers; ++i) {
      Worker& worker = workers_[i];
      if (worker.phase == Worker::Phase::kProject && worker.until_s <= now_) {
        worker.own_s = Whole(worker.layer, i, i) = worker.until_s;
        worker.phase = Worker::Phase::kWait;
        stepped = true;
      }
      if (worker.phase == Worker::Phase::kWait && HasAll(i, worker.layer)) {
        run_.waiting_s[i] += now_ - worker.own_s;
        worker.until_s = now_ + work_.times(worker.layer, i).rest_s;
        worker.phase = Worker::Phase::kRest;
        stepped = true;
      }
      if (worker.phase == Worker::Phase::kRest && worker.until_s <= now_) {
        finished_s_[static_cast<size_t>(++worker.layer) * parts_ + i] = worker.until_s;
        worker.phase = worker.layer == model_.layers ? Worker::Phase::kDone : Worker::Phase::kProject;
        if (worker.layer < model_.layers) worker.until_s += work_.times(worker.layer, i).qkv_s;
        stepped = true;
      }
    }
    return stepped;
  }

  // From when on the receiver takes frames of the link's layer; kNever: that is not known yet.
  double PostedAt(const Direction& link) {
    if (work_.both_directions) return Whole(link.layer, link.to, link.to);
    const int64_t finished = std::max<int64_t>(0, link.layer + 1 - model_.receive_ahead_layers);
    return finished_s_[static_cast<size_t>(finished) * parts_ + link.to];
  }

  // Whether any link went on.
  bool StepLinks() {
    bool stepped = false;
    for (Direction& link : links_) {
      if (link.phase == Direction::Phase::kIdle && link.layer < model_.layers && PostedAt(link) <= now_) {
        stepped |= Begin(link);
      }
      if (link.phase == Direction::Phase::kLatency && link.until_s <= now_) {
        link.phase = Direction::Phase::kBytes;
        link.until_s = kNever;
        stepped = true;
      }
      if (link.phase == Direction::Phase::kBytes && link.bytes <= 0) {
        Whole(link.layer, link.to, link.part) = now_;
        link.phase = Direction::Phase::kIdle;
        if (link.left.empty()) {
          ++link.layer;
          BeginLayer(link);
        }
        stepped = true;
      }
    }
    return stepped;
  }

  // The frame that was there first, once it is.
  bool Begin(Direction& link) {
    const auto earlier = [&](int a, int b) {
      return Whole(link.layer, link.from, a) < Whole(link.layer, link.from, b);
    };
    const auto first = std::min_element(link.left.begin(), link.left.end(), earlier);
    if (Whole(link.layer, link.from, *first) > now_) return false;
    link.part = *first;
    link.left.erase(first);
    double factor = 1;
    if (link.cost.slowdown.probability > 0) {
      factor = SlowdownOf(link.cost.slowdown, link.number, link.layer, link.part);
    }
    link.phase = Direction::Phase::kLatency;
    link.until_s = now_ + factor * link.cost.latency_s;
    link.bytes = factor * work_.bytes(link.layer, link.to, link.part);
    return true;
  }

  // Gives each transfer that is under way its rate of now.
  void ShareBuses() {
    for (Direction& link : links_) link.rate = link.cost.bytes_per_s;
    for (size_t bus = 0; bus < model_.buses.size(); ++bus) {
      for (const bool upstream : {false, true}) ShareBus(static_cast<int>(bus), upstream);
    }
    for (Direction& link : links_) {
      if (link.phase == Direction::Phase::kBytes) link.until_s = now_ + link.bytes / link.rate;
    }
  }

  void ShareBus(int bus, bool upstream) {
    double left = model_.buses[bus].bytes_per_s;
    if (left == kNever) return;
    std::vector<Direction*> busy;
    for (Direction& link : links_) {
      const bool on = link.bus == bus && (link.from > link.to) == upstream;
      if (on && link.phase == Direction::Phase::kBytes) busy.push_back(&link);
    }
    // Those that can carry least take theirs first; what they leave is for the others.
    std::sort(busy.begin(), busy.end(), [](const Direction* a, const Direction* b) { return a->rate < b->rate; });
    for (size_t i = 0; i < busy.size(); ++i) {
      busy[i]->rate = std::min(busy[i]->rate, left / static_cast<double>(busy.size() - i));
      left -= busy[i]->rate;
    }
  }

  double NextEvent() const {
    double next = kNever;
    for (const Worker& worker : workers_) {
      const bool computes = worker.phase == Worker::Phase::kProject || worker.phase == Worker::Phase::kRest;
      if (computes) next = std::min(next, worker.until_s);
    }
    for (const Direction& link : links_) {
      if (link.phase != Direction::Phase::kIdle) next = std::min(next, link.until_s);
    }
    return next;
  }

  const CostModel& model_;
  const ChainWork& work_;
  const size_t parts_;  // as many as workers
  double now_ = 0;
  std::vector<Worker> workers_;
  std::vector<Direction> links_;
  std::vector<double> whole_s_;     // [layers, workers, parts]: when a worker has a part's K and V of a layer
  std::vector<double> finished_s_;  // [layers + 1, workers]: when a worker has finished so many layers
  RunOnBuses run_;
};

}  // namespace

RunOnBuses SimulateOnBuses(const CostModel& model, const ChainWork& work) {
  return Events(model, work).Run();
}

}  // namespace runahead
