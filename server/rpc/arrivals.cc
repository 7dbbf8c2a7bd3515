#include "server/rpc/arrivals.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_name.h"
#include "server/rpc/status.h"

namespace runahead {
namespace {

constexpr absl::Duration kRetryAfter = absl::Seconds(1);
// How often connections are looked at whose messages are read. A message that is too long brings some 20 MB meanwhile.
constexpr absl::Duration kLook = absl::Milliseconds(20);
// The least that a message counts as: HTTP/2 lets so much come at once.
constexpr int64_t kLeast = int64_t{64} << 10;

absl::Status Full(int count) {
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("the messages that are on their way to this server, ", count,
                                                ", take all that they may (option request_memory); try again")),
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

absl::Status Long(int64_t bytes) {
  return absl::ResourceExhaustedError(absl::StrCat("more came over the connection than a message here may have, ",
                                                   bytes, " bytes; send a shorter one"));
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

Arrivals::Arrivals(const ArrivalLimits& limits, ArrivalWatcher watcher, Clock& clock, Received received, HangUp hang_up)
    : limits_(limits),
      watcher_(std::move(watcher)),
      clock_(clock),
      received_(std::move(received)),
      hang_up_(std::move(hang_up)),
      thread_([this] { Watch(); }) {}

Arrivals::~Arrivals() {
  {
    MutexLock lock(mu_);
    RUNAHEAD_CHECK(calls_.empty());
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void Arrivals::Tell() {
  watcher_.changed(reading_, waiting_, charged_);
}

bool Arrivals::HasRoom() const {
  return reading_ == 0 || charged_ + limits_.message_bytes <= limits_.bytes;
}

void Arrivals::SetCharge(Connection& connection, int64_t charge) {
  charged_ += charge - connection.charge;
  connection.charge = charge;
}

void Arrivals::Enter(Call& call, const std::string& peer) {
  MutexLock lock(mu_);
  if (waiting_ >= limits_.max_waiting && !MakeRoomFor(peer)) {
    CountRefusal(peer);
    watcher_.refused(ArrivalWatcher::Refusal::kFull);
    return call.GiveUp(TooManyWait(waiting_));
  }
  if (asleep_) changed_.NotifyAll();
  calls_[&call] = {peer, clock_.Now()};
  connections_[peer].waiting.push_back(&call);
  ++waiting_;
  StartWaiting();
  Tell();
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
  CountRefusal(most->first);
  End(*most->second.waiting.back(), ArrivalWatcher::Refusal::kFull, TooManyWait(waiting_));
  return true;
}

void Arrivals::CountRefusal(const std::string& peer) {
  const absl::Time now = clock_.Now();
  Refusals& refusals = refusals_[peer];
  if (now - refusals.since >= kRetryAfter) refusals = {now, 0};
  if (++refusals.count == limits_.max_refused + 1) greedy_.push_back(peer);
}

bool Arrivals::Arrived(Call& call, uint64_t bytes) {
  MutexLock lock(mu_);
  const auto found = calls_.find(&call);
  if (found == calls_.end()) return false;
  Connection& connection = connections_.at(found->second.peer);
  connection.arrived_bytes += bytes;
  if (bytes == 0) connection.given_up_bytes += static_cast<uint64_t>(limits_.message_bytes);
  Remove(call);
  StartWaiting();
  Tell();
  return true;
}

bool Arrivals::Abandon(Call& call) {
  MutexLock lock(mu_);
  const auto found = calls_.find(&call);
  if (found == calls_.end() || found->second.reading) return false;
  Remove(call);
  Tell();
  return true;
}

void Arrivals::Begin(Call& call) {
  Entry& entry = calls_.at(&call);
  Connection& connection = connections_.at(entry.peer);
  if (connection.reading.empty()) {
    connection.span_began = clock_.Now();
    connection.span_bytes.reset();  // known at the next look
    connection.first_bytes.reset();
    connection.arrived_bytes = connection.given_up_bytes = 0;
  }
  connection.reading.push_back(&call);
  SetCharge(connection, connection.charge + limits_.message_bytes);
  entry.reading = true;
  entry.since = clock_.Now();
  ++reading_;
  --waiting_;
  call.Read();
}

// One of each connection that has some, round and round; those that have kept others waiting come last.
void Arrivals::StartWaiting() {
  while (waiting_ > 0 && HasRoom()) {
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
  SetCharge(connection, std::min(connection.charge, connection.full_charge(limits_.message_bytes)));
  if (connection.reading.empty() && connection.waiting.empty()) connections_.erase(entry.peer);
}

void Arrivals::Judge(const std::string& peer, absl::Time now) {
  Connection& connection = connections_.at(peer);
  if (connection.reading.empty()) return;
  const std::optional<uint64_t> bytes = received_(peer);
  if (bytes && !connection.span_bytes) {
    connection.span_bytes = bytes;
    connection.span_began = now;
  }
  if (bytes && !connection.first_bytes) {
    connection.first_bytes = bytes;
    connection.first_at = now;
  }
  SetCharge(connection, ChargeOf(connection, bytes, now));
  if (!bytes || !BringsTooMuch(connection, *bytes)) return JudgeRate(connection, bytes, now);
  connection.slow = true;
  std::vector<Call*> ending(connection.reading.begin(), connection.reading.end());
  ending.insert(ending.end(), connection.waiting.begin(), connection.waiting.end());
  for (Call* const call : ending) End(*call, ArrivalWatcher::Refusal::kLong, Long(limits_.message_bytes));
}

// Nobody knows which of its messages is the long one, nor whether it is read yet: some of it may come before that.
bool Arrivals::BringsTooMuch(const Connection& connection, uint64_t bytes) const {
  const uint64_t messages = connection.reading.size() * static_cast<uint64_t>(limits_.message_bytes);
  return bytes - *connection.first_bytes >
         messages + connection.arrived_bytes + connection.given_up_bytes + limits_.other_bytes;
}

int64_t Arrivals::ChargeOf(const Connection& connection, std::optional<uint64_t> bytes, absl::Time now) const {
  const int64_t full = connection.full_charge(limits_.message_bytes);
  if (!bytes || !connection.settled(now)) return full;
  const auto total = static_cast<double>(*bytes - *connection.first_bytes);
  const double here = std::max(0.0, total - static_cast<double>(connection.arrived_bytes));
  const double soon = total * absl::FDivDuration(limits_.patience, now - connection.first_at);
  const int64_t least = std::min(full, connection.full_charge(std::max(kLeast, limits_.message_bytes / 64)));
  return std::max(least, static_cast<int64_t>(std::min(here + soon, static_cast<double>(full))));
}

bool Arrivals::SomebodyStarves(absl::Time now) const {
  if (waiting_ == 0 || HasRoom()) return false;
  return std::any_of(calls_.begin(), calls_.end(), [&](const auto& call) {
    return !call.second.reading && now - call.second.since >= limits_.short_patience;
  });
}

bool Arrivals::IsReadForLong(const Connection& connection, absl::Time now) const {
  return !connection.reading.empty() && now - calls_.at(connection.reading.front()).since >= limits_.patience;
}

bool Arrivals::LongReadsTakeTooMuch(absl::Time now) const {
  int64_t taken = 0;
  for (const auto& [peer, connection] : connections_) {
    if (IsReadForLong(connection, now)) taken += connection.charge;
  }
  return taken > limits_.bytes / 2;
}

void Arrivals::EndTheLargest(absl::Time now) {
  // Rates are not steady: a quarter more than may begin at once is none of a burst yet.
  const auto too_much = [this]() RUNAHEAD_REQUIRES(mu_) { return charged_ > limits_.bytes / 4 * 5; };
  while (too_much() || (SomebodyStarves(now) && LongReadsTakeTooMuch(now))) {
    Connection* largest = nullptr;
    for (auto& [peer, connection] : connections_) {
      if (connection.reading.empty() || (largest != nullptr && connection.charge <= largest->charge)) continue;
      if (IsReadForLong(connection, now) || (too_much() && connection.settled(now))) largest = &connection;
    }
    if (largest == nullptr) return;
    End(*largest->reading.back(), ArrivalWatcher::Refusal::kFull, Full(reading_));
    StartWaiting();
  }
}

// Of several messages nobody knows which one comes: what came is the youngest's first, so that what stands still goes.
void Arrivals::JudgeRate(Connection& connection, std::optional<uint64_t> bytes, absl::Time now) {
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
  for (Call* const call : ending) End(*call, ArrivalWatcher::Refusal::kFull, Full(reading_));
}

bool Arrivals::AwaitLook() {
  while (!stopping_ && calls_.empty()) {
    refusals_.clear();
    asleep_ = true;
    changed_.Wait(mu_);
    asleep_ = false;
  }
  const absl::Time next = clock_.Now() + kLook;
  while (!stopping_ && clock_.Now() < next) clock_.WaitUntil(mu_, changed_, next);
  return !stopping_;
}

void Arrivals::Look() {
  const absl::Time now = clock_.Now();
  std::vector<std::string> peers;
  for (const auto& [peer, connection] : connections_) peers.push_back(peer);
  for (const std::string& peer : peers) Judge(peer, now);
  StartWaiting();
  EndTheLargest(now);
  EndLongWaiting(now);
  absl::erase_if(refusals_, [&](const auto& of) { return now - of.second.since >= kRetryAfter; });
  Tell();
}

void Arrivals::Watch() {
  NameThread("arrivals");
  while (true) {
    std::vector<std::string> greedy;
    {
      MutexLock lock(mu_);
      if (!AwaitLook()) return;
      Look();
      greedy = std::exchange(greedy_, {});
    }
    for (const std::string& peer : greedy) hang_up_(peer);
  }
}

}  // namespace runahead
