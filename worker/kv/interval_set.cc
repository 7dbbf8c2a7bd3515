#include "worker/kv/interval_set.h"

#include <algorithm>

namespace runahead {

void IntervalSet::Add(int64_t begin, int64_t end) {
  if (begin == end) return;
  const auto first =
      std::find_if(intervals_.begin(), intervals_.end(), [&](const auto& i) { return i.second >= begin; });
  const auto last = std::find_if(first, intervals_.end(), [&](const auto& i) { return i.first > end; });
  if (first != last) {
    begin = std::min(begin, first->first);
    end = std::max(end, (last - 1)->second);
  }
  intervals_.insert(intervals_.erase(first, last), {begin, end});
}

bool IntervalSet::Covers(int64_t begin, int64_t end) const {
  if (begin == end) return true;
  return std::any_of(intervals_.begin(), intervals_.end(),
                     [&](const auto& i) { return i.first <= begin && end <= i.second; });
}

int64_t IntervalSet::Prefix() const {
  return intervals_.empty() || intervals_.front().first > 0 ? 0 : intervals_.front().second;
}

int64_t IntervalSet::size() const {
  int64_t size = 0;
  for (const auto& [begin, end] : intervals_) size += end - begin;
  return size;
}

}  // namespace runahead
