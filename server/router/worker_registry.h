// All workers of the list: keeps a connection to each, joins those that agree, and forms the line of prefill workers.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "server/base/hearing.h"
#include "server/base/log_later.h"
#include "server/router/agreement.h"
#include "server/router/edge_states.h"
#include "server/router/fleet.h"
#include "server/router/known_index.h"
#include "server/router/seats.h"
#include "server/router/sequencer.h"
#include "server/router/warning_pace.h"
#include "server/router/worker_connection.h"

namespace runahead {

// Thread-safe, but for Occupy and Vacate, which one thread calls. Works until destroyed.
class WorkerRegistry final : private WorkerConnection::Owner, public Seats {
 public:
  // Connects to all workers of `fleet`'s list that have an address, at once and in the background. `dtype` is what they
  // are to compute in, or "auto": then most of them say (PoolChoice). Everything given must outlive the registry.
  WorkerRegistry(Fleet& fleet, Sequencer& sequencer, const ModelInfo& model, std::string dtype, Clock& clock,
                 const MemberAccess& access = {}, Hearing& hearing = AlwaysHears(), KnownIndex* known = nullptr);
  ~WorkerRegistry() override;

  absl::Status Occupy(int index, const std::string& address) override RUNAHEAD_EXCLUDES(mu_);
  void Keep(int index) override RUNAHEAD_EXCLUDES(mu_);
  bool Retire(int index) override RUNAHEAD_EXCLUDES(mu_);
  void Vacate(int index) override RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Member {
    v1::Capabilities capabilities;
    std::shared_ptr<const LiveWorker> live;  // null until it has joined
    v1::FormLine told;                       // last
    bool draining = false;                   // as it says itself
    bool told_drained = false;
  };
  // What outlasts a membership.
  struct Known {
    std::string name = {};  // as its worker said last; empty: none has answered
    // Of the process that the seat has, from when it is admitted until it has left: no other seat may have it.
    std::optional<uint64_t> incarnation = {};
    bool drains = false;           // as its worker said last, though its stream may have ended since
    std::string last_logged = {};  // by LogOnce, since it joined
    WarningPace warnings = {};
  };

  // Waits until the pool is chosen, kChoiceTimeout at most.
  absl::Status Admit(int index, const v1::Capabilities& capabilities) override RUNAHEAD_EXCLUDES(mu_);
  // The worker is this seat's; ALREADY_EXISTS where it is another one's, whose address is spelled otherwise.
  absl::Status Claim(int index, const v1::Capabilities& capabilities) RUNAHEAD_REQUIRES(mu_);
  // Has its vote.
  void Answered(int index, const v1::Capabilities& capabilities, LogLater& later) RUNAHEAD_REQUIRES(mu_);
  absl::StatusOr<PoolTerms> AwaitChoice() RUNAHEAD_REQUIRES(mu_);
  void Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> orders) override
      RUNAHEAD_EXCLUDES(mu_);
  void Interrupted(int index, const absl::Status& why) override RUNAHEAD_EXCLUDES(mu_);
  void Resumed(int index) override RUNAHEAD_EXCLUDES(mu_);
  void Report(int index, const v1::ControlReport& report) override RUNAHEAD_EXCLUDES(mu_);
  void Loaded(int index, const v1::DecodeLoad& load, absl::Time asked) override;
  uint64_t Lessons() override;
  void Evicted(const LiveWorker& worker, absl::Span<const uint64_t> hashes, uint64_t lessons) override;
  void Suspected(int index, bool suspected) override RUNAHEAD_EXCLUDES(mu_);
  void Left(int index, WorkerState state, const absl::Status& why) override RUNAHEAD_EXCLUDES(mu_);
  void Connect(int index, const std::string& address);
  void SetAddress(int index, const std::string& address) RUNAHEAD_REQUIRES(mu_);
  // Tells every member what has changed for it: its neighbours on the line, whom to close links to, and what it is
  // asked of its paths.
  void FormLine(std::optional<int> newcomer) RUNAHEAD_REQUIRES(mu_);
  // A job failed over these paths: nothing is planned across them until the workers at their ends have been asked.
  void Doubt(const std::vector<WorkerPath>& paths) RUNAHEAD_EXCLUDES(mu_);
  void TakePaths(int index, const v1::PathStates& paths, LogLater& later) RUNAHEAD_REQUIRES(mu_);
  // It may be judged: Ejections knows it.
  void Welcome(int index) RUNAHEAD_REQUIRES(mu_);
  // Nothing new is planned on a member that says that it is to end.
  void TakeDraining(int index, LogLater& later) RUNAHEAD_REQUIRES(mu_);
  // Tells a member that drains when nothing is left on it.
  void TellDrained(int index) RUNAHEAD_REQUIRES(mu_);
  // What the planner may not use, for the fleet.
  void TellPaths() RUNAHEAD_REQUIRES(mu_);
  void CountSuspected() RUNAHEAD_REQUIRES(mu_);
  // How the line's edges stand, for the gauge.
  void CountEdges() RUNAHEAD_REQUIRES(mu_);
  // Workers of different builds may work together. Logs that builds differ, for those who look for a fault.
  void LogBuild(int index, LogLater& later) RUNAHEAD_REQUIRES(mu_);
  // "prefill-0 at 10.0.0.1:7000", for the log.
  std::string Who(int index) RUNAHEAD_REQUIRES(mu_);
  void LogOnce(int index, std::string message, LogLater& later) RUNAHEAD_REQUIRES(mu_);

  Fleet& fleet_;
  Sequencer& sequencer_;
  const ModelInfo model_;
  const std::string dtype_;
  const uint64_t incarnation_;
  const MemberAccess access_;
  Clock& clock_;
  Hearing& hearing_;
  KnownIndex* const index_;
  Mutex mu_;
  CondVar pool_changed_;
  PoolChoice pool_ RUNAHEAD_GUARDED_BY(mu_);
  bool stopping_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::map<int, Member> members_ RUNAHEAD_GUARDED_BY(mu_);  // by worker index
  std::deque<WorkerLife> lost_ RUNAHEAD_GUARDED_BY(mu_);    // the latest last
  EdgeStates edges_ RUNAHEAD_GUARDED_BY(mu_);
  std::set<int> suspected_ RUNAHEAD_GUARDED_BY(mu_);   // of hanging, by worker index
  std::vector<Known> known_ RUNAHEAD_GUARDED_BY(mu_);  // by worker index
  // By worker index; null: the seat is vacant. Of the thread that occupies and vacates.
  std::vector<std::unique_ptr<WorkerConnection>> connections_;
};

}  // namespace runahead
