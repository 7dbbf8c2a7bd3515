#include "server/rpc/departures.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr absl::Duration kLookPeriod = absl::Milliseconds(500);
constexpr absl::Duration kTryAgainIn = absl::Seconds(1);

absl::Status NoRoom(int64_t bytes, int64_t taken, int64_t most) {
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("the answer takes ", bytes, " bytes, and those that clients have not ",
                                                "taken yet ", taken, " of ", most, " (option request_memory); ",
                                                "read the answers that are there, and try again")),
      kTryAgainIn);
}

}  // namespace

Departures::Departures(const DepartureLimits& limits, DepartureWatcher watcher, Clock& clock)
    : limits_(limits), watcher_(std::move(watcher)), clock_(clock), thread_([this] { Watch(); }) {}

Departures::~Departures() {
  {
    MutexLock lock(mu_);
    RUNAHEAD_CHECK(calls_.empty());
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

absl::Status Departures::Enter(Call& call, const std::string& peer, int64_t bytes) {
  const absl::Duration time = limits_.patience + absl::Seconds(static_cast<double>(bytes) / limits_.min_rate);
  bytes += limits_.call_bytes;
  MutexLock lock(mu_);
  if (!MakeRoomFor(peer, bytes)) {
    watcher_.cut(DepartureWatcher::Cut::kFull);
    return NoRoom(bytes, taken_, limits_.bytes);
  }
  if (asleep_) changed_.NotifyAll();
  const uint64_t number = next_number_++;
  calls_[&call] = {peer, bytes, number, clock_.Now() + time};
  Connection& connection = connections_[peer];
  connection.bytes += bytes;
  connection.calls[number] = &call;
  taken_ += bytes;
  watcher_.changed(taken_);
  return absl::OkStatus();
}

void Departures::Leave(Call& call) {
  MutexLock lock(mu_);
  const auto found = calls_.find(&call);
  if (found == calls_.end()) return;
  GiveBack(found->second);
  calls_.erase(found);
}

// Connections that have more than this one would have give, the one that has most first: its oldest answer, for that
// had the longest time to be taken. Nobody gives in vain.
bool Departures::MakeRoomFor(const std::string& peer, int64_t bytes) {
  const auto own = connections_.find(peer);
  const int64_t would_have = bytes + (own == connections_.end() ? 0 : own->second.bytes);
  int64_t spare = limits_.bytes - taken_;
  for (const auto& [other, connection] : connections_) spare += std::max<int64_t>(0, connection.bytes - would_have);
  if (bytes > spare) return false;
  while (taken_ + bytes > limits_.bytes) {
    const auto most = std::max_element(connections_.begin(), connections_.end(),
                                       [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    CutOff(*most->second.calls.begin()->second, DepartureWatcher::Cut::kFull);
  }
  return true;
}

// What it took counts as given back at once: gRPC frees it within moments.
void Departures::CutOff(Call& call, DepartureWatcher::Cut why) {
  GiveBack(calls_.at(&call));
  watcher_.cut(why);
  call.CutOff();
}

void Departures::GiveBack(Entry& entry) {
  if (entry.bytes == 0) return;
  const auto connection = connections_.find(entry.peer);
  connection->second.bytes -= entry.bytes;
  connection->second.calls.erase(entry.number);
  if (connection->second.calls.empty()) connections_.erase(connection);
  taken_ -= std::exchange(entry.bytes, 0);
  watcher_.changed(taken_);
}

void Departures::CutOffSlow(absl::Time now) {
  for (auto& [call, entry] : calls_) {
    if (entry.bytes > 0 && now >= entry.ends) CutOff(*call, DepartureWatcher::Cut::kSlow);
  }
}

void Departures::Watch() {
  NameThread("departures");
  MutexLock lock(mu_);
  while (!stopping_) {
    if (calls_.empty()) {
      asleep_ = true;
      changed_.Wait(mu_);
      asleep_ = false;
      continue;
    }
    const absl::Time next = clock_.Now() + kLookPeriod;
    while (!stopping_ && clock_.Now() < next) clock_.WaitUntil(mu_, changed_, next);
    CutOffSlow(clock_.Now());
  }
}

}  // namespace runahead
