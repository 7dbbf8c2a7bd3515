// What the workers are: who is ready, how they are joined, how loaded each is. Who waits for them: fleet_queue.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "runahead/v1/worker.pb.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/decode_choice.h"
#include "scheduler/placement/decode_load.h"
#include "server/base/clock.h"
#include "server/router/edge_states.h"
#include "server/router/ejections.h"
#include "server/router/live_worker.h"
#include "server/router/placed_jobs.h"
#include "server/router/router_metrics.h"

namespace runahead {

// Where a prompt will be prefilled. Takes a place in each chain member's short queue.
struct Placement {
  uint64_t number = 0;  // by which its places are given back
  ChainPlan plan;
  std::vector<std::shared_ptr<const LiveWorker>> chain;  // head to tail, as many as plan.parts
  absl::Duration first_token_in;                         // predicted, from when it was placed; 0 where nothing is known
  double expected_s = 0;                                 // as PlacedJob has it, and so are the next
  Allowance allowance = {};
  size_t overtaken = 0;  // jobs of its worker
};

// Between living workers: broken, or doubted.
struct BrokenPaths {
  std::set<int> edges;                     // worker indices: the edge to the next worker of the line
  std::set<std::pair<int, int>> handoffs;  // prefill and decode worker
  friend bool operator==(const BrokenPaths&, const BrokenPaths&) = default;
};

// Says to the requests that wait what has changed.
struct FleetNews {
  bool places = false;           // a place may be free, or a worker or path is away
  bool returned = false;         // a worker or path is there that was not; says what `places` says, too
  bool decode = false;           // a slot or memory of a decode worker may be free
  bool refused = false;          // a worker does not agree with the others
  std::optional<int> left = {};  // the worker in this seat takes nothing new any more
};

// The line as a plan sees it, head first.
struct FleetLine {
  struct Worker {
    bool ready = false;
    bool linked_to_next = true;
    uint64_t changes = 0;
    int64_t max_prefix_tokens = 0;
    PlacedJobs::Outlook outlook;
  };
  uint64_t changes = 0;  // of who stands where
  std::vector<Worker> workers;
};

// Thread-safe. Its lock is held for as long as it takes to look at each worker once, never for a call out of here; who
// holds the lock of those that wait may take it, never the other way round. So whoever brings news of workers waits for
// no plan.
class Fleet {
 public:
  // The line is the prefill workers of `workers`, by host, then in the list's order; vacant seats are not in it.
  // `metrics` and `clock` must outlive the fleet.
  Fleet(std::vector<WorkerSpec> workers, RouterMetrics& metrics, Clock& clock);

  // Is told of each change, when it is there to be seen, on the thread that brought it and without a lock of the
  // fleet's.
  using Listener = std::function<void(const FleetNews&)>;
  void OnNews(Listener listener) RUNAHEAD_EXCLUDES(mu_);

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
  // Likewise while the control stream to a worker is being resumed: it will be there again soon, or be lost.
  void SetInterrupted(int index, bool interrupted) RUNAHEAD_EXCLUDES(mu_);
  // No request has a place or a lease on it, nor asks for one.
  bool Idle(int index) const RUNAHEAD_EXCLUDES(mu_);

  // No chain is planned across a broken edge, and no decode worker for a chain of which a member cannot hand off to it.
  void SetBroken(BrokenPaths broken) RUNAHEAD_EXCLUDES(mu_);
  // A job failed over these paths. Returns once whoever OnDoubt named has taken them; nothing happens without one. Not
  // to be called with a lock that is wanted there.
  using Doubter = std::function<void(const std::vector<WorkerPath>&)>;
  void Doubt(const std::vector<WorkerPath>& paths) const RUNAHEAD_EXCLUDES(mu_);
  void OnDoubt(Doubter doubter) RUNAHEAD_EXCLUDES(mu_);
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

  // Whether the worker's process has been there again since it was lost.
  bool LivesOn(const LiveWorker& worker) const RUNAHEAD_EXCLUDES(mu_);

  // The worker has ended what the placement gave it: its place is free.
  void FinishJob(const LiveWorker& worker, uint64_t placement) RUNAHEAD_EXCLUDES(mu_);
  // The same where no worker was told of it.
  void WithdrawJob(const LiveWorker& worker, uint64_t placement) RUNAHEAD_EXCLUDES(mu_);

