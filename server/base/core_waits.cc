#include "server/base/core_waits.h"

#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace runahead {
namespace {

constexpr absl::Duration kRemembered = absl::Minutes(15);

}  // namespace

CoreWaits::CoreWaits(Clock& clock, std::string threads) : clock_(clock), threads_(std::move(threads)) {
  Look();
}

absl::flat_hash_map<std::string, CoreWaits::Times> CoreWaits::ReadThreads() const {
  absl::flat_hash_map<std::string, Times> threads;
  DIR* const folder = opendir(threads_.c_str());
  if (folder == nullptr) return threads;
  while (const dirent* const entry = readdir(folder)) {
    std::ifstream file(absl::StrCat(threads_, "/", entry->d_name, "/schedstat"));
    int64_t on_core_ns = 0, waited_ns = 0;
    if (file >> on_core_ns >> waited_ns) {
      threads[entry->d_name] = {absl::Nanoseconds(on_core_ns), absl::Nanoseconds(waited_ns)};
    }
  }
  closedir(folder);
  return threads;
}

// Threads wait one after the other, where each wakes the next, or beside each other. So it is not the sum of their
// waits that counts: it is the share of it in what they wanted, for as long as there was somebody who wanted something.
void CoreWaits::Look() {
  absl::flat_hash_map<std::string, Times> threads = ReadThreads();
  MutexLock lock(mu_);
  const absl::Time now = clock_.Now();
  const bool first = samples_.empty();
  absl::Duration wanted, waited, longest = first ? absl::ZeroDuration() : now - samples_.back().at;
  for (const auto& [id, times] : threads) {
    Times before = last_[id];
    if (times.on_core < before.on_core) before = {};  // another thread has its id
    const absl::Duration its_wait = times.waited - before.waited;
    const absl::Duration its_time = its_wait + times.on_core - before.on_core;
    wanted += its_time;
    waited += its_wait;
    longest = std::max(longest, its_time);  // than the time since the last look, where a wait had begun before that
  }
  last_ = std::move(threads);
  absl::Duration sum = first ? absl::ZeroDuration() : samples_.back().waited;
  if (!first && wanted > absl::ZeroDuration()) sum += absl::FDivDuration(waited, wanted) * std::min(wanted, longest);
  samples_.push_back({now, sum});
  while (samples_.size() > 1 && now - samples_[1].at > kRemembered) samples_.pop_front();
}

absl::Duration CoreWaits::Within(absl::Duration span) const {
  const absl::Time since = clock_.Now() - span;
  MutexLock lock(mu_);
  const auto after = std::upper_bound(samples_.begin(), samples_.end(), since,
                                      [](absl::Time at, const Sample& sample) { return at < sample.at; });
  const Sample& begin = after == samples_.begin() ? samples_.front() : *std::prev(after);
  return std::min(samples_.back().waited - begin.waited, span);
}

}  // namespace runahead
