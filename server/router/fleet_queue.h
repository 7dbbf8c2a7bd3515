// The requests that wait for workers: for a place in a chain, for what a decode worker has to give, for workers that
// are to come back. What the workers are: fleet.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/base/mutex.h"
#include "scheduler/partition/partition_table.h"
#include "scheduler/placement/arrival_rate.h"
#include "scheduler/placement/bring_pace.h"
#include "scheduler/placement/chain_plan.h"
#include "scheduler/placement/continuation_choice.h"
#include "scheduler/placement/decode_choice.h"
#include "scheduler/placement/decode_queue.h"
#include "scheduler/placement/fair_order.h"
#include "scheduler/placement/first_token.h"
#include "scheduler/placement/overtaking.h"
#include "scheduler/placement/pace_beside.h"
#include "scheduler/placement/prefill_pace.h"
#include "server/base/clock.h"
#include "server/router/cancel_token.h"
#include "server/router/fleet.h"
#include "server/router/router_metrics.h"
#include "server/task/task.h"
#include "server/task/wake.h"

namespace runahead {

// Thread-safe. Plans are made one at a time, on a copy of the line, while no lock of state is held: neither the fleet's
// news nor a cancel waits for a plan. The queue's own lock is held for as long as it takes to copy the line or to walk
// the queue once (some 10 us for 1,024 workers and 1,000 that wait); the fleet's is taken inside it.
class FleetQueue {
 public:
  // PlanChain, or what a test has in its place.
  using Planner = std::function<absl::StatusOr<ChainPlan>(const ChainRequest&, const PartitionTable&,
                                                          absl::Span<const WorkerView>, const QueueLoad&)>;

  // The turn of a waiting request (fair_order.h): "the oldest" is whose turn comes first. Gives up its place, and what
  // is kept for it at a decode worker, when destroyed.
  class Ticket {
   public:
    explicit Ticket(FleetQueue& queue, Claim claim = {});
    ~Ticket();
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    // It may wait whatever the queue holds. Said by the one who holds it, before it waits.
    void Admit() const { admitted_ = true; }

   private:
    friend class FleetQueue;
    FleetQueue& queue_;
    const Claim claim_;
    const Turn turn_;
    mutable Wake wake_;              // of this one alone: a change wakes those whose turn it may be
    mutable bool arrived_ = false;   // it counts as an arrival once, however often it waits; of the one who holds it
    mutable bool settled_ = false;   // Settled was called; likewise
    mutable bool admitted_ = false;  // it has waited in the queue, and may again; likewise
    mutable std::set<int> avoided_;  // workers; likewise
    // Guarded by the queue's lock.
    mutable double expected_s_ = 0;  // what its prompt takes on one worker, as far as can be told; 0: not asked yet
    mutable double alone_s_ = 0;     // what its prompt takes on as many idle workers as is best
    mutable int64_t rest_ = 0;       // the tokens of which the two say it
    mutable bool known_ = false;     // the two come from a table or from other prompts, not from its length alone
    // Of those that overtake it; fixed when it first waits or is placed, and anew once what it takes is known.
    mutable std::optional<Allowance> allowance_;
    mutable double allowed_s_ = 0;               // all of it
    mutable bool allowance_known_ = false;       // it was fixed by what is known
    mutable std::optional<Turn> had_;            // the earliest turn that it overtook, or its own; once it was placed
    mutable std::vector<Turn> overtook_;         // those that wait, then
    mutable double overtook_s_ = 0;              // what it took of the allowance of each
    mutable std::optional<uint64_t> unable_at_;  // the queue's changes_, by which no worker let it overtake
  };

  // `queue_size` requests may wait. All outlive the queue; the fleet's news have ended before it does. `planner` is
  // called by those that wait, one at a time.
  FleetQueue(Fleet& fleet, int queue_size, RouterMetrics& metrics, Clock& clock, Planner planner = PlanChain);
  ~FleetQueue();
  FleetQueue(const FleetQueue&) = delete;
  FleetQueue& operator=(const FleetQueue&) = delete;