  // While a lease is asked for, the worker is not idle, and a slot is taken. UNAVAILABLE: it is lost or drains.
  absl::Status LeaseAsked(const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  void LeaseAnswered(const LiveWorker& worker) RUNAHEAD_EXCLUDES(mu_);
  // These three and TakeLoad keep the figures of DecodeViews (DecodeLoad). A lease counts `tokens` from LeaseTaken to
  // LeaseReturned, which says for how long it was held where lease_s() is to learn it; LeaseRefused says that a worker
  // had no memory for such a need.
  void LeaseTaken(const LiveWorker& worker, int64_t tokens) RUNAHEAD_EXCLUDES(mu_);
  void LeaseReturned(const LiveWorker& worker, int64_t tokens, std::optional<absl::Duration> held)
      RUNAHEAD_EXCLUDES(mu_);
  void LeaseRefused(const LiveWorker& worker, const DecodeNeed& need) RUNAHEAD_EXCLUDES(mu_);
  // What the worker in the seat says, to a question that was asked at `asked`.
  void TakeLoad(int index, const v1::DecodeLoad& load, absl::Time asked) RUNAHEAD_EXCLUDES(mu_);

  // For those who wait, and plan. The line now; workers of `avoided` are not ready.
  FleetLine Line(const std::set<int>& avoided) const RUNAHEAD_EXCLUDES(mu_);
  // Gives the job a place at each member of the plan's chain, and number and figures of its own; nothing where the
  // chain is not as `seen` any more. Who calls sees to it that nothing else was placed since.
  std::optional<Placement> Place(const ChainPlan& plan, PlacedJob job, const FleetLine& seen) RUNAHEAD_EXCLUDES(mu_);
  // What a prompt may take at most that is to overtake others somewhere; 0 when none may.
  double OvertakingRoomS() const RUNAHEAD_EXCLUDES(mu_);
  // By worker index; with a `chain`, which of them all its members reach.
  std::vector<DecodeView> DecodeViews(absl::Span<const std::shared_ptr<const LiveWorker>> chain = {}) const
      RUNAHEAD_EXCLUDES(mu_);
  // Those of the seats that are there, in this order.
  std::vector<std::shared_ptr<const LiveWorker>> Live(absl::Span<const size_t> seats) const RUNAHEAD_EXCLUDES(mu_);
  double lease_s() const RUNAHEAD_EXCLUDES(mu_);        // for how long leases were held lately; 0: of none is it known
  absl::Time last_loss() const RUNAHEAD_EXCLUDES(mu_);  // of a worker or a path; at first the fleet's beginning
  // Whether some worker of the role is away, and all that are, are refused: such a one stays so until somebody starts
  // others in its place or in that of the rest.
  bool OnlyRefusedAway(WorkerRole role) const RUNAHEAD_EXCLUDES(mu_);
  // Says for people how it stands with the worker.
  std::string Note(int index) const RUNAHEAD_EXCLUDES(mu_);
  // Says for people what is wrong with each worker of the role.
  std::string Notes(WorkerRole role) const RUNAHEAD_EXCLUDES(mu_);

 private:
  struct State {
    std::string address;                     // empty: the seat is vacant
    std::shared_ptr<const LiveWorker> live;  // null unless ready or draining
    WorkerState state = WorkerState::kConnecting;
    std::string note = "not reached yet";
    bool interrupted = false;
    uint64_t changes = 0;  // of `live`
    // As last known.
    int64_t max_prefix_tokens = kNeverReached;
    int64_t kv_capacity_tokens = kNeverReached;
    uint64_t incarnation = 0;  // with that epoch; of the one that was ready last
    uint32_t epoch = 0;
    PlacedJobs jobs;
    DecodeLoad load;
    bool leases_grow = false;  // as it said last
  };

  static bool Ready(const State& state) {
    return state.live != nullptr && state.state == WorkerState::kReady && !state.interrupted;
  }
  static std::string NoteOf(const State& state) {
    return state.interrupted ? "its control stream broke, and is being resumed" : state.note;
  }
  bool HasRole(size_t index, WorkerRole role) const;
  void Reset(State& state, WorkerState to, std::string note) RUNAHEAD_REQUIRES(mu_);
  // A worker that lives may not be planned with any more, or may again.
  void AwayChanged(State& state, bool away) RUNAHEAD_REQUIRES(mu_);
  void Tell(const FleetNews& news) const RUNAHEAD_EXCLUDES(mu_);
  void FormLine() RUNAHEAD_REQUIRES(mu_);
  std::vector<bool> MayPrefill() const RUNAHEAD_REQUIRES(mu_);
  bool ReachesDecode(int prefill, int ready_decoders) const RUNAHEAD_REQUIRES(mu_);
  int ReadyDecoders() const RUNAHEAD_REQUIRES(mu_);
  FleetLine::Worker See(int index) const RUNAHEAD_REQUIRES(mu_);
  bool StillAsSeen(const ChainPlan& plan, const PlacedJob& job, const FleetLine& seen) const RUNAHEAD_REQUIRES(mu_);
  State* Find(const LiveWorker& worker) RUNAHEAD_REQUIRES(mu_);
  void CountWorkers() RUNAHEAD_REQUIRES(mu_);
  void ShowSlots(const State& state) const RUNAHEAD_REQUIRES(mu_);
  void HideSlots(const State& state) const RUNAHEAD_REQUIRES(mu_);  // of a worker that goes

  const std::vector<WorkerSpec> workers_;
  RouterMetrics& metrics_;
  Clock& clock_;
  mutable Ejections ejections_;  // asked under mu_; its own lock is the inner one
  mutable Mutex mu_;
  std::vector<State> states_ RUNAHEAD_GUARDED_BY(mu_);  // by worker index
  std::vector<int> line_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t line_changes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  BrokenPaths broken_ RUNAHEAD_GUARDED_BY(mu_);
  Doubter doubter_ RUNAHEAD_GUARDED_BY(mu_);
  Listener listener_ RUNAHEAD_GUARDED_BY(mu_);
  double lease_s_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t next_placement_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  absl::Time last_loss_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead
