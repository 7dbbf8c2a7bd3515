// An object of JSON that keeps its members in order and finds each by its name at once.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace runahead {

// For nlohmann::basic_json in the place of its ordered_map, which compares each name with all before it: an object of a
// hundred thousand members takes that minutes. In the order in which members came; what JSON needs of a map, and no
// more. `Key` is a std::string. Members stand in one vector: adding one moves the others.
template <typename Key, typename T, typename IgnoredLess = std::less<Key>,
          typename Allocator = std::allocator<std::pair<const Key, T>>>
class IndexedMap : public std::vector<std::pair<const Key, T>, Allocator> {
 public:
  using Members = std::vector<std::pair<const Key, T>, Allocator>;
  using key_type = Key;
  using mapped_type = T;
  using key_compare = std::equal_to<>;
  using iterator = typename Members::iterator;
  using const_iterator = typename Members::const_iterator;
  using size_type = typename Members::size_type;
  using value_type = typename Members::value_type;

  IndexedMap() = default;
  template <typename It>
  IndexedMap(It first, It last, const Allocator& /*unused*/ = Allocator()) {
    for (; first != last; ++first) emplace(first->first, T(first->second));
  }
  IndexedMap(std::initializer_list<value_type> members, const Allocator& unused = Allocator())
      : IndexedMap(members.begin(), members.end(), unused) {}

  // A name that is there keeps its value.
  template <typename Name>
  std::pair<iterator, bool> emplace(Name&& name, T&& value) {
    const iterator known = find(name);
    if (known != this->end()) return {known, false};
    Members::emplace_back(std::forward<Name>(name), std::move(value));
    Index();
    return {std::prev(this->end()), true};
  }
  template <typename Name>
  T& operator[](Name&& name) {
    return emplace(std::forward<Name>(name), T{}).first->second;
  }

  iterator find(std::string_view name) { return this->begin() + PlaceOf(name); }
  const_iterator find(std::string_view name) const { return this->begin() + PlaceOf(name); }
  size_type count(std::string_view name) const { return find(name) == this->end() ? 0 : 1; }

  // Takes time by how many stand behind it.
  size_type erase(std::string_view name) {
    const iterator at = find(name);
    if (at == this->end()) return 0;
    erase(at);
    return 1;
  }
  iterator erase(iterator at) { return erase(at, std::next(at)); }
  iterator erase(iterator first, iterator last) {
    const auto place = first - this->begin();
    // Names are const, so they cannot be moved over others: each is made anew where it goes.
    iterator to = first;
    for (iterator from = last; from != this->end(); ++from, ++to) {
      std::destroy_at(&*to);
      new (&*to) value_type(std::move(*from));
    }
    while (this->end() != to) Members::pop_back();
    places_.clear();
    Index();
    return this->begin() + place;
  }
  void clear() {
    Members::clear();
    places_.clear();
  }

 private:
  // Fewer are compared one by one, in less time and memory.
  static constexpr size_type kFew = 16;

  // Of the member; the size where there is none.
  typename Members::difference_type PlaceOf(std::string_view name) const {
    if (places_.empty()) {
      const auto has = [name](const value_type& member) { return member.first == name; };
      return std::find_if(this->begin(), this->end(), has) - this->begin();
    }
    const auto known = places_.find(Key(name));
    const size_type place = known == places_.end() ? this->size() : known->second;
    return static_cast<typename Members::difference_type>(place);
  }

  // Takes in those that are new.
  void Index() {
    if (this->size() <= kFew) return;
    for (size_type place = places_.size(); place < this->size(); ++place)
      places_.emplace(Members::operator[](place).first, place);
  }

  std::unordered_map<Key, size_type> places_;  // of all; empty: of few
};

}  // namespace runahead
