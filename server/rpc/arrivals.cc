#include "server/rpc/arrivals.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);

absl::Status Full(int count) {
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("as many messages are on their way to this server as may be at once, ",
                                                count, " (option request_memory); try again")),
      kRetryAfter);
}

absl::Status TooManyWait(int count) {
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat(
          "as many calls as may, ", count, ", wait for their messages to be read (option request_memory); try again")),
      kRetryAfter);
}

absl::Status Slow(int64_t rate) {
  return WithRetryAfter(absl::ResourceExhaustedError(absl::StrCat(
                            "the message did not come, or slower than ", rate,
                            " bytes a second (option min_arrival_rate); send it again, or over a faster network")),
                        kRetryAfter);
}

// The first that `is` so behind `key`, or else from the beginning; end() where none is.
template <typename Map, typename Is>
typename Map::iterator FindAfter(Map& map, const std::string& key, Is is) {
  const auto begin = map.upper_bound(key);
  const auto found = std::find_if(begin, map.end(), is);
  if (found != map.end()) return found;
  const auto before = std::find_if(map.begin(), begin, is);
  return before == begin ? map.end() : before;
}

}  // namespace

Arrivals::Arrivals(const ArrivalLimits& limits, ArrivalWatcher watcher, Clock& clock, Received received)
    : limits_(limits), watcher_(std::move(watcher)), clock_(clock), received_(std::move(received)), thread_([this] {
        Watch();
      }) {}

