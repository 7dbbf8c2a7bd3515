#include "scheduler/partition/shared_buses.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "scheduler/partition/link_slowdown.h"

namespace runahead {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();  // of a time; of a rate: no limit

// In place of a worker: whoever has the known beginning.
constexpr int kLender = -1;

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
  bool look = true;      // whether what it may begin has changed since it was looked at
  int part = 0;          // that is under way
  double until_s = 0;    // end of kLatency, and of kBytes at the rate of now
  double bytes = 0;      // to go, in kBytes
  double rate = kNever;  // bytes a second
};

// One direction of a bus, and those that share it.
struct Share {
  double bytes_per_s = kNever;
  std::vector<Direction*> links;
};

class Events {
 public:
  Events(const CostModel& model, const ChainWork& work)
      : model_(model),
        work_(work),
        parts_(static_cast<size_t>(work.workers)),
        computing_(work.workers),
        workers_(parts_) {
    whole_s_.assign(static_cast<size_t>(model.layers) * (parts_ + 1) * (parts_ + 1), kNever);
    finished_s_.assign(static_cast<size_t>(model.layers + 1) * parts_, kNever);
    missing_.resize(static_cast<size_t>(model.layers) * parts_);
    run_.waiting_s.resize(parts_);
    for (int i = 0; i < work.workers; ++i) {
      finished_s_[i] = 0;
      workers_[i].until_s = work.times(0, i).qkv_s;
      for (int64_t layer = 0; layer < model.layers; ++layer) Missing(layer, i) = Expected(layer, i);
    }
    AddLender();
    for (int link = 0; link + 1 < work.workers; ++link) {
      AddDirection(link, link + 1, link, /*upstream=*/false);
      if (work.both_directions) AddDirection(link + 1, link, link, /*upstream=*/true);
    }
    for (size_t bus = 0; bus < model.buses.size(); ++bus) {
      for (const bool upstream : {false, true}) AddShare(static_cast<int>(bus), upstream);
    }
  }