  // Waits until the ticket is the one that begins (WhoBegins, in the order of turns) and PlanChain finds a place, then
  // takes it; every member must be told of by FinishJob or WithdrawJob. That one makes all others wait, but for the one
  // that may go before jobs that a worker has (WhoOvertakes, PlanOvertaking). `after_full`, where given, says that no
  // decode worker had a slot or memory for the ticket: it stands aside until it seems to fit. Where it waits for memory
  // it looks for itself, too, when `retry_after` has passed and nobody older waits for the same worker. Until the
  // ticket is destroyed, one decode worker keeps a slot and room for it (decode_queue.h). Errors: PlanChain's;
  // UNAVAILABLE says what is the matter with each worker; RESOURCE_EXHAUSTED when it would have to wait and the queue
  // is full; DEADLINE_EXCEEDED; `cancel`'s status.
  struct AfterFull {
    uint64_t decode_changes;  // decode_changes() before the lease was asked for
    absl::Duration retry_after;
    DecodeNeed need;
  };
  Task<absl::StatusOr<Placement>> Acquire(const Ticket& ticket, const ChainRequest& request,
                                          const PartitionTable& table, CancelToken& cancel, absl::Time deadline,
                                          std::optional<AfterFull> after_full) RUNAHEAD_EXCLUDES(mu_, planning_);
  // The ticket has all that it waited for: nothing is kept for it any more. Where its request has to be placed anew,
  // it keeps its turn, and waits whatever the queue holds.
  void Settled(const Ticket& ticket) RUNAHEAD_EXCLUDES(mu_);

  // Changes when a worker, or a path between workers, is there that was not.
  uint64_t returns() const RUNAHEAD_EXCLUDES(mu_);
  // For a ticket that was refused with UNAVAILABLE, after `returns`: waits until returns() is another, and then keeps
  // the ticket's turn for Acquire, which must follow. False when `until` has passed, or when nobody is expected back
  // and `at_least` has passed here: it is longer than `absence` ago that a worker or path was lost, or all workers of
  // the role `missing` that are away are refused. Others are placed meanwhile. RESOURCE_EXHAUSTED when the queue is
  // full; `cancel`'s status.
  Task<absl::StatusOr<bool>> AwaitReturn(const Ticket& ticket, const ChainRequest& request, WorkerRole missing,
                                         uint64_t returns, absl::Duration absence, absl::Duration at_least,
                                         CancelToken& cancel, absl::Time until) RUNAHEAD_EXCLUDES(mu_);

  // Plans of the ticket leave the worker out, as long as there are plans without it; it is asked for a lease only
  // while no other ready decode worker could hold the request. Else that one is waited for.
  void Avoid(const Ticket& ticket, int index) const { ticket.avoided_.insert(index); }

  // A request that waits elsewhere, for a session, counts in the same queue. EnterQueue gives when it began to wait,
  // which LeaveQueue takes; RESOURCE_EXHAUSTED when the queue is full.
  absl::StatusOr<absl::Time> EnterQueue() RUNAHEAD_EXCLUDES(mu_);
  void LeaveQueue(absl::Time since) RUNAHEAD_EXCLUDES(mu_);

  // A request that waits for a prompt that begins alike counts in the same queue, with its ticket's tenant and
  // priority, from here until LeaveForBeginning, or until the ticket goes. Chains are planned as if it did not wait,
  // for it hopes for a short rest. RESOURCE_EXHAUSTED when the queue is full, also for a ticket that was admitted
  // before.
  absl::Status EnterForBeginning(const Ticket& ticket) RUNAHEAD_EXCLUDES(mu_);
  void LeaveForBeginning(const Ticket& ticket) RUNAHEAD_EXCLUDES(mu_);

  // A prompt of so many tokens had its first token so long after its `width` workers had begun.
  void PrefillTook(int64_t tokens, int64_t width, absl::Duration took) RUNAHEAD_EXCLUDES(mu_);

