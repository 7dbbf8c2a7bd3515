// Which of a service's names is in which place, from one look-up to the next. Pure.
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
    std::vector<int> occupied;          // places that a name has come into (address())
    std::vector<int> kept;              // places whose names are back before they were vacated
    std::vector<std::string> left_out;  // names for which there is no place
  };

  // `places` are the numbers by which the caller knows the service's places.
  explicit Membership(const std::vector<int>& places);

  // What the name service has named, each host:port once. An empty answer is not taken for the truth: it changes
  // nothing, as a look-up that failed must not. A name keeps its place; one that is gone keeps it, retired, until
  // Vacate.
  Changes Named(const std::set<std::string>& addresses);

  // Of one of the places; empty: vacant.
  const std::string& address(int place) const { return places_.at(place).address; }
  // Places whose names are gone.
  std::vector<int> retired() const;
  void Vacate(int place) { places_.at(place) = {}; }

 private:
  struct Place {
    std::string address;  // empty: vacant
    bool retired = false;
  };
  std::map<int, Place> places_;
};

}  // namespace runahead
