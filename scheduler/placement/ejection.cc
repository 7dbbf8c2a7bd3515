#include "scheduler/placement/ejection.h"

#include <algorithm>

namespace runahead {

void Ejection::Record::Add(bool succeeded) {
  in_a_row = succeeded ? 0 : in_a_row + 1;
  lately.push_back(succeeded);
  if (lately.size() > kRatedRequests) lately.pop_front();
}

double Ejection::Record::rate() const {
  return static_cast<double>(std::count(lately.begin(), lately.end(), true)) / static_cast<double>(lately.size());
}

void Ejection::Succeeded(int worker) {
  records_[worker].Add(true);
}

void Ejection::Failed(int worker, absl::Time now) {
  Record& record = records_[worker];
  record.Add(false);
  if (now < record.until) return;  // what it had before it was ejected
  if (record.in_a_row < kFailuresInARow && !FarBehind(worker)) return;
  if (now - record.until >= kLongestEjection) record.times = 0;
  ++record.times;
  record.since = now;
  record.until = now + std::min(record.times * kFirstEjection, kLongestEjection);
  record.in_a_row = std::max(record.in_a_row, kFailuresInARow);
  record.lately.clear();
}

bool Ejection::FarBehind(int worker) const {
  const Record& record = records_[worker];
  if (!record.rated()) return false;
  int others = 0;
  double rates = 0;
  for (const Record& other : records_) {
    if (&other == &record || !other.rated()) continue;
    ++others;
    rates += other.rate();
  }
  return others + 1 >= kRatedWorkers && record.rate() < rates / others - kRateBehind;
}

std::vector<bool> Ejection::Ejected(const std::vector<bool>& ready, absl::Time now) const {
  std::vector<int> meant;
  for (size_t i = 0; i < records_.size(); ++i) {
    if (ready[i] && now < records_[i].until) meant.push_back(static_cast<int>(i));
  }
  std::stable_sort(meant.begin(), meant.end(), [&](int a, int b) { return records_[a].since < records_[b].since; });
  const size_t most = static_cast<size_t>(std::count(ready.begin(), ready.end(), true)) / 2;
  if (meant.size() > most) meant.resize(most);
  std::vector<bool> ejected(records_.size());
  for (const int worker : meant) ejected[worker] = true;
  return ejected;
}

}  // namespace runahead