  // The same of a request's prompt, which has so many leases of decode workers itself; or of what is behind its
  // known_tokens. Of the first it is learned by how much longer prompts take than is expected, beside as many sequences
  // that decode; of the second how long it takes to bring KV.
  void ChainTook(const ChainRequest& request, int64_t width, int own_leases, absl::Duration took,
                 const PartitionTable& table) RUNAHEAD_EXCLUDES(mu_);

  // The decode worker computed what is behind the first `known` tokens of a prompt, and no other rest when that began:
  // what such a rest takes beside as many sequences as it has is learned.
  void RowsTook(const LiveWorker& worker, int64_t prompt_tokens, int64_t known, absl::Duration took,
                const PartitionTable& table) RUNAHEAD_EXCLUDES(mu_);

  // When a request whose ticket this is would have its first token, from now on; where it `decodes` it needs a slot.
  // Rather too early than too late; 0 where nothing goes before it.
  absl::Duration ExpectFirstToken(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                  bool decodes) const RUNAHEAD_EXCLUDES(mu_);

  // What the decode worker offers that is said to have KV of the prompt's first `known` tokens, beside the rests of so
  // many prompts that it computes already (OfferToContinue).
  ContinuationOffer OfferOf(const LiveWorker& worker, int64_t known, int64_t rests, const Ticket& ticket,
                            const ChainRequest& request, const PartitionTable& table, bool decodes) const
      RUNAHEAD_EXCLUDES(mu_);

  // What a chain offers that gets KV of as many of the prompt's first `known` tokens as it can.
  BehindOffer OfferBehindKnown(int64_t known, const Ticket& ticket, const ChainRequest& request,
                               const PartitionTable& table, bool decodes) const RUNAHEAD_EXCLUDES(mu_);
  // Likewise to a later answer, which has next to nothing to compute behind them. What waits before it is left out:
  // that is work of its own siblings, which ends in any case.
  BehindOffer OfferSiblingBehind(int64_t known, const ChainRequest& request, const PartitionTable& table) const
      RUNAHEAD_EXCLUDES(mu_);

  // Until the first token of a request that has this place, by what prompts, and bringing what is known of one, take
  // lately; 0 where nothing is known.
  absl::Duration ExpectPlaced(const Placement& placement, const ChainRequest& request,
                              const PartitionTable& table) const RUNAHEAD_EXCLUDES(mu_);

  // What a decode worker is expected to have of a prompt.
  struct Coming {
    int64_t known = 0;    // of its first tokens
    absl::Duration wait;  // until then
    int64_t waiting = 0;  // requests that wait for that already
    KnownWays ways;       // to begin behind it
    int64_t begun = 0;    // of `known`, what the prompt begins behind in any case
  };
  // Whether a prompt waits for that; `alone`: as ExpectPlaced. Of a slot and memory there it asks nothing.
  bool PaysToWait(const ChainRequest& request, const Coming& coming, absl::Duration alone,
                  const PartitionTable& table) const RUNAHEAD_EXCLUDES(mu_);

  // Whether the worker is expected to have a slot and memory for the ticket's request once it has that (HasRoomBehind).
  bool HasRoomBehind(const Ticket& ticket, const LiveWorker& worker, const DecodeNeed& need,
                     const ComingLease& coming) const RUNAHEAD_EXCLUDES(mu_);

  // Decode workers to ask for a lease, the best first: all members of `chain` reach them, and they keep nothing of what
  // it needs for older tickets. Errors as RankDecodeWorkers.
  absl::StatusOr<std::vector<std::shared_ptr<const LiveWorker>>> RankDecode(
      const Ticket& ticket, const DecodeNeed& need,
      absl::Span<const std::shared_ptr<const LiveWorker>> chain = {}) const RUNAHEAD_EXCLUDES(mu_);
  // As Fleet::LeaseAsked, and RESOURCE_EXHAUSTED where others have taken its slots since it was ranked.
  absl::Status LeaseAsked(const Ticket& ticket, const DecodeNeed& need, const LiveWorker& worker)
      RUNAHEAD_EXCLUDES(mu_);
  uint64_t decode_changes() const RUNAHEAD_EXCLUDES(mu_);  // changes with all that may make a slot or room