Arrivals::~Arrivals() {
  {
    MutexLock lock(mu_);
    RUNAHEAD_CHECK(calls_.empty());
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

int Arrivals::most() const {
  return static_cast<int>(std::max<int64_t>(1, limits_.bytes / limits_.message_bytes));
}

void Arrivals::Enter(Call& call, const std::string& peer) {
  MutexLock lock(mu_);
  if (waiting_ >= limits_.max_waiting && !MakeRoomFor(peer)) {
    watcher_.refused(ArrivalWatcher::Refusal::kFull);
    return call.GiveUp(TooManyWait(waiting_));
  }
  if (asleep_) changed_.NotifyAll();
  calls_[&call] = {peer, clock_.Now()};
  connections_[peer].waiting.push_back(&call);
  ++waiting_;
  StartWaiting();
  watcher_.changed(reading_, waiting_);
}

// By the last call of the connection that has most of them here, if that has more than this one would have.
bool Arrivals::MakeRoomFor(const std::string& peer) {
  const auto own = connections_.find(peer);
  const size_t own_waiting = own == connections_.end() ? 0 : own->second.waiting.size();
  // A connection that has as many as the average takes room from no other.
  if (own_waiting * connections_.size() >= static_cast<size_t>(waiting_)) return false;
  const auto most = std::max_element(connections_.begin(), connections_.end(), [](const auto& a, const auto& b) {
    return a.second.waiting.size() < b.second.waiting.size();
  });
  if (most->second.waiting.size() <= own_waiting + 1) return false;
  End(*most->second.waiting.back(), ArrivalWatcher::Refusal::kFull, TooManyWait(waiting_));
  return true;
}

bool Arrivals::Arrived(Call& call) {
  MutexLock lock(mu_);
  if (!calls_.contains(&call)) return false;
  Remove(call);
  StartWaiting();
  watcher_.changed(reading_, waiting_);
  return true;
}

bool Arrivals::Abandon(Call& call) {
  MutexLock lock(mu_);
  const auto found = calls_.find(&call);
  if (found == calls_.end() || found->second.reading) return false;
  Remove(call);
  watcher_.changed(reading_, waiting_);
  return true;
}

void Arrivals::Begin(Call& call) {
  Entry& entry = calls_.at(&call);
  Connection& connection = connections_.at(entry.peer);
  if (connection.reading.empty()) {
    connection.span_began = clock_.Now();
    connection.span_bytes.reset();  // known at the next look
  }
  connection.reading.push_back(&call);
  entry.reading = true;
  entry.since = clock_.Now();
  ++reading_;
  --waiting_;
  call.Read();
}

// One of each connection that has some, round and round; those that have kept others waiting come last.
void Arrivals::StartWaiting() {
  while (waiting_ > 0 && reading_ < most()) {
    const auto is_next = [](const auto& connection) {
      return !connection.second.waiting.empty() && !connection.second.slow;
    };
    const auto waits = [](const auto& connection) { return !connection.second.waiting.empty(); };
    auto next = FindAfter(connections_, turn_, is_next);
    if (next == connections_.end()) next = FindAfter(connections_, turn_, waits);
    turn_ = next->first;
    Call* const call = next->second.waiting.front();
    next->second.waiting.pop_front();
    Begin(*call);
  }
}

void Arrivals::End(Call& call, ArrivalWatcher::Refusal refusal, const absl::Status& why) {
  Remove(call);
  watcher_.refused(refusal);
  call.GiveUp(why);
}

void Arrivals::Remove(Call& call) {
  const Entry entry = calls_.at(&call);
  calls_.erase(&call);
  Connection& connection = connections_.at(entry.peer);
  std::deque<Call*>& among = entry.reading ? connection.reading : connection.waiting;
  among.erase(std::find(among.begin(), among.end(), &call));
  --(entry.reading ? reading_ : waiting_);
  if (connection.reading.empty() && connection.waiting.empty()) connections_.erase(entry.peer);
}

// Of several messages nobody knows which one comes: what came is the youngest's first, so that what stands still goes.
void Arrivals::Judge(const std::string& peer, absl::Time now) {
  Connection& connection = connections_.at(peer);
  if (connection.reading.empty()) return;
  const std::optional<uint64_t> bytes = received_(peer);
  if (bytes && !connection.span_bytes) {
    connection.span_bytes = bytes;
    connection.span_began = now;
  }
  const absl::Duration span = now - connection.span_began;
  if (span < (waiting_ > 0 ? limits_.short_patience : limits_.patience)) return;
  double came = bytes ? static_cast<double>(*bytes - *connection.span_bytes) : std::numeric_limits<double>::infinity();
  connection.span_began = now;
  connection.span_bytes = bytes;
  const double rate = static_cast<double>(limits_.min_rate);
  const absl::Duration longest = limits_.patience + absl::Seconds(static_cast<double>(limits_.message_bytes) / rate);
  std::vector<Call*> ending;
  for (auto call = connection.reading.rbegin(); call != connection.reading.rend(); ++call) {
    const absl::Duration age = now - calls_.at(*call).since;
    const double due = rate * absl::ToDoubleSeconds(std::min(age, span));
    const bool comes = came >= due;
    if (comes) came -= due;
    if (age > longest || (!comes && age >= limits_.short_patience)) ending.push_back(*call);
  }
  connection.slow = connection.slow || !ending.empty();
  for (Call* const call : ending) End(*call, ArrivalWatcher::Refusal::kSlow, Slow(limits_.min_rate));
}

void Arrivals::EndLongWaiting(absl::Time now) {
  std::vector<Call*> ending;
  for (const auto& [call, entry] : calls_) {
    if (!entry.reading && now - entry.since >= limits_.patience) ending.push_back(call);
  }
  for (Call* const call : ending) End(*call, ArrivalWatcher::Refusal::kFull, Full(most()));
}

void Arrivals::Watch() {
  MutexLock lock(mu_);
  while (!stopping_) {
    if (calls_.empty()) {
      asleep_ = true;
      changed_.Wait(mu_);
      asleep_ = false;
      continue;
    }
    const absl::Time next = clock_.Now() + limits_.short_patience / 4;
    while (!stopping_ && clock_.Now() < next) clock_.WaitUntil(mu_, changed_, next);
    const absl::Time now = clock_.Now();
    std::vector<std::string> peers;
    for (const auto& [peer, connection] : connections_) peers.push_back(peer);
    for (const std::string& peer : peers) Judge(peer, now);
    EndLongWaiting(now);
    StartWaiting();
    watcher_.changed(reading_, waiting_);
  }
}

}  // namespace runahead
