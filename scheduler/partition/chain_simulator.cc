#include "scheduler/partition/chain_simulator.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace runahead {
namespace {

// Pairs of tokens are counted in 64 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 30;

// K and V of one part, on its way along the line.
struct Frame {
  double whole_s = 0;  // when the worker that now has it has all of it
  int part = 0;
};

// splitmix64's finaliser: a draw in [0, 1) that depends on all bits of the key.
double Draw(uint64_t key) {
  key += 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return static_cast<double>((key ^ (key >> 31)) >> 11) * 0x1p-53;
}

// One direction of a link.
class LinkUse {
 public:
  // `number`: one for each direction of each link.
  LinkUse(const LinkCost& cost, uint64_t number)
      : cost_(cost), seconds_per_byte_(1 / cost.bytes_per_s), number_(number) {}

  // When a frame that may go at ready_s has arrived.
  double Carry(double ready_s, double bytes, int64_t layer, int part) {
    double seconds = cost_.latency_s + bytes * seconds_per_byte_;
    if (cost_.slowdown.probability > 0) seconds *= Factor(layer, part);
    free_s_ = std::max(free_s_, ready_s) + seconds;
    return free_s_;
  }

 private:
  double Factor(int64_t layer, int part) const {
    const uint64_t frame = (number_ << 48) ^ (static_cast<uint64_t>(part) << 32) ^ static_cast<uint64_t>(layer);
    const uint64_t key = cost_.slowdown.seed * 0xd1342543de82ef95 + frame * 2;
    if (Draw(key) >= cost_.slowdown.probability) return 1;
    return 1 + Draw(key + 1) * (cost_.slowdown.max_factor - 1);
  }

  LinkCost cost_;
  double seconds_per_byte_;
  uint64_t number_;
  double free_s_ = 0;
};

class Simulation {
 public:
  Simulation(const CostModel& model, Schedule schedule, absl::Span<const int64_t> parts)
      : model_(model), parts_(parts), width_(static_cast<int>(parts.size())) {
    int64_t tokens = 0;
    for (int64_t part : parts) tokens += part;
    const bool kvr = !IsTsp(schedule);
    const bool skip = kvr ? model.causal_skip : schedule == Schedule::kTspCausal;
    int64_t begin = 0;
    for (int i = 0; i < width_; ++i) {
      const int64_t end = begin + parts[i];
      run_.dot_products.push_back(AttentionPairs(begin, end, kvr ? end : tokens, skip));
      times_.push_back(TimesOfLayer(model, i, parts[i], run_.dot_products.back()));
      if (width_ > 1) {
        times_.back().qkv_s *= model.together_factor;
        times_.back().rest_s *= model.together_factor;
      }
      run_.busy_s.push_back((times_[i].qkv_s + times_[i].rest_s) * static_cast<double>(model.layers));
      bytes_.push_back(model.kv_bytes_per_token / static_cast<double>(model.layers) * static_cast<double>(parts[i]));
      if (i + 1 < width_) {
        run_.traffic_entries += kvr ? end : tokens;
        downstream_.emplace_back(LinkOf(model, i), 2 * i);
        upstream_.emplace_back(LinkOf(model, i), 2 * i + 1);
      }
      begin = end;
    }
    run_.waiting_s.resize(width_);
    run_.traffic_bytes = static_cast<double>(run_.traffic_entries) * model.kv_bytes_per_token;
    frames_.reserve(width_ + 1);
  }

  SimulatedRun Kvr() {
    // ends[l * width + i]: worker i has finished layer l - 1.
    std::vector<double> ends((model_.layers + 1) * width_);
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const double* begin = &ends[layer * width_];
      double* end = &ends[(layer + 1) * width_];
      const double* posted = &ends[std::max<int64_t>(0, layer + 1 - model_.receive_ahead_layers) * width_];
      frames_.clear();
      for (int i = 0; i < width_; ++i) {
        const double own = begin[i] + times_[i].qkv_s;
        const double whole = frames_.empty() ? own : std::max(own, frames_.back().whole_s);
        run_.waiting_s[i] += whole - own;
        end[i] = whole + times_[i].rest_s;
        if (i + 1 < width_) Pass(downstream_[i], layer, i, own, posted[i + 1]);
      }
    }
    return Finish(ends.back());
  }

  SimulatedRun Tsp() {
    std::vector<double> now(width_), own(width_), whole(width_);
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      for (int i = 0; i < width_; ++i) whole[i] = own[i] = now[i] + times_[i].qkv_s;
      // The exchange is collective: a worker takes frames once it has its own.
      frames_.clear();
      for (int i = 0; i + 1 < width_; ++i) {
        Pass(downstream_[i], layer, i, own[i], own[i + 1]);
        whole[i + 1] = std::max(whole[i + 1], frames_.back().whole_s);
      }
      frames_.clear();
      for (int i = width_ - 1; i > 0; --i) {
        Pass(upstream_[i - 1], layer, i, own[i], own[i - 1]);
        whole[i - 1] = std::max(whole[i - 1], frames_.back().whole_s);
      }
      for (int i = 0; i < width_; ++i) {
        run_.waiting_s[i] += whole[i] - own[i];
        now[i] = whole[i] + times_[i].rest_s;
      }
    }
    return Finish(now.back());
  }

 private:
  // Worker i sends on what it has (frames_) and its own part, each once it is whole and taken at the other end from
  // `posted` on. Afterwards frames_ are the neighbour's, still in the order of arrival.
  void Pass(LinkUse& link, int64_t layer, int i, double own, double posted) {
    size_t at = frames_.size();
    while (at > 0 && frames_[at - 1].whole_s > own) --at;
    frames_.insert(frames_.begin() + at, Frame{own, i});
    for (Frame& frame : frames_) {
      frame.whole_s = link.Carry(std::max(frame.whole_s, posted), bytes_[frame.part], layer, frame.part);
    }
  }

  SimulatedRun Finish(double last_layer_s) {
    run_.busy_s.back() += model_.logits_s;
    run_.ttft_s = last_layer_s + model_.logits_s;
    return std::move(run_);
  }

  const CostModel& model_;
  const absl::Span<const int64_t> parts_;
  const int width_;
  std::vector<LayerTimes> times_;               // [width] of one layer
  std::vector<double> bytes_;                   // [width] K and V of one layer
  std::vector<LinkUse> downstream_, upstream_;  // [width - 1]
  std::vector<Frame> frames_;                   // what the worker at hand has, but for its own part
  SimulatedRun run_;
};

}  // namespace

absl::StatusOr<SimulatedRun> SimulateChain(const CostModel& model, Schedule schedule, absl::Span<const int64_t> parts) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(model, static_cast<int>(parts.size())));
  int64_t tokens = 0;
  for (int64_t part : parts) {
    if (part < 1) return absl::InvalidArgumentError(absl::StrCat("parts: ", part, " is not at least 1"));
    if (part > kMaxTokens - tokens) {
      return absl::InvalidArgumentError(absl::StrCat("parts: more than ", kMaxTokens, " tokens together"));
    }
    tokens += part;
  }
  Simulation simulation(model, schedule, parts);
  return IsTsp(schedule) ? simulation.Tsp() : simulation.Kvr();
}

}  // namespace runahead
