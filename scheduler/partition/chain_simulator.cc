#include "scheduler/partition/chain_simulator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/partition/link_slowdown.h"
#include "scheduler/partition/shared_buses.h"

namespace runahead {
namespace {

// Pairs of tokens are counted in 64 bits.
constexpr int64_t kMaxTokens = int64_t{1} << 30;

// K and V of one part or of the known beginning, on its way along the line.
struct Frame {
  double whole_s = 0;  // when the worker that now has it has all of it
  int part = 0;
};

// One direction of a link.
class LinkUse {
 public:
  // `number`: one for each direction of each link.
  LinkUse(const LinkCost& cost, uint64_t number)
      : cost_(cost), seconds_per_byte_(1 / cost.bytes_per_s), number_(number) {}

  // When a frame that may go at ready_s has arrived.
  double Carry(double ready_s, double bytes, int64_t layer, int part) {
    double seconds = cost_.latency_s + bytes * seconds_per_byte_;
    if (cost_.slowdown.probability > 0) seconds *= SlowdownOf(cost_.slowdown, number_, layer, part);
    free_s_ = std::max(free_s_, ready_s) + seconds;
    return free_s_;
  }

 private:
  LinkCost cost_;
  double seconds_per_byte_;
  uint64_t number_;
  double free_s_ = 0;
};

// What a layer is: its times and what crosses each link. Of two kinds where some layers have windows.
struct LayerKind {
  int64_t layers = 0;                 // of this kind
  int64_t window = 0;                 // 0: none
  std::vector<LayerTimes> times;      // [width]
  std::vector<int64_t> dot_products;  // [width]
  int64_t traffic_entries = 0;
};

class Simulation {
 public:
  Simulation(const CostModel& model, Schedule schedule, absl::Span<const int64_t> parts, const KnownBeginning& known)
      : model_(model),
        parts_(parts),
        width_(static_cast<int>(parts.size())),
        kvr_(!IsTsp(schedule)),
        known_per_s_(known.bytes_per_s),
        bytes_per_row_(model.kv_bytes_per_token / static_cast<double>(model.layers)),
        bounds_({known.tokens}) {
    for (int64_t part : parts) bounds_.push_back(bounds_.back() + part);
    const bool skip = kvr_ ? model.causal_skip : schedule == Schedule::kTspCausal || model.window_layers > 0;
    plain_ = KindOf(model.layers - model.window_layers, 0, skip);
    windowed_ = KindOf(model.window_layers, model.window, skip);
    for (int i = 0; i < width_; ++i) {
      run_.dot_products.push_back(Mean(plain_.dot_products[i], windowed_.dot_products[i]));
      run_.busy_s.push_back(OfAllLayers(plain_.times[i].qkv_s + plain_.times[i].rest_s,
                                        windowed_.times[i].qkv_s + windowed_.times[i].rest_s));
      if (i + 1 == width_) break;
      downstream_.emplace_back(LinkOf(model, i), DirectionNumber(i, false));
      upstream_.emplace_back(LinkOf(model, i), DirectionNumber(i, true));
    }
    run_.waiting_s.resize(width_);
    run_.traffic_entries = Mean(plain_.traffic_entries, windowed_.traffic_entries);
    run_.traffic_bytes = bytes_per_row_ * OfAllLayers(static_cast<double>(plain_.traffic_entries),
                                                      static_cast<double>(windowed_.traffic_entries));
    run_.known_bytes = bytes_per_row_ * OfAllLayers(static_cast<double>(RowsTo(0, kKnownPart, 0)),
                                                    static_cast<double>(RowsTo(0, kKnownPart, windowed_.window)));
    frames_.reserve(width_ + 2);
  }

