// The workers as requests see them: who is ready, how loaded each is, and the queue of requests that wait for them.
#pragma once

#include <cstdint>
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
#include "scheduler/placement/interleave.h"
#include "server/base/clock.h"
#include "server/base/router_metrics.h"
#include "server/router/cancel_token.h"
#include "server/router/ejections.h"

namespace runahead {

// One entry of the worker list.
struct WorkerSpec {
  std::string role;     // prefill, decode or both
  std::string address;  // host:port

  bool prefills() const { return role != "decode"; }
  bool decodes() const { return role != "prefill"; }
};

// A worker of one incarnation, from when it joins until it is lost.
struct LiveWorker {
  int index = 0;        // in the worker list
  std::string address;  // host:port, as listed
  v1::Capabilities capabilities;
  std::shared_ptr<v1::Decode::StubInterface> decode;                    // null unless it decodes
  std::shared_ptr<CancelToken> lost = std::make_shared<CancelToken>();  // cancelled with UNAVAILABLE when it is lost
};

// Where a prompt will be prefilled. Takes a place in each chain member's short queue.
struct Placement {
  uint64_t number = 0;  // by which its places are given back
  ChainPlan plan;
  std::vector<std::shared_ptr<const LiveWorker>> chain;  // head to tail, as many as plan.parts
};

// Between living workers.
struct BrokenPaths {
  std::set<int> edges;                      // worker indices: the edge to the next worker of the line
  std::set<std::pair<int, int>> handoffs;   // prefill and decode worker
  friend bool operator==(const BrokenPaths&, const BrokenPaths&) = default;
};

// Thread-safe.
class Fleet {
 public:
  // The order number of a request among those that wait; gives up its place when destroyed.
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
  };

  // The line is the prefill workers of `workers`, by host, then in the list's order. `queue_size` requests may wait.
  // `metrics` and `clock` must outlive the fleet.
  Fleet(std::vector<WorkerSpec> workers, int queue_size, RouterMetrics& metrics, Clock& clock);

  const std::vector<WorkerSpec>& workers() const { return workers_; }
  const std::vector<int>& line() const { return line_; }  // worker indices, head first

  // `worker` may be planned with from now on, or not any more. `note` says for people what is the matter.
  void SetReady(std::shared_ptr<const LiveWorker> worker) RUNAHEAD_EXCLUDES(mu_);
  void SetNotReady(int index, WorkerState state, std::string note) RUNAHEAD_EXCLUDES(mu_);

  // No chain is planned across a broken edge, and no decode worker for a chain of which a member cannot hand off to it.
  void SetBroken(BrokenPaths broken) RUNAHEAD_EXCLUDES(mu_);

  // Who is left out because it fails again and again.
  Ejections& ejections() { return ejections_; }

  // Prefill and decode workers that are ready.
  int ready_prefill() const RUNAHEAD_EXCLUDES(mu_);
  int ready_decode() const RUNAHEAD_EXCLUDES(mu_);
  // Of any worker that is ready (they agree on model, dtypes and sizes); without fields when there is none.
  v1::Capabilities capabilities() const RUNAHEAD_EXCLUDES(mu_);
  // Of all workers that are ready, each build once.
  std::set<std::string> builds() const RUNAHEAD_EXCLUDES(mu_);

  // Blocks until the ticket is the oldest that waits and PlanChain finds a place, then takes it; every member must be
  // given back by ReleaseSlot. `after_full`, where given, is a value of memory_epoch(): the ticket then waits until
  // memory was given back since, or `retry_at` has come. The one at the head makes all others wait, but for those that
  // PlanInterleaved finds a place for; of these too the oldest comes first.
  // Errors: PlanChain's; UNAVAILABLE says what is the matter with each worker; RESOURCE_EXHAUSTED when it would have to
  // wait and the queue is full; DEADLINE_EXCEEDED; `cancel`'s status.
  struct AfterFull {
    uint64_t epoch;
    absl::Time retry_at;
  };
  absl::StatusOr<Placement> Acquire(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                    CancelToken& cancel, absl::Time deadline, std::optional<AfterFull> after_full)
      RUNAHEAD_EXCLUDES(mu_);
  void ReleaseSlot(const LiveWorker& worker, uint64_t placement) RUNAHEAD_EXCLUDES(mu_);
  // The same for a placement that no worker was told of.
  void ReturnSlot(const LiveWorker& worker, uint64_t placement) RUNAHEAD_EXCLUDES(mu_);

  // A request that waits elsewhere, for a session, counts in the same queue. RESOURCE_EXHAUSTED when that is full.
  absl::Status EnterQueue() RUNAHEAD_EXCLUDES(mu_);
  void LeaveQueue() RUNAHEAD_EXCLUDES(mu_);

  // Decode workers to ask for a lease of `tokens`, the best first. UNAVAILABLE, OUT_OF_RANGE as RankDecodeWorkers.
  // All members of `chain` reach them.
  absl::StatusOr<std::vector<std::shared_ptr<const LiveWorker>>> RankDecode(
      int64_t tokens, absl::Span<const std::shared_ptr<const LiveWorker>> chain) const RUNAHEAD_EXCLUDES(mu_);
  // What RankDecode knows of memory: counted from a lease's granting to its end.
  void LeaseTaken(const LiveWorker& worker, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  void LeaseReturned(const LiveWorker& worker, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  uint64_t memory_epoch() const RUNAHEAD_EXCLUDES(mu_);  // changes with every LeaseReturned and worker that joins

 private:
  struct Job {
    uint64_t placement = 0;
    bool interleaved = false;
    uint64_t longer = 0;          // an interleaved one's: the placement between whose layers it runs
    int64_t tokens = 0;           // of the whole prompt
    absl::Duration computing;     // predicted, for the whole prompt
    absl::Time end;               // predicted
    absl::Duration layer;         // predicted
    InterleaveBudget interleave;  // what is left of it
  };
  struct State {
    std::shared_ptr<const LiveWorker> live;  // null unless ready
    WorkerState state = WorkerState::kConnecting;
    std::string note = "not reached yet";
    std::vector<Job> jobs;  // unfinished, in their order
    int64_t reserved_tokens = 0;
    int leases = 0;
  };

  struct Waiter {
    ChainRequest request;
    bool for_memory = false;  // its lease was refused: it waits for that first
  };

  absl::StatusOr<Placement> TryPlan(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table)
      RUNAHEAD_REQUIRES(mu_);
  absl::StatusOr<ChainPlan> Overtake(const Ticket& ticket, const ChainRequest& request,
                                     absl::Span<const WorkerView> line) const RUNAHEAD_REQUIRES(mu_);
  static void GiveJob(State& state, Job job);
  static Job* Computed(State& state);
  std::optional<Job> TakeJob(const LiveWorker& worker, uint64_t placement) RUNAHEAD_REQUIRES(mu_);
  WorkerView ViewOf(const State& state, absl::Time now) const RUNAHEAD_REQUIRES(mu_);
  absl::StatusOr<Placement> AwaitPlace(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                       const CancelToken& cancel, absl::Time deadline,
                                       const std::optional<AfterFull>& after_full) RUNAHEAD_REQUIRES(mu_);
  bool MayTry(const std::optional<AfterFull>& after_full, absl::Time now) const RUNAHEAD_REQUIRES(mu_);
  int Waiting() const RUNAHEAD_REQUIRES(mu_);
  void Leave(int64_t ticket) RUNAHEAD_EXCLUDES(mu_);
  State* Find(const LiveWorker& worker) RUNAHEAD_REQUIRES(mu_);
  std::string Notes(bool prefill) const RUNAHEAD_REQUIRES(mu_);
  void Changed() RUNAHEAD_REQUIRES(mu_);
  int64_t NewTicket() RUNAHEAD_EXCLUDES(mu_);

  const std::vector<WorkerSpec> workers_;
  const std::vector<int> line_;
  const int queue_size_;
  RouterMetrics& metrics_;
  Clock& clock_;
  mutable Ejections ejections_;  // before mu_ is taken, or under it
  mutable Mutex mu_;
  CondVar changed_;
  // Where there are decode workers at all, one of them.
  bool ReachesDecode(int prefill) const RUNAHEAD_REQUIRES(mu_);
  std::vector<State> states_ RUNAHEAD_GUARDED_BY(mu_);  // by worker index
  BrokenPaths broken_ RUNAHEAD_GUARDED_BY(mu_);
  ArrivalRate arrivals_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<int64_t, Waiter> waiting_ RUNAHEAD_GUARDED_BY(mu_);  // by ticket: those that wait for workers
  int waiting_elsewhere_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  int64_t next_ticket_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t next_placement_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t memory_epoch_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
