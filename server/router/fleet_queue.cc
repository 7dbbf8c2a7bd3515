// Requests that wait for workers: whose turn it is, and the place that it gets.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "scheduler/placement/admission.h"
#include "server/router/fleet.h"

namespace runahead {
namespace {

// What a prompt takes on workers that have nothing else to do. 0 where the table knows no time.
absl::Duration PredictedTime(int64_t tokens, size_t width, const TtftTable& times) {
  if (times.empty() || !times.knows(static_cast<int>(width))) return absl::ZeroDuration();
  return absl::Seconds(times.Seconds(tokens, static_cast<int>(width)));
}

// Until the segment has nothing else to do.
absl::Duration Backlog(absl::Span<const WorkerView> segment) {
  double backlog_s = 0;
  for (const WorkerView& worker : segment) backlog_s = std::max(backlog_s, worker.backlog_s);
  return absl::Seconds(backlog_s);
}

absl::Status DeadlinePassed() {
  return absl::DeadlineExceededError("the deadline passed while the request waited for workers");
}

}  // namespace

Fleet::Ticket::Ticket(Fleet& fleet) : fleet_(fleet), number_(fleet.NewTicket()) {}
Fleet::Ticket::~Ticket() {
  fleet_.Leave(number_);
}

int64_t Fleet::NewTicket() {
  MutexLock lock(mu_);
  return next_ticket_++;
}

void Fleet::Leave(int64_t ticket) {
  MutexLock lock(mu_);
  if (waiting_.erase(ticket) > 0) PlacesChanged();  // it had a turn to come, by AwaitReturn
  if (!memory_.Leave(ticket)) return;
  ++memory_changes_;
  WakeForMemory();
}

void Fleet::Settled(const Ticket& ticket) {
  ticket.settled_ = true;
  Leave(ticket.number_);
}

int Fleet::Waiting() const {
  return static_cast<int>(waiting_.size() + for_memory_.size() + for_return_.size()) + waiting_elsewhere_;
}

// The oldest reckons with how many wait behind it.
void Fleet::QueueChanged() {
  metrics_.SetQueueDepth(Waiting());
  if (!waiting_.empty()) Wake(waiting_.begin()->second);
}

absl::Status Fleet::EnterQueue() {
  MutexLock lock(mu_);
  RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
  ++waiting_elsewhere_;
  QueueChanged();
  return absl::OkStatus();
}

void Fleet::LeaveQueue() {
  MutexLock lock(mu_);
  --waiting_elsewhere_;
  QueueChanged();
}

void Fleet::Wake(Waiter& waiter) {
  waiter.turn = true;
  waiter.ticket->changed_.NotifyAll();
}

void Fleet::PlacesChanged() {
  ++changes_;
  WakeNext();
}

// Those that waited for it wait for a place again, before any that comes only now.
void Fleet::Returned() {
  ++returns_;
  for (auto& [number, waiter] : for_return_) {
    waiting_.emplace(number, waiter);
    waiter.ticket->changed_.NotifyAll();
  }
  for_return_.clear();
  PlacesChanged();
}

uint64_t Fleet::returns() const {
  MutexLock lock(mu_);
  return returns_;
}

// The oldest, and the oldest that may go between the layers of what a worker computes. When that one has gone, or has
// given up, the next is looked for.
void Fleet::WakeNext() {
  if (waiting_.empty()) return;
  Wake(waiting_.begin()->second);
  const int64_t longest = LongestInterleaved();
  if (longest == 0) return;
  for (auto& [number, waiter] : waiting_) {
    if (waiter.interleave_tokens == 0 || waiter.interleave_tokens > longest) continue;
    Wake(waiter);
    return;
  }
}

// The longest prompt that may go between the layers of another somewhere; 0 when none may.
int64_t Fleet::LongestInterleaved() const {
  int64_t longest = 0;
  const std::vector<bool> may = MayPrefill();
  for (int index : line_) {
    const State& state = states_[index];
    if (!may[index]) continue;
    longest = std::max(longest, std::min(state.max_prefix_tokens, state.jobs.outlook().interleave.Longest()));
  }
  return longest;
}

void Fleet::WakeForMemory() {
  if (for_memory_.empty()) return;
  for (const int64_t number : memory_.WhoFits(DecodeViews())) {
    const auto found = for_memory_.find(number);
    if (found != for_memory_.end()) Wake(found->second);
  }
}

absl::StatusOr<Placement> Fleet::Acquire(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                         CancelToken& cancel, absl::Time deadline,
                                         std::optional<AfterFull> after_full) {
  const CancelToken::Subscription wake = cancel.OnCancel([this, &ticket] {
    MutexLock lock(mu_);
    ticket.changed_.NotifyAll();
  });
  absl::StatusOr<Placement> placement = AwaitPlace(ticket, request, table, cancel, deadline, after_full);
  MutexLock lock(mu_);
  const bool waited = waiting_.erase(ticket.number_) > 0;
  if (waited) metrics_.SetQueueDepth(Waiting());
  if (waited || placement.ok()) PlacesChanged();  // those behind, also between the layers of what was just placed
  return placement;
}

absl::StatusOr<Placement> Fleet::AwaitPlace(const Ticket& ticket, const ChainRequest& request,
                                            const PartitionTable& table, const CancelToken& cancel, absl::Time deadline,
                                            const std::optional<AfterFull>& after_full) {
  RUNAHEAD_RETURN_IF_ERROR(after_full ? AwaitMemory(ticket, *after_full, cancel, deadline) : Arrive(ticket, cancel));
  while (true) {
    uint64_t changes = 0;
    absl::StatusOr<Placement> placement = TryPlan(ticket, request, table, changes);
    if (!absl::IsResourceExhausted(placement.status())) return placement;
    // One that had its turn and came back, for decode memory was full or a worker was lost, keeps its place whatever
    // the queue holds.
    const bool admitted = after_full.has_value() || ticket.settled_;
    RUNAHEAD_RETURN_IF_ERROR(AwaitTurn(ticket, request, changes, admitted, cancel, deadline));
  }
}

absl::Status Fleet::Arrive(const Ticket& ticket, const CancelToken& cancel) {
  MutexLock lock(mu_);
  if (!std::exchange(ticket.arrived_, true)) arrivals_.Count(clock_.Now());
  return cancel.status();
}

absl::Status Fleet::AwaitMemory(const Ticket& ticket, const AfterFull& full, const CancelToken& cancel,
                                absl::Time deadline) {
  MutexLock lock(mu_);
  memory_.Keep(ticket.number_, full.tokens, DecodeViews());
  Waiter& waiter = for_memory_.emplace(ticket.number_, Waiter{&ticket}).first->second;
  QueueChanged();
  if (memory_changes_ != full.memory_changes) WakeForMemory();  // some came back after it had asked
  absl::Time retry_at = clock_.Now() + full.retry_after;
  absl::Status status = cancel.status();
  while (status.ok() && !waiter.turn) {
    const absl::Time now = clock_.Now();
    if (now >= retry_at && memory_.First(ticket.number_)) break;
    if (now >= retry_at) retry_at = now + full.retry_after;
    if (now >= deadline) {
      status = DeadlinePassed();
    } else {
      clock_.WaitUntil(mu_, ticket.changed_, std::min(deadline, retry_at));
      status = cancel.status();
    }
  }
  for_memory_.erase(ticket.number_);
  QueueChanged();
  return status;
}

absl::StatusOr<bool> Fleet::AwaitReturn(const Ticket& ticket, const ChainRequest& request, uint64_t returns,
                                        absl::Duration absence, absl::Duration at_least, CancelToken& cancel,
                                        absl::Time until) {
  const CancelToken::Subscription wake = cancel.OnCancel([this, &ticket] {
    MutexLock lock(mu_);
    ticket.changed_.NotifyAll();
  });
  MutexLock lock(mu_);
  const absl::Time began = clock_.Now();
  const auto end = [&]() RUNAHEAD_REQUIRES(mu_) {
    return std::min(until, std::max(last_loss_ + absence, began + at_least));
  };
  if (returns_ != returns && began < until) return true;
  const bool may_queue = ticket.settled_ || queue_size_ > 0;
  if (!may_queue || began >= end()) return false;
  if (!ticket.settled_) RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
  Waiter waiter{&ticket};
  if (MayInterleave(request)) waiter.interleave_tokens = request.tokens;
  for_return_.emplace(ticket.number_, waiter);
  QueueChanged();
  absl::Status status = cancel.status();
  while (status.ok() && returns_ == returns && clock_.Now() < end()) {
    clock_.WaitUntil(mu_, ticket.changed_, end());
    status = cancel.status();
  }
  const bool returned = status.ok() && returns_ != returns;
  for_return_.erase(ticket.number_);
  if (!returned) {
    waiting_.erase(ticket.number_);
    PlacesChanged();
  }
  QueueChanged();
  RUNAHEAD_RETURN_IF_ERROR(status);
  return returned;
}

// Until something has changed since the plan that saw `changes` found no place.
absl::Status Fleet::AwaitTurn(const Ticket& ticket, const ChainRequest& request, uint64_t changes, bool admitted,
                              const CancelToken& cancel, absl::Time deadline) {
  MutexLock lock(mu_);
  auto found = waiting_.find(ticket.number_);
  if (found == waiting_.end()) {
    if (!admitted && clock_.Now() < deadline) RUNAHEAD_RETURN_IF_ERROR(AdmitToQueue(Waiting(), queue_size_));
    Waiter waiter{&ticket};
    if (MayInterleave(request)) waiter.interleave_tokens = request.tokens;
    found = waiting_.emplace(ticket.number_, waiter).first;
    metrics_.SetQueueDepth(Waiting());
    if (found != waiting_.begin()) Wake(waiting_.begin()->second);
  }
  Waiter& waiter = found->second;
  if (changes_ != changes) waiter.turn = true;
  while (true) {
    RUNAHEAD_RETURN_IF_ERROR(cancel.status());
    if (clock_.Now() >= deadline) return DeadlinePassed();
    if (waiter.turn) return absl::OkStatus();
    clock_.WaitUntil(mu_, ticket.changed_, deadline);
  }
}

absl::StatusOr<Placement> Fleet::TryPlan(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                         uint64_t& changes) {
  MutexLock planning(planning_);
  while (true) {
    const Picture picture = TakePicture(ticket, request);
    changes = picture.changes;
    if (!picture.oldest && !picture.may_overtake) return absl::ResourceExhaustedError("others wait already");
    std::vector<WorkerView> line(picture.line.size());
    for (size_t i = 0; i < line.size(); ++i) {
      const Seen& seen = picture.line[i];
      line[i].ready = seen.ready;
      line[i].linked_to_next = seen.linked_to_next;
      line[i].max_prefix_tokens = seen.max_prefix_tokens;
      seen.outlook.Fill(picture.now, line[i]);
    }
    absl::StatusOr<ChainPlan> plan = absl::ResourceExhaustedError("others wait already");
    if (picture.oldest) {
      plan = planner_(request, table, line, picture.queue);
    } else if (std::optional<ChainPlan> interleaved = PlanInterleaved(request, line)) {
      plan = *std::move(interleaved);
    }
    if (absl::IsUnavailable(plan.status()) && !ticket.avoided_.empty()) {
      ticket.avoided_.clear();
      continue;
    }
    MutexLock lock(mu_);
    if (absl::IsUnavailable(plan.status())) {
      return absl::UnavailableError(absl::StrCat(plan.status().message(), ": ", Notes(true)));
    }
    RUNAHEAD_RETURN_IF_ERROR(plan.status());
    if (StillAsSeen(*plan, request, picture)) return Take(*std::move(plan), request, table, picture.now, line);
  }
}

// Who is not the oldest may go between the layers of what workers compute, but an older one that might do the same goes
// first.
Fleet::Picture Fleet::TakePicture(const Ticket& ticket, const ChainRequest& request) {
  MutexLock lock(mu_);
  Picture picture;
  picture.changes = changes_;
  picture.now = clock_.Now();
  const auto own = waiting_.find(ticket.number_);
  if (own != waiting_.end()) own->second.turn = false;
  picture.queue = {Waiting() - (own == waiting_.end() ? 0 : 1), arrivals_.PerSecond(picture.now)};
  picture.oldest = waiting_.empty() || ticket.number_ <= waiting_.begin()->first;
  if (!picture.oldest && MayInterleave(request)) {
    const int64_t longest = LongestInterleaved();
    picture.may_overtake = request.tokens <= longest &&
                           std::none_of(waiting_.begin(), waiting_.lower_bound(ticket.number_), [&](const auto& older) {
                             const int64_t tokens = older.second.interleave_tokens;
                             return tokens > 0 && tokens <= longest;
                           });
  }
  if (!picture.oldest && !picture.may_overtake) return picture;
  const std::vector<bool> may = MayPrefill();
  picture.line_changes = line_changes_;
  picture.line.reserve(line_.size());
  for (int index : line_) {
    picture.line.push_back(See(index));
    picture.line.back().ready = may[index] && !ticket.avoided_.contains(index);
  }
  return picture;
}

// Others place nothing meanwhile, for they would plan; but workers come and go, also on the line, and end what
// they compute.
bool Fleet::StillAsSeen(const ChainPlan& plan, const ChainRequest& request, const Picture& picture) const {
  if (line_changes_ != picture.line_changes) return false;
  for (size_t i = 0; i < plan.parts.size(); ++i) {
    const bool tail = i + 1 == plan.parts.size();
    const Seen now = See(line_[plan.first + i]);
    if (now.changes != picture.line[plan.first + i].changes) return false;
    if (!tail && !now.linked_to_next) return false;
    if (plan.interleaved && !now.outlook.interleave.Fits(request.tokens)) return false;
  }
  return true;
}

Placement Fleet::Take(ChainPlan plan, const ChainRequest& request, const PartitionTable& table, absl::Time now,
                      absl::Span<const WorkerView> line) {
  Placement placement{next_placement_++, std::move(plan), {}};
  const std::vector<int64_t>& parts = placement.plan.parts;
  const size_t first = placement.plan.first;
  PlacedJob job;
  job.placement = placement.number;
  job.interleaved = placement.plan.interleaved;
  job.tokens = request.tokens;
  job.computing = PredictedTime(request.tokens, parts.size(), table.times());
  job.end = now + job.computing +
            (job.interleaved ? absl::Seconds(line[first].layer_s) : Backlog(line.subspan(first, parts.size())));
  for (size_t i = 0; i < parts.size(); ++i) {
    State& state = states_[line_[first + i]];
    job.layer = job.computing / std::max<int64_t>(1, state.live->capabilities.layers());
    if (!job.interleaved) job.interleave = InterleaveBudget(parts[i]);
    state.jobs.Add(job);
    placement.chain.push_back(state.live);
  }
  return placement;
}

}  // namespace runahead