  RunOnBuses Run() {
    while (computing_ > 0) {
      while (StepWorkers() || StepLinks()) {
      }
      if (transfers_changed_) ShareBuses();
      transfers_changed_ = false;
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
  // `at`: a worker, or kLender.
  double& Whole(int64_t layer, int at, int part) {
    return whole_s_[(static_cast<size_t>(layer) * (parts_ + 1) + at + 1) * (parts_ + 1) + part + 1];
  }
  int& Missing(int64_t layer, int at) { return missing_[static_cast<size_t>(layer) * parts_ + at]; }

  // Parts that a worker attends over in a layer, its own among them.
  int Expected(int64_t layer, int at) const {
    int expected = 1;
    for (int part = kKnownPart; part < (work_.both_directions ? work_.workers : at); ++part) {
      if (part != at && work_.bytes(layer, at, part) >= 0) ++expected;
    }
    return expected;
  }

  // Worker `at` has a part's K and V of a layer.
  void Arrived(int64_t layer, int at, int part, double when_s) {
    Whole(layer, at, part) = when_s;
    --Missing(layer, at);
    LookAgain(at);
  }

  // What worker `at` has or has finished may let the directions at it begin.
  void LookAgain(int at) {
    for (Direction& link : links_) link.look |= link.from == at || link.to == at;
  }

  // Those that can carry least take theirs first: so they are in this order.
  void AddShare(int bus, bool upstream) {
    Share share = {.bytes_per_s = model_.buses[bus].bytes_per_s, .links = {}};
    if (share.bytes_per_s == kNever) return;
    for (Direction& link : links_) {
      if (link.bus == bus && (link.from > link.to) == upstream) share.links.push_back(&link);
    }
    std::stable_sort(share.links.begin(), share.links.end(),
                     [](const Direction* a, const Direction* b) { return a->cost.bytes_per_s < b->cost.bytes_per_s; });
    shares_.push_back(std::move(share));
  }

  void AddDirection(int from, int to, int link, bool upstream) {
    Direction direction;
    direction.from = from;
    direction.to = to;
    direction.cost = LinkOf(model_, link);
    direction.number = DirectionNumber(link, upstream);
    direction.bus = BusOf(model_, link);
    direction.rate = direction.cost.bytes_per_s;
    links_.push_back(std::move(direction));
    BeginLayer(links_.back());
  }

  // From where the known beginning is, whole from the start, to the head.
  void AddLender() {
    for (int64_t layer = 0; layer < model_.layers; ++layer) Whole(layer, kLender, kKnownPart) = 0;
    Direction direction;
    direction.from = kLender;
    direction.to = 0;
    direction.cost.bytes_per_s = direction.rate = work_.known_per_s;
    links_.push_back(std::move(direction));
    BeginLayer(links_.back());
  }

  // What a direction carries of its layer: of layers without frames nothing, so it may go on at once.
  void BeginLayer(Direction& link) {
    for (; link.layer < model_.layers; ++link.layer) {
      const bool down = link.from < link.to;
      for (int part = down ? kKnownPart : link.from; part <= (down ? link.from : work_.workers - 1); ++part) {
        if (work_.bytes(link.layer, link.to, part) >= 0) link.left.push_back(part);
      }
      if (!link.left.empty()) return;
    }
  }

  // Whether any worker went on.
  bool StepWorkers() {
    bool stepped = false;
    for (int i = 0; i < work_.workers; ++i) {
      Worker& worker = workers_[i];
      if (worker.phase == Worker::Phase::kProject && worker.until_s <= now_) {
        worker.own_s = worker.until_s;
        Arrived(worker.layer, i, i, worker.own_s);
        worker.phase = Worker::Phase::kWait;
        stepped = true;
      }
      if (worker.phase == Worker::Phase::kWait && Missing(worker.layer, i) == 0) {
        run_.waiting_s[i] += now_ - worker.own_s;
        worker.until_s = now_ + work_.times(worker.layer, i).rest_s;
        worker.phase = Worker::Phase::kRest;
        stepped = true;
      }
      if (worker.phase == Worker::Phase::kRest && worker.until_s <= now_) {
        finished_s_[static_cast<size_t>(++worker.layer) * parts_ + i] = worker.until_s;
        worker.phase = worker.layer == model_.layers ? Worker::Phase::kDone : Worker::Phase::kProject;
        if (worker.layer < model_.layers) {
          worker.until_s += work_.times(worker.layer, i).qkv_s;
        } else {
          --computing_;
        }
        LookAgain(i);
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
      if (link.phase == Direction::Phase::kIdle && link.look) {
        link.look = false;
        if (link.layer < model_.layers && PostedAt(link) <= now_) stepped |= Begin(link);
      }
      if (link.phase == Direction::Phase::kLatency && link.until_s <= now_) {
        link.phase = Direction::Phase::kBytes;
        link.until_s = kNever;
        stepped = transfers_changed_ = true;
      }
      if (link.phase == Direction::Phase::kBytes && link.bytes <= 0) {
        Arrived(link.layer, link.to, link.part, now_);
        link.phase = Direction::Phase::kIdle;
        link.look = true;
        if (link.left.empty()) {
          ++link.layer;
          BeginLayer(link);
        }
        stepped = transfers_changed_ = true;
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
    for (const Share& share : shares_) {
      const auto moves = [](const Direction* link) { return link->phase == Direction::Phase::kBytes; };
      auto busy = std::count_if(share.links.begin(), share.links.end(), moves);
      double left = share.bytes_per_s;  // what they leave is for the others
      for (Direction* link : share.links) {
        if (!moves(link)) continue;
        link->rate = std::min(link->cost.bytes_per_s, left / static_cast<double>(busy--));
        left -= link->rate;
      }
    }
    for (Direction& link : links_) {
      if (link.phase == Direction::Phase::kBytes) link.until_s = now_ + link.bytes / link.rate;
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
  int computing_;       // workers that are not done
  double now_ = 0;
  std::vector<Worker> workers_;
  std::vector<Direction> links_;
  std::vector<Share> shares_;
  bool transfers_changed_ = true;  // which transfers are under way
  std::vector<int> missing_;       // [layers, workers]: parts that a worker still lacks of those it attends over
  // [layers, 1 + workers, 1 + parts], with the lender and the known beginning first: when a worker has a part's K and V
  // of a layer.
  std::vector<double> whole_s_;
  std::vector<double> finished_s_;  // [layers + 1, workers]: when a worker has finished so many layers
  RunOnBuses run_;
};

}  // namespace

RunOnBuses SimulateOnBuses(const CostModel& model, const ChainWork& work) {
  return Events(model, work).Run();
}

}  // namespace runahead
