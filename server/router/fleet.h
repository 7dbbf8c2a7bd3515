// The workers as requests see them: who is ready, how loaded each is, and the queue of requests that wait for them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.grpc.pb.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/placement/arrival_rate.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/decode_choice.h"
#include "scheduler/placement/memory_queue.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/clock_offset.h"
#include "server/router/ejections.h"
#include "server/router/placed_jobs.h"
#include "server/router/router_metrics.h"

namespace runahead {

// One entry of the worker list: a worker, or all that a name service knows of a role. Once the list is spread over
// seats (SeatsFor), a seat: its address comes and goes with the names where it has a service.
struct WorkerSpec {
  std::string role;          // prefill, decode or both
  std::string address;       // host:port; empty where it has a service, and while a seat is vacant
  std::string service = {};  // name of SRV records; empty where it has an address

  bool prefills() const { return role != "decode"; }
  bool decodes() const { return role != "prefill"; }
};

// A worker of one incarnation, from when it joins until it is lost.
struct LiveWorker {
  int index = 0;        // its seat in the worker list
  std::string address;  // host:port, as listed
  v1::Capabilities capabilities;
  std::shared_ptr<v1::Decode::StubInterface> decode;                    // null unless it decodes
  std::shared_ptr<CancelToken> lost = std::make_shared<CancelToken>();  // cancelled with UNAVAILABLE when it is lost
  std::shared_ptr<PeerClock> clock = std::make_shared<PeerClock>();     // the worker's, against the router's
};

// Where a prompt will be prefilled. Takes a place in each chain member's short queue.
struct Placement {
  uint64_t number = 0;  // by which its places are given back
  ChainPlan plan;
  std::vector<std::shared_ptr<const LiveWorker>> chain;  // head to tail, as many as plan.parts
};

// Between living workers.
struct BrokenPaths {
  std::set<int> edges;                     // worker indices: the edge to the next worker of the line
  std::set<std::pair<int, int>> handoffs;  // prefill and decode worker
  friend bool operator==(const BrokenPaths&, const BrokenPaths&) = default;
};

// Thread-safe. Threads that bring news of workers (all of SetReady, SetNotReady, FinishJob, WithdrawJob,
// LeaseReturned, a cancel) never wait for a plan: plans are made one at a time, on a copy, while the state's own lock
// is free. That lock is held for as long as it takes to copy the line or to walk the queue once (some 10 us for 1,024
// workers and 1,000 that wait), never for a call out of here.
class Fleet {
 public:
  // PlanChain, or what a test has in its place.
  using Planner = std::function<absl::StatusOr<ChainPlan>(const ChainRequest&, const PartitionTable&,
                                                          absl::Span<const WorkerView>, const QueueLoad&)>;

  // The number of a waiting request: the lowest is the oldest. Gives up its place, and what memory is kept for it, when
  // destroyed.
  class Ticket {
   public:
    explicit Ticket(Fleet& fleet);
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    friend class Fleet;
    Fleet& fleet_;
    const int64_t number_;
    mutable CondVar changed_;        // of this one alone: a change wakes those whose turn it may be
    mutable bool arrived_ = false;   // it counts as an arrival once, however often it waits; of the one who holds it
    mutable bool settled_ = false;   // Settled was called; likewise
    mutable std::set<int> avoided_;  // workers; likewise
  };

  // The line is the prefill workers of `workers`, by host, then in the list's order; vacant seats are not in it.
  // `queue_size` requests may wait. `metrics` and `clock` must outlive the fleet. `planner` is called by those that
  // wait, one at a time.
  Fleet(std::vector<WorkerSpec> workers, int queue_size, RouterMetrics& metrics, Clock& clock,
        Planner planner = PlanChain);

  // The seats; their addresses are those of the beginning.
  const std::vector<WorkerSpec>& workers() const { return workers_; }
  std::vector<int> line() const RUNAHEAD_EXCLUDES(mu_);  // worker indices, head first
  size_t line_length() const RUNAHEAD_EXCLUDES(mu_);
  // Who is in the seat from now on, not reached yet; empty: nobody. Who was there before is forgotten: it is not ready.
  void SetAddress(int index, std::string address) RUNAHEAD_EXCLUDES(mu_);
  std::string address(int index) const RUNAHEAD_EXCLUDES(mu_);  // empty: the seat is vacant
  int listed() const RUNAHEAD_EXCLUDES(mu_);                    // seats that are not

