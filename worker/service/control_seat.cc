#include "worker/service/control_seat.h"

namespace runahead {

SeatAnswer ControlSeat::Ask(const Greeting& greeting, absl::Time now) {
  const bool same_life = greeting.incarnation == incarnation_ && epoch_ == greeting.epoch;
  if (router_ && router_ != greeting.router) {
    if (!broke_) return SeatAnswer::kOtherRouter;
    return now - *broke_ < kOthersWait ? SeatAnswer::kOthersWait : SeatAnswer::kEpochEnds;
  }
  if (router_ && !greeting.resume) return SeatAnswer::kEpochEnds;  // it has given up what it held
  if (greeting.resume) {
    if (!router_ || !same_life) return SeatAnswer::kTooLate;
    broke_.reset();
    return SeatAnswer::kResumed;
  }
  if (!same_life) return SeatAnswer::kStale;
  router_ = greeting.router;
  return SeatAnswer::kTaken;
}

void ControlSeat::EndEpoch() {
  epoch_.reset();
  router_.reset();
  broke_.reset();
}

}  // namespace runahead
