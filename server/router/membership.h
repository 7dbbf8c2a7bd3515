// Which of a service's names is in which seat, from one look-up to the next. Pure.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace runahead {

// For one thread.
class Membership {
 public:
  struct Changes {
    std::vector<int> occupied;          // seats that a name has come into (address())
    std::vector<int> kept;              // seats whose names are back before they were vacated
    std::vector<std::string> left_out;  // names for which there is no seat
  };

  // `seats` are the numbers by which the caller knows the service's seats.
  explicit Membership(const std::vector<int>& seats);

  // What the name service has named, each host:port once. An empty answer is not taken for the truth: it changes
  // nothing, as a look-up that failed must not. A name keeps its seat; one that is gone keeps it, retired, until
  // Vacate.
  Changes Named(const std::set<std::string>& addresses);

  // Of one of the seats; empty: vacant.
  const std::string& address(int seat) const { return seats_.at(seat).address; }
  // Seats whose names are gone.
  std::vector<int> retired() const;
  void Vacate(int seat) { seats_.at(seat) = {}; }

 private:
  struct Seat {
    std::string address;  // empty: vacant
    bool retired = false;
  };
  std::map<int, Seat> seats_;
};

}  // namespace runahead
