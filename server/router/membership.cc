#include "server/router/membership.h"

namespace runahead {

Membership::Membership(const std::vector<int>& places) {
  for (int number : places) places_[number] = {};
}

Membership::Changes Membership::Named(const std::set<std::string>& addresses) {
  Changes changes;
  if (addresses.empty()) return changes;
  std::set<std::string> without_place = addresses;
  for (auto& [number, place] : places_) {
    if (place.address.empty()) continue;
    const bool named = without_place.erase(place.address) > 0;
    if (named && place.retired) changes.kept.push_back(number);
    place.retired = !named;
  }
  for (auto& [number, place] : places_) {
    if (!place.address.empty() || without_place.empty()) continue;
    place.address = without_place.extract(without_place.begin()).value();
    changes.occupied.push_back(number);
  }
  changes.left_out.assign(without_place.begin(), without_place.end());
  return changes;
}

std::vector<int> Membership::retired() const {
  std::vector<int> retired;
  for (const auto& [number, place] : places_) {
    if (place.retired) retired.push_back(number);
  }
  return retired;
}

}  // namespace runahead
