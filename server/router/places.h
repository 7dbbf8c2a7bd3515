// The places of the worker list that names come into and go from.
#pragma once

#include <string>

namespace runahead {

// Called by one thread; may block for as long as a connection takes to end.
class Places {
 public:
  virtual ~Places() = default;
  // `address` (host:port) has come into a vacant place: it is connected to, and joins when it agrees.
  virtual void Occupy(int place, const std::string& address) = 0;
  // The address of a place that was retired is named again.
  virtual void Keep(int place) = 0;
  // The address of the place is not named any more: nothing new is planned on the worker, what it has goes on. True
  // once nothing is left on it, and the place can be vacated; to be asked again until then.
  virtual bool Retire(int place) = 0;
  virtual void Vacate(int place) = 0;
};

}  // namespace runahead