  // `worker` may be planned with from now on, or not any more. `note` says for people what is the matter. While a
  // worker is away, what it could hold is remembered: no request is refused for good that this worker could take.
  void SetReady(std::shared_ptr<const LiveWorker> worker) RUNAHEAD_EXCLUDES(mu_);
  void SetNotReady(int index, WorkerState state, std::string note) RUNAHEAD_EXCLUDES(mu_);
  // Nothing new is planned on a worker that drains; what it has goes on. Nothing happens where it is not there.
  void SetDraining(int index, bool draining, std::string note) RUNAHEAD_EXCLUDES(mu_);
  // No request has a place or a lease on it, nor asks for one.
  bool Idle(int index) const RUNAHEAD_EXCLUDES(mu_);

  // No chain is planned across a broken edge, and no decode worker for a chain of which a member cannot hand off to it.
  void SetBroken(BrokenPaths broken) RUNAHEAD_EXCLUDES(mu_);
  // For the gauge alone.
  void CountEdges(const EdgeCounts& edges) { metrics_.SetEdges(edges); }
  void CountSuspected(const std::set<int>& workers);  // likewise, by role

  // Who is left out because it fails again and again.
  Ejections& ejections() { return ejections_; }

  // Prefill and decode workers that are ready.
  int ready_prefill() const RUNAHEAD_EXCLUDES(mu_);
  int ready_decode() const RUNAHEAD_EXCLUDES(mu_);
  // Of any worker that is ready (they agree on model, dtypes and sizes); without fields when there is none.
  v1::Capabilities capabilities() const RUNAHEAD_EXCLUDES(mu_);
  // Of all workers that are ready, each build once.
  std::set<std::string> builds() const RUNAHEAD_EXCLUDES(mu_);
  // Why those that do not agree with the others are refused, one text a worker, in the list's order.
  std::vector<std::string> refusals() const RUNAHEAD_EXCLUDES(mu_);

  // Of the decode workers that are ready and have one.
  std::vector<v1::LaneProfile> lane_profiles() const RUNAHEAD_EXCLUDES(mu_);

  // Blocks until the ticket is the oldest that waits for a place and PlanChain finds one, then takes it; every member
  // must be told of by FinishJob or WithdrawJob. The oldest makes all others wait, but for those that PlanInterleaved
  // finds a place for; of these too the oldest comes first. `after_full`, where given, says that the ticket's lease was
  // refused: it stands aside until it seems to fit, or `retry_after` has passed and nobody older waits for the same
  // worker's memory. Until the ticket is destroyed, one decode worker keeps room for it (memory_queue.h). Errors:
  // PlanChain's; UNAVAILABLE says what is the matter with each worker; RESOURCE_EXHAUSTED when it would have to wait
  // and the queue is full; DEADLINE_EXCEEDED; `cancel`'s status.
  struct AfterFull {
    uint64_t memory_changes;  // memory_changes() before the lease was asked for
    absl::Duration retry_after;
    int64_t tokens;  // of the lease
  };
  absl::StatusOr<Placement> Acquire(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                    CancelToken& cancel, absl::Time deadline, std::optional<AfterFull> after_full)
      RUNAHEAD_EXCLUDES(mu_, planning_);
  // The ticket has all that it waited for: no memory is kept for it any more. Where its request has to be placed anew,
  // it keeps its turn, and waits whatever the queue holds.
  void Settled(const Ticket& ticket) RUNAHEAD_EXCLUDES(mu_);

  // Changes when a worker, or a path between workers, is there that was not.
  uint64_t returns() const RUNAHEAD_EXCLUDES(mu_);
  // For a ticket that was refused with UNAVAILABLE, after `returns`: blocks until returns() is another, and then keeps
  // the ticket's turn for Acquire, which must follow. False when `until` has passed, or when it is longer than
  // `absence` ago that a worker or path was lost, and `at_least` has passed here: then nobody is expected back. Others
  // are placed meanwhile. RESOURCE_EXHAUSTED when the queue is full; `cancel`'s status.
  absl::StatusOr<bool> AwaitReturn(const Ticket& ticket, const ChainRequest& request, uint64_t returns,
                                   absl::Duration absence, absl::Duration at_least, CancelToken& cancel,
                                   absl::Time until) RUNAHEAD_EXCLUDES(mu_);

