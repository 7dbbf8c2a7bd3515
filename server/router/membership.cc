#include "server/router/membership.h"

namespace runahead {

Membership::Membership(const std::vector<int>& seats) {
  for (int number : seats) seats_[number] = {};
}

Membership::Changes Membership::Named(const std::set<std::string>& addresses) {
  Changes changes;
  if (addresses.empty()) return changes;
  std::set<std::string> without_seat = addresses;
  for (auto& [number, seat] : seats_) {
    if (seat.address.empty()) continue;
    const bool named = without_seat.erase(seat.address) > 0;
    if (named && seat.retired) changes.kept.push_back(number);
    seat.retired = !named;
  }
  for (auto& [number, seat] : seats_) {
    if (!seat.address.empty() || without_seat.empty()) continue;
    seat.address = without_seat.extract(without_seat.begin()).value();
    changes.occupied.push_back(number);
  }
  changes.left_out.assign(without_seat.begin(), without_seat.end());
  return changes;
}

std::vector<int> Membership::retired() const {
  std::vector<int> retired;
  for (const auto& [number, seat] : seats_) {
    if (seat.retired) retired.push_back(number);
  }
  return retired;
}

}  // namespace runahead