 private:
  struct Waiter {
    const Ticket* ticket;
    absl::Time since;
    bool turn = false;          // something changed since it planned
    bool may_overtake = false;  // MayOvertake of its request
    double expected_s = 0;      // what its prompt takes on one worker, as far as can be told
    double prefill_s = 0;       // what it takes at least; 0: not known
    ChainRequest prompt = {};   // as it was asked for, but for its parts
    QueueCause cause = QueueCause::kPlace;
  };
  // Those that wait for a place, in the order of turns.
  struct Lineup {
    std::vector<WaitingPrompt> waiting;
    std::vector<WaitingPrompt> overtaking;  // as they are before what workers have
    size_t own = 0;                         // where the one that asks stands, whether it waits already or not
    void Add(const Waiter& waiter, uint64_t changes);
  };
  // What stands before one in the queue.
  struct Front {
    double backlog_s = 0;  // until some worker has done what it has
    double workers = 1;    // that share what waits
    double Before(double ahead_s) const { return backlog_s + ahead_s / workers; }
  };
  // What a plan was made by.
  struct Seen {
    uint64_t changes = 0, joins = 0;
  };
  // What a plan is made of.
  struct Picture {
    bool begins = false;
    bool may_overtake = false;  // what workers have
    Seen seen;
    absl::Time now;
    QueueLoad queue;
    FleetLine line;  // empty unless one of the two holds
  };

  // The wait of a ticket for workers that are to come back.
  struct Absence {
    WorkerRole missing;
    uint64_t returns;
    absl::Duration lasts, at_least;
    absl::Time began, until;
  };