  // Plans of the ticket leave the worker out, as long as there are plans without it.
  void Avoid(const Ticket& ticket, int index) const { ticket.avoided_.insert(index); }

  // Whether the worker's process has been there again since it was lost.
  bool LivesOn(const LiveWorker& worker) const RUNAHEAD_EXCLUDES(mu_);

  // The worker has ended what the placement gave it: its place is free.
  void FinishJob(const LiveWorker& worker, uint64_t placement) RUNAHEAD_EXCLUDES(mu_);
  // The same where no worker was told of it.
  void WithdrawJob(const LiveWorker& worker, uint64_t placement) RUNAHEAD_EXCLUDES(mu_);

  // A request that waits elsewhere, for a session, counts in the same queue. RESOURCE_EXHAUSTED when that is full.
  absl::Status EnterQueue() RUNAHEAD_EXCLUDES(mu_);
  void LeaveQueue() RUNAHEAD_EXCLUDES(mu_);

  // Decode workers to ask for a lease of `tokens`, the best first: all members of `chain` reach them, and they do not
  // keep their room for older tickets. Errors as RankDecodeWorkers.
  absl::StatusOr<std::vector<std::shared_ptr<const LiveWorker>>> RankDecode(
      const Ticket& ticket, int64_t tokens, absl::Span<const std::shared_ptr<const LiveWorker>> chain = {}) const
      RUNAHEAD_EXCLUDES(mu_);
  // While a lease is asked for, the worker is not idle. False where it is lost or drains: it is not to be asked.
  bool LeaseAsked(const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  void LeaseAnswered(const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  // These three keep the figures of memory that RankDecode reads. A lease counts from LeaseTaken to LeaseReturned;
  // LeaseRefused says that a worker had no room for so many.
  void LeaseTaken(const LiveWorker& worker, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  void LeaseReturned(const LiveWorker& worker, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  void LeaseRefused(const LiveWorker& worker, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  uint64_t memory_changes() const RUNAHEAD_EXCLUDES(mu_);  // changes with all that may make room

 private:
  struct State {
    std::string address;                     // empty: the seat is vacant
    std::shared_ptr<const LiveWorker> live;  // null unless ready or draining
    WorkerState state = WorkerState::kConnecting;
    std::string note = "not reached yet";
    uint64_t changes = 0;  // of `live`
    // As last known.
    int64_t max_prefix_tokens = kNeverReached;
    int64_t kv_capacity_tokens = kNeverReached;
    uint64_t incarnation = 0;  // with that epoch; of the one that was ready last
    uint32_t epoch = 0;
    PlacedJobs jobs;
    int64_t reserved_tokens = 0;
    int64_t unseen_tokens = 0;  // taken too, as refusals tell: rounded up, or not by leases of this router
    int leases = 0;
    int lease_calls = 0;  // that ask for one
  };
  struct Waiter {
    const Ticket* ticket;
    bool turn = false;              // something changed since it planned
    int64_t interleave_tokens = 0;  // of its prompt; 0 where it may not go between layers
  };
  // A worker of the line as a plan sees it.
  struct Seen {
    bool ready = false;
    bool linked_to_next = true;
    uint64_t changes = 0;
    int64_t max_prefix_tokens = 0;
    PlacedJobs::Outlook outlook;
  };
  // What a plan is made of.
  struct Picture {
    bool oldest = false;
    bool may_overtake = false;  // nobody older fits where a short prompt may go
    uint64_t changes = 0;
    absl::Time now;
    QueueLoad queue;
    uint64_t line_changes = 0;
    std::vector<Seen> line;  // none unless one of the two holds
  };

  // fleet_queue.cc: the requests' side.
  absl::StatusOr<Placement> AwaitPlace(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                       const CancelToken& cancel, absl::Time deadline,
                                       const std::optional<AfterFull>& after_full) RUNAHEAD_EXCLUDES(mu_, planning_);
  absl::Status Arrive(const Ticket& ticket, const CancelToken& cancel) RUNAHEAD_EXCLUDES(mu_);
  absl::StatusOr<Placement> TryPlan(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                    uint64_t& changes) RUNAHEAD_EXCLUDES(mu_, planning_);
  Picture TakePicture(const Ticket& ticket, const ChainRequest& request) RUNAHEAD_EXCLUDES(mu_);
  Placement Take(ChainPlan plan, const ChainRequest& request, const PartitionTable& table, absl::Time now,
                 absl::Span<const WorkerView> line) RUNAHEAD_REQUIRES(mu_);
  bool StillAsSeen(const ChainPlan& plan, const ChainRequest& request, const Picture& picture) const
      RUNAHEAD_REQUIRES(mu_);
  absl::Status AwaitTurn(const Ticket& ticket, const ChainRequest& request, uint64_t changes, bool admitted,
                         const CancelToken& cancel, absl::Time deadline) RUNAHEAD_EXCLUDES(mu_);
  absl::Status AwaitMemory(const Ticket& ticket, const AfterFull& full, const CancelToken& cancel, absl::Time deadline)
      RUNAHEAD_EXCLUDES(mu_);
  int64_t LongestInterleaved() const RUNAHEAD_REQUIRES(mu_);
  void WakeNext() RUNAHEAD_REQUIRES(mu_);
  void WakeForMemory() RUNAHEAD_REQUIRES(mu_);
  static void Wake(Waiter& waiter);
  int Waiting() const RUNAHEAD_REQUIRES(mu_);
  void QueueChanged() RUNAHEAD_REQUIRES(mu_);
  void PlacesChanged() RUNAHEAD_REQUIRES(mu_);
  void Returned() RUNAHEAD_REQUIRES(mu_);
  int64_t NewTicket() RUNAHEAD_EXCLUDES(mu_);
  void Leave(int64_t ticket) RUNAHEAD_EXCLUDES(mu_);

  // fleet.cc: the workers' side.
  void Reset(State& state, WorkerState to, std::string note) RUNAHEAD_REQUIRES(mu_);
  static bool Ready(const State& state) { return state.live != nullptr && state.state == WorkerState::kReady; }
  void FormLine() RUNAHEAD_REQUIRES(mu_);
  void MemoryChanged() RUNAHEAD_REQUIRES(mu_);
  std::vector<bool> MayPrefill() const RUNAHEAD_REQUIRES(mu_);
  int ReadyDecoders() const RUNAHEAD_REQUIRES(mu_);
  bool ReachesDecode(int prefill, int ready_decoders) const RUNAHEAD_REQUIRES(mu_);
  Seen See(int index) const RUNAHEAD_REQUIRES(mu_);
  std::vector<DecodeView> DecodeViews(absl::Span<const std::shared_ptr<const LiveWorker>> chain = {}) const
      RUNAHEAD_REQUIRES(mu_);
  State* Find(const LiveWorker& worker) RUNAHEAD_REQUIRES(mu_);
  std::string Notes(bool prefill) const RUNAHEAD_REQUIRES(mu_);
  void CountWorkers() RUNAHEAD_REQUIRES(mu_);

  const std::vector<WorkerSpec> workers_;
  const int queue_size_;
  RouterMetrics& metrics_;
  Clock& clock_;
  const Planner planner_;
  mutable Ejections ejections_;  // asked under mu_; its own lock is the inner one
  Mutex planning_;               // held by the one that plans; never wanted by who holds mu_
  mutable Mutex mu_;
  std::vector<State> states_ RUNAHEAD_GUARDED_BY(mu_);  // by worker index
  std::vector<int> line_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t line_changes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  BrokenPaths broken_ RUNAHEAD_GUARDED_BY(mu_);
  ArrivalRate arrivals_ RUNAHEAD_GUARDED_BY(mu_);
  // By ticket: those that wait for a place, and those that wait for memory first.
  std::map<int64_t, Waiter> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<int64_t, Waiter> for_memory_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<int64_t, Waiter> for_return_ RUNAHEAD_GUARDED_BY(mu_);  // those that wait for workers to come back
  MemoryQueue memory_ RUNAHEAD_GUARDED_BY(mu_);  // by ticket too: from its first refusal until the ticket goes
  int waiting_elsewhere_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t next_ticket_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t next_placement_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t memory_changes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t returns_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::Time last_loss_ RUNAHEAD_GUARDED_BY(mu_);  // of a worker or a path; at first the fleet's beginning
  uint64_t changes_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // by which one that waits for a place may get it
};

}  // namespace runahead