  SimulatedRun OnBuses() {
    ChainWork work;
    work.both_directions = !kvr_;
    work.known_per_s = known_per_s_;
    work.workers = width_;
    work.times = [this](int64_t layer, int worker) { return KindAt(layer).times[worker]; };
    work.bytes = [this](int64_t layer, int to, int part) {
      const int64_t rows = RowsTo(to, part, KindAt(layer).window);
      return rows > 0 ? bytes_per_row_ * static_cast<double>(rows) : -1;
    };
    RunOnBuses shared = SimulateOnBuses(model_, work);
    run_.waiting_s = std::move(shared.waiting_s);
    return Finish(shared.last_layer_s);
  }

  SimulatedRun Kvr() {
    // ends[l * width + i]: worker i has finished layer l - 1.
    std::vector<double> ends((model_.layers + 1) * width_);
    LinkUse lender({.latency_s = 0, .bytes_per_s = known_per_s_, .slowdown = {}}, /*number=*/0);
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const LayerKind& kind = KindAt(layer);
      const double* begin = &ends[layer * width_];
      double* end = &ends[(layer + 1) * width_];
      const double* posted = &ends[std::max<int64_t>(0, layer + 1 - model_.receive_ahead_layers) * width_];
      frames_.clear();
      if (const int64_t rows = RowsTo(0, kKnownPart, kind.window); rows > 0) {
        const double bytes = bytes_per_row_ * static_cast<double>(rows);
        frames_.push_back({lender.Carry(posted[0], bytes, layer, kKnownPart), kKnownPart});
      }
      for (int i = 0; i < width_; ++i) {
        const double own = begin[i] + kind.times[i].qkv_s;
        const double whole = frames_.empty() ? own : std::max(own, frames_.back().whole_s);
        run_.waiting_s[i] += whole - own;
        end[i] = whole + kind.times[i].rest_s;
        if (i + 1 < width_) Pass(downstream_[i], layer, i, i + 1, own, posted[i + 1]);
      }
    }
    return Finish(ends.back());
  }

  SimulatedRun Tsp() {
    std::vector<double> now(width_), own(width_), whole(width_);
    for (int64_t layer = 0; layer < model_.layers; ++layer) {
      const LayerKind& kind = KindAt(layer);
      for (int i = 0; i < width_; ++i) whole[i] = own[i] = now[i] + kind.times[i].qkv_s;
      // The exchange is collective: a worker takes frames once it has its own.
      frames_.clear();
      for (int i = 0; i + 1 < width_; ++i) {
        Pass(downstream_[i], layer, i, i + 1, own[i], own[i + 1]);
        whole[i + 1] = std::max(whole[i + 1], frames_.back().whole_s);
      }
      frames_.clear();
      for (int i = width_ - 1; i > 0; --i) {
        Pass(upstream_[i - 1], layer, i, i - 1, own[i], own[i - 1]);
        whole[i - 1] = std::max(whole[i - 1], frames_.back().whole_s);
      }
      for (int i = 0; i < width_; ++i) {
        run_.waiting_s[i] += whole[i] - own[i];
        now[i] = whole[i] + kind.times[i].rest_s;
      }
    }
    return Finish(now.back());
  }

 private:
  // As if all layers were of this kind.
  LayerKind KindOf(int64_t layers, int64_t window, bool skip) const {
    LayerKind kind{.layers = layers, .window = window, .times = {}, .dot_products = {}, .traffic_entries = 0};
    for (int i = 0; i < width_; ++i) {
      const int64_t begin = bounds_[i], end = bounds_[i + 1], keys = kvr_ ? end : bounds_.back();
      kind.dot_products.push_back(window > 0 ? WindowPairs(begin, end, window)
                                             : AttentionPairs(begin, end, keys, skip));
      LayerTimes times = TimesOfLayer(model_, i, parts_[i], kind.dot_products.back());
      if (width_ > 1) {
        times.qkv_s *= model_.together_factor;
        times.rest_s *= model_.together_factor;
      }
      kind.times.push_back(times);
      if (i + 1 == width_) break;
      if (kvr_) {
        kind.traffic_entries += window > 0 ? std::min(end, window - 1) : end;
      } else {
        kind.traffic_entries += bounds_.back();
      }
    }
    return kind;
  }
  const LayerKind& KindAt(int64_t layer) const { return IsWindowLayer(model_, layer) ? windowed_ : plain_; }
  double OfAllLayers(double plain, double windowed) const {
    return plain * static_cast<double>(plain_.layers) + windowed * static_cast<double>(windowed_.layers);
  }
  // Of a layer, rounded.
  int64_t Mean(int64_t plain, int64_t windowed) const {
    const double share = static_cast<double>(windowed_.layers) / static_cast<double>(model_.layers);
    return plain - std::llround(static_cast<double>(plain - windowed) * share);
  }
  // Rows of part `part`, or of kKnownPart, that go to worker `to`.
  int64_t RowsTo(int to, int part, int64_t window) const {
    const int64_t seen = kvr_ && window > 0 ? bounds_[to] + 1 - window : 0;
    return bounds_[part + 1] - std::max(part == kKnownPart ? 0 : bounds_[part], seen);
  }

