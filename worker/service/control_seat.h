// Which router holds a worker, and whether it may come back after its control stream broke. Pure: time is an argument.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace runahead {

// So long is the epoch kept for the router whose stream broke. Less than the life of a lease (30 s) by more than the
// silence of a router that is borne (kRouterSilence, and Silence::kLongestLag): whatever the router knows of leases is
// still true when it resumes.
inline constexpr absl::Duration kResumeGrace = absl::Seconds(5);

// For so long after a break another router has to wait: the one that held the epoch tries to resume it at once, and
// again within this time, where it lives. A router that was restarted waits no longer.
inline constexpr absl::Duration kOthersWait = absl::Seconds(1);

// What a router says first on a control stream.
struct Greeting {
  uint64_t router = 0;       // its incarnation
  uint64_t incarnation = 0;  // the worker's, as the router knows it
  uint32_t epoch = 0;        // likewise
  bool resume = false;       // it held this epoch, and its stream broke
};

enum class SeatAnswer {
  kTaken,        // it holds the worker from now on, in a new epoch
  kResumed,      // it holds the worker as before; its former stream, if any is left, is over
  kStale,        // it knows another incarnation or epoch, or an epoch is just ending: it is to ask again
  kTooLate,      // there is nothing to resume
  kEpochEnds,    // likewise kStale; the caller ends the epoch first
  kOtherRouter,  // another router holds the worker
  kOthersWait,   // likewise, but its stream broke: it may be gone
};

// For one thread at a time. One epoch begins after another; in each one router, or none, holds the worker.
class ControlSeat {
 public:
  ControlSeat(uint64_t incarnation, uint32_t epoch) : incarnation_(incarnation), epoch_(epoch) {}

  SeatAnswer Ask(const Greeting& greeting, absl::Time now);
  // The stream of the router that holds the worker broke.
  void Broke(absl::Time now) { broke_ = now; }
  // A router holds the worker, whether its stream is there or may be resumed.
  bool held() const { return router_.has_value(); }
  // The epoch is to end, for its router has not come back in time.
  bool Overdue(absl::Time now) const { return broke_ && now - *broke_ >= kResumeGrace; }

  // The epoch ends: nobody holds the worker, nor can, before the next one begins.
  void EndEpoch();
  void BeginEpoch(uint32_t epoch) { epoch_ = epoch; }

 private:
  const uint64_t incarnation_;
  std::optional<uint32_t> epoch_;  // nothing between two epochs
  std::optional<uint64_t> router_;
  std::optional<absl::Time> broke_;  // nothing while the router's stream is there
};

}  // namespace runahead
