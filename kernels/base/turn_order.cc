#include "kernels/base/turn_order.h"

#include <algorithm>

namespace runahead {
namespace {

// A kind that had no loop for longer has rested. A step follows the one before it sooner.
constexpr absl::Duration kRest = absl::Milliseconds(1);

size_t Index(LoopKind kind) {
  return static_cast<size_t>(kind);
}

LoopKind Other(LoopKind kind) {
  return kind == LoopKind::kFirst ? LoopKind::kOrdinary : LoopKind::kFirst;
}

}  // namespace

bool TurnOrder::Take(LoopKind kind, absl::Time now) {
  if (turn_ == kind) {
    running_ = true;
    return true;
  }
  if (!waits_[Index(kind)] && now - ended_[Index(kind)] > kRest) {
    Count(now);
    used_[Index(kind)] = std::max(used_[Index(kind)], used_[Index(Other(kind))]);
  }
  waits_[Index(kind)] = true;
  if (!turn_.has_value()) Give(kind, now);
  return turn_ == kind || Pass(now);
}

bool TurnOrder::Pass(absl::Time now) {
  const LoopKind other = Other(*turn_);
  if (!waits_[Index(other)]) return false;
  Count(now);
  if (!Over(now)) return false;
  Give(other, now);
  return true;
}

void TurnOrder::End(LoopKind kind, absl::Time now) {
  if (turn_ == kind && !running_) return;
  ended_[Index(kind)] = now;
  if (turn_ == kind) running_ = false;
}

void TurnOrder::Withdraw(LoopKind kind) {
  waits_[Index(kind)] = false;
}

void TurnOrder::Count(absl::Time now) {
  if (turn_.has_value()) used_[Index(*turn_)] += now - counted_;
  counted_ = now;
}

void TurnOrder::Give(LoopKind kind, absl::Time now) {
  turn_ = kind;
  counted_ = now;
  running_ = true;  // its loop waits
  waits_[Index(kind)] = false;
}

bool TurnOrder::Over(absl::Time now) const {
  const absl::Duration lead = used_[Index(LoopKind::kFirst)] - used_[Index(LoopKind::kOrdinary)];
  if (turn_ == LoopKind::kOrdinary) return !running_ || lead <= absl::ZeroDuration();
  return lead >= kMostLead || (!running_ && now - ended_[Index(LoopKind::kFirst)] >= kBetweenLoops);
}

}  // namespace runahead