  // Worker i sends on to its neighbour what that one needs of what it has (frames_) and of its own part, each once it
  // is whole and taken at the other end from `posted` on. Afterwards frames_ are the neighbour's, still in the order of
  // arrival.
  void Pass(LinkUse& link, int64_t layer, int i, int to, double own, double posted) {
    size_t at = frames_.size();
    while (at > 0 && frames_[at - 1].whole_s > own) --at;
    frames_.insert(frames_.begin() + at, Frame{own, i});
    const int64_t window = KindAt(layer).window;
    frames_.erase(std::remove_if(frames_.begin(), frames_.end(),
                                 [&](const Frame& frame) { return RowsTo(to, frame.part, window) <= 0; }),
                  frames_.end());
    for (Frame& frame : frames_) {
      const double bytes = bytes_per_row_ * static_cast<double>(RowsTo(to, frame.part, window));
      frame.whole_s = link.Carry(std::max(frame.whole_s, posted), bytes, layer, frame.part);
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
  const bool kvr_;
  const double known_per_s_;     // bytes of the known beginning that come to the head
  const double bytes_per_row_;   // of one layer
  std::vector<int64_t> bounds_;  // [width + 1], from s_0 on
  LayerKind plain_, windowed_;
  std::vector<LinkUse> downstream_, upstream_;  // [width - 1]
  std::vector<Frame> frames_;                   // what the worker at hand has, but for its own part
  SimulatedRun run_;
};

absl::Status CheckKnown(const KnownBeginning& known, Schedule schedule) {
  if (known.tokens < 0 || known.tokens > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("known.tokens: ", known.tokens, " is not between 0 and ", kMaxTokens));
  }
  if (!(known.bytes_per_s > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("known.bytes_per_s: ", known.bytes_per_s, " is not above 0"));
  }
  if (known.tokens > 0 && IsTsp(schedule)) {
    return absl::InvalidArgumentError(absl::StrCat("known.tokens: ", known.tokens, ", but schedule ",
                                                   std::string(ScheduleName(schedule)),
                                                   " computes a prompt from its first token"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SimulatedRun> SimulateChain(const CostModel& model, Schedule schedule, absl::Span<const int64_t> parts,
                                           const KnownBeginning& known) {
  RUNAHEAD_RETURN_IF_ERROR(CheckCostModel(model, static_cast<int>(parts.size())));
  RUNAHEAD_RETURN_IF_ERROR(CheckKnown(known, schedule));
  int64_t tokens = known.tokens;
  for (int64_t part : parts) {
    if (part < 1) return absl::InvalidArgumentError(absl::StrCat("parts: ", part, " is not at least 1"));
    if (part > kMaxTokens - tokens) {
      return absl::InvalidArgumentError(absl::StrCat("parts: more than ", kMaxTokens, " tokens together"));
    }
    tokens += part;
  }
  Simulation simulation(model, schedule, parts, known);
  if (!model.buses.empty()) return simulation.OnBuses();
  return IsTsp(schedule) ? simulation.Tsp() : simulation.Kvr();
}

}  // namespace runahead