  // What looks says until when to wait for the next look; nothing once it is decided, and how.
  Task<absl::StatusOr<Placement>> AwaitPlace(const Ticket& ticket, const ChainRequest& request,
                                             const PartitionTable& table, const CancelToken& cancel,
                                             absl::Time deadline, const std::optional<AfterFull>& after_full)
      RUNAHEAD_EXCLUDES(mu_, planning_);
  void Acquired(const Ticket& ticket, bool placed) RUNAHEAD_EXCLUDES(mu_);
  absl::Status Arrive(const Ticket& ticket, const CancelToken& cancel) RUNAHEAD_EXCLUDES(mu_);
  // The request with what it is expected to take, which the ticket keeps as well. Once a pace has told that, it stays.
  ChainRequest Timed(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table) const
      RUNAHEAD_EXCLUDES(mu_);
  ChainRequest TimedBy(const Ticket& ticket, const ChainRequest& request, const TtftTable& times) const
      RUNAHEAD_REQUIRES(mu_);
  // Those of `waiters` that came before anything was known of what they take.
  bool TimeAnew(std::map<Turn, Waiter>& waiters) const RUNAHEAD_REQUIRES(mu_);
  absl::StatusOr<Placement> TryPlan(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                                    Seen& seen) RUNAHEAD_EXCLUDES(mu_, planning_);
  // Others may overtake in its place, until places change.
  void CannotOvertake(const Ticket& ticket, const Seen& seen) RUNAHEAD_EXCLUDES(mu_);
  static WaitingPrompt ViewOf(const Waiter& waiter);
  Lineup LineUp(const Ticket& ticket, const ChainRequest& request) const RUNAHEAD_REQUIRES(mu_);
  // Fixes how long others that overtake it may take, unless that is fixed by what is known.
  void AllowOthers(const Ticket& ticket, double front_s) const RUNAHEAD_REQUIRES(mu_);
  static bool Bears(const Waiter& waiter, double expected_s);
  // Whether all that have earlier turns can be overtaken by it.
  bool AllBear(const Ticket& ticket, double expected_s) const RUNAHEAD_REQUIRES(mu_);
  // Those that wait and were allowed for before anything was known.
  void AllowAnew() const RUNAHEAD_REQUIRES(mu_);
  Front FrontOfLine() const RUNAHEAD_REQUIRES(mu_);
  // What stands before the ticket, as far as can be told.
  double FrontS(const Ticket& ticket) const RUNAHEAD_REQUIRES(mu_);
  // It was placed: those that wait with earlier turns were overtaken, once.
  void CountOvertaken(const Ticket& ticket, double expected_s, size_t at_worker) RUNAHEAD_REQUIRES(mu_);
  // To those that wait still: it had no more than its place.
  void GiveBackTaken(const Ticket& ticket) RUNAHEAD_REQUIRES(mu_);
  Picture TakePicture(const Ticket& ticket, const ChainRequest& request) RUNAHEAD_EXCLUDES(mu_);
  // Nothing where the plan's chain is not as in the picture any more, of which `line` was made.
  std::optional<Placement> Take(const Ticket& ticket, const ChainPlan& plan, const ChainRequest& request,
                                const PartitionTable& table, const Picture& picture, absl::Span<const WorkerView> line)
      RUNAHEAD_EXCLUDES(mu_);
  Waiter WaiterOf(const Ticket& ticket, const ChainRequest& request, absl::Time since) const RUNAHEAD_REQUIRES(mu_);
  void Estimate(Waiter& waiter, const ChainRequest& request) const RUNAHEAD_REQUIRES(mu_);
  absl::Status StandInLine(const Ticket& ticket, const ChainRequest& request, const Seen& seen, absl::Time deadline)
      RUNAHEAD_EXCLUDES(mu_);
  std::optional<absl::Time> LookForTurn(const Ticket& ticket, const CancelToken& cancel, absl::Time deadline,
                                        absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  Task<absl::Status> AwaitDecode(const Ticket& ticket, const AfterFull& full, const CancelToken& cancel,
                                 absl::Time deadline) RUNAHEAD_EXCLUDES(mu_);
  absl::Status StandForDecode(const Ticket& ticket, const AfterFull& full) RUNAHEAD_EXCLUDES(mu_);
  std::optional<absl::Time> LookForDecode(const Ticket& ticket, const AfterFull& full, const CancelToken& cancel,
                                          absl::Time deadline, absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  QueueCause DecodeCause(const Ticket& ticket, const DecodeNeed& need) const RUNAHEAD_REQUIRES(mu_);
  // When the one that waits for decode is to look for itself.
  absl::Time NextLook(const Waiter& waiter, const AfterFull& full, absl::Time now) const RUNAHEAD_REQUIRES(mu_);
  // False: there is nothing to wait for, and `returned` is what AwaitReturn comes to.
  bool StandForReturn(const Ticket& ticket, const ChainRequest& request, const Absence& absence,
                      absl::StatusOr<bool>& returned) RUNAHEAD_EXCLUDES(mu_);
  std::optional<absl::Time> LookForReturn(const Ticket& ticket, const Absence& absence, const CancelToken& cancel,
                                          absl::StatusOr<bool>& returned) RUNAHEAD_EXCLUDES(mu_);
  absl::Time EndOf(const Absence& absence) const RUNAHEAD_REQUIRES(mu_);
  // Leases of all decode workers.
  int64_t Decoding() const RUNAHEAD_REQUIRES(mu_);
  BehindOffer OfferBehind(int64_t known, const ChainRequest& request,
                          absl::FunctionRef<absl::Duration(const ChainRequest& chain)> expect) const
      RUNAHEAD_EXCLUDES(mu_);
  // Until the first token by a chain: `waited`, or what the prompt itself takes, and by how much longer it takes
  // lately.
  absl::Duration ByPace(absl::Duration waited, const ChainRequest& request, const PartitionTable& table) const
      RUNAHEAD_REQUIRES(mu_);
  bool PaysToWaitForRows(const ChainRequest& request, const Coming& coming, absl::Duration alone,
                         const PartitionTable& table) const RUNAHEAD_REQUIRES(mu_);
  ComingBehindView ViewBehind(const ChainRequest& request, const Coming& coming, absl::Duration alone,
                              const PartitionTable& table) const RUNAHEAD_REQUIRES(mu_);
  // Likewise; 0 where nothing is known.
  absl::Duration ExpectByChain(const Ticket& ticket, const ChainRequest& request, const PartitionTable& table,
                               bool decodes) const RUNAHEAD_EXCLUDES(mu_);
  // Until some worker has done all that it has, or, for one that may `overtake`, what it computes. 0 where none is
  // ready.
  double LeastBacklogS(const FleetLine& line, bool overtake) const;
  void CountSlots(FirstTokenView& view) const;
  void Hear(const FleetNews& news) RUNAHEAD_EXCLUDES(mu_);
  void DecodeChanged() RUNAHEAD_REQUIRES(mu_);
  void WakeNext() RUNAHEAD_REQUIRES(mu_);
  void WakeForDecode() RUNAHEAD_REQUIRES(mu_);
  static void GiveTurn(Waiter& waiter);
  // For prefill, decode or lost workers, or for a place among the sessions; Waiting counts those for a beginning, too.
  int WaitingForWorkers() const RUNAHEAD_REQUIRES(mu_);
  int Waiting() const RUNAHEAD_REQUIRES(mu_);
  void QueueChanged() RUNAHEAD_REQUIRES(mu_);
  void ShowQueue() const RUNAHEAD_REQUIRES(mu_);
  void Waited(const Waiter& waiter) const RUNAHEAD_REQUIRES(mu_);
  void PlacesChanged() RUNAHEAD_REQUIRES(mu_);
  void Returned() RUNAHEAD_REQUIRES(mu_);
  void Refused() RUNAHEAD_REQUIRES(mu_);
  Turn TurnOf(const Claim& claim) RUNAHEAD_EXCLUDES(mu_);
  void Leave(const Ticket& ticket) RUNAHEAD_EXCLUDES(mu_);
  // To the queue, where it then may be again and again, and so may one that was settled and is placed anew.
  absl::Status Admit(const Ticket& ticket) const RUNAHEAD_REQUIRES(mu_);

  Fleet& fleet_;
  const int queue_size_;
  RouterMetrics& metrics_;
  Clock& clock_;
  const Planner planner_;
  Mutex planning_;  // held by the one that plans; never wanted by who holds mu_
  mutable Mutex mu_;
  ArrivalRate arrivals_ RUNAHEAD_GUARDED_BY(mu_);
  PrefillPace pace_ RUNAHEAD_GUARDED_BY(mu_);
  BringPace bring_ RUNAHEAD_GUARDED_BY(mu_);
  PaceBeside chains_ RUNAHEAD_GUARDED_BY(mu_);  // of whole prompts
  PaceBeside rows_ RUNAHEAD_GUARDED_BY(mu_);    // of rests on decode workers, beyond what makes prompts take longer
  // By ticket: those that wait for a place, and those that wait for decode first.
  std::map<Turn, Waiter> waiting_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Turn, Waiter> for_decode_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<Turn, Waiter> for_return_ RUNAHEAD_GUARDED_BY(mu_);  // those that wait for workers to come back
  std::map<Turn, Waiter> for_beginning_ RUNAHEAD_GUARDED_BY(mu_);  // those that wait for prompts that begin alike
  DecodeQueue kept_ RUNAHEAD_GUARDED_BY(mu_);  // by ticket too: from its first refusal until the ticket goes
  int waiting_elsewhere_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  FairOrder order_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t decode_changes_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t returns_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  uint64_t changes_ RUNAHEAD_GUARDED_BY(mu_) = 0;  // by which one that waits for a place may get it
  uint64_t joins_ RUNAHEAD_GUARDED_BY(mu_) = 0;    // to those that wait for a place
};

}  // namespace runahead
