// The seats of the worker list that names come into and go from.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace runahead {

// Called by one thread; may block for as long as a connection takes to end.
class Seats {
 public:
  virtual ~Seats() = default;
  // `address` (host:port) has come into a vacant seat: it is connected to, and joins when it agrees. Not OK where the
  // system refuses what that takes: the seat stays vacant.
  virtual absl::Status Occupy(int seat, const std::string& address) = 0;
  // The address of a seat that was retired is named again.
  virtual void Keep(int seat) = 0;
  // The address of the seat is not named any more: nothing new is planned on the worker, what it has goes on. True
  // once nothing is left on it, and the seat can be vacated; to be asked again until then.
  virtual bool Retire(int seat) = 0;
  virtual void Vacate(int seat) = 0;
};

}  // namespace runahead
