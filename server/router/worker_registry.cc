#include "server/router/worker_registry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/with_threads.h"
#include "server/base/logging.h"
#include "server/base/random.h"

namespace runahead {
namespace {

// A worker is told of each loss at once; the list only has to outlast losses that come together.
constexpr size_t kLostRemembered = 64;

}  // namespace

WorkerRegistry::WorkerRegistry(Fleet& fleet, Sequencer& sequencer, const ModelInfo& model, std::string dtype,
                               Clock& clock, const MemberAccess& access, Hearing& hearing, KnownIndex* known)
    : fleet_(fleet),
      sequencer_(sequencer),
      model_(model),
      dtype_(std::move(dtype)),
      incarnation_(RandomBits64()),
      access_(access),
      clock_(clock),
      hearing_(hearing),
      index_(known),
      pool_(fleet.listed()),
      known_(fleet.workers().size()),
      connections_(fleet.workers().size()) {
  fleet_.OnDoubt([this](const std::vector<WorkerPath>& paths) { Doubt(paths); });
  for (size_t i = 0; i < connections_.size(); ++i) {
    const std::string address = fleet.address(static_cast<int>(i));
    if (!address.empty()) Connect(static_cast<int>(i), address);
  }
}

void WorkerRegistry::Connect(int index, const std::string& address) {
  WorkerConnection::Owner& owner = *this;
  WorkerSpec spec = fleet_.workers()[index];
  spec.address = address;
  connections_[index] =
      std::make_unique<WorkerConnection>(index, std::move(spec), incarnation_, owner, clock_, access_, hearing_);
}

absl::Status WorkerRegistry::Occupy(int index, const std::string& address) {
  {
    MutexLock lock(mu_);
    SetAddress(index, address);
  }
  const absl::Status connected = WithThreads([&]() -> absl::Status {
    Connect(index, address);
    return absl::OkStatus();
  });
  if (!connected.ok()) {
    MutexLock lock(mu_);
    SetAddress(index, "");
    return connected;
  }
  LogInfo("registry", "found ", address, " (", fleet_.workers()[index].role, ")");
  return absl::OkStatus();
}

void WorkerRegistry::SetAddress(int index, const std::string& address) {
  known_[index] = {};
  suspected_.erase(index);
  CountSuspected();
  fleet_.SetAddress(index, address);
  pool_.SetListed(fleet_.listed());
  pool_changed_.NotifyAll();
  FormLine(std::nullopt);
}

void WorkerRegistry::Keep(int index) {
  LogLater later;
  MutexLock lock(mu_);
  const auto member = members_.find(index);
  if (member == members_.end() || member->second.draining) return;
  later.Info("registry", Who(index), " is named again: it stays");
  Welcome(index);
  if (member->second.live != nullptr) *member->second.live->drains = false;
  fleet_.SetDraining(index, false, "ready");
}

bool WorkerRegistry::Retire(int index) {
  LogLater later;
  MutexLock lock(mu_);
  const auto member = members_.find(index);
  if (member == members_.end() || member->second.live == nullptr) return true;
  const std::string note = "drains: the name service has its name no more";
  LogOnce(index, absl::StrCat(Who(index), " ", note), later);
  fleet_.ejections().NotReady(index);
  fleet_.SetDraining(index, true, note);
  *member->second.live->drains = true;
  return fleet_.Idle(index);
}

void WorkerRegistry::Vacate(int index) {
  connections_[index].reset();  // it tells Left
  LogLater later;
  MutexLock lock(mu_);
  later.Info("registry", Who(index), " is gone from the list");
  SetAddress(index, "");
}

// FormLine tells nobody that these workers were lost: they stay as they are for the next router.
WorkerRegistry::~WorkerRegistry() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    pool_changed_.NotifyAll();
  }
  connections_.clear();
  fleet_.OnDoubt(nullptr);
}

absl::Status WorkerRegistry::Admit(int index, const v1::Capabilities& capabilities) {
  WorkerSpec spec = fleet_.workers()[index];
  {
    LogLater later;
    MutexLock lock(mu_);
    known_[index].name = capabilities.name();
    spec.address = fleet_.address(index);
    absl::Status refused = Claim(index, capabilities);
    if (refused.ok()) refused = CheckAgreement(spec, capabilities, model_, dtype_, nullptr);
    if (!refused.ok()) {
      pool_.Refused(index);
      pool_changed_.NotifyAll();
      return refused;
    }
    Answered(index, capabilities, later);
  }
  MutexLock lock(mu_);
  RUNAHEAD_ASSIGN_OR_RETURN(const PoolTerms pool, AwaitChoice());
  RUNAHEAD_RETURN_IF_ERROR(CheckAgreement(spec, capabilities, model_, dtype_, &pool));
  members_[index].capabilities = capabilities;
  return absl::OkStatus();
}

// A worker is who it says it is, however its address is written: two streams to one would end each other in turn.
absl::Status WorkerRegistry::Claim(int index, const v1::Capabilities& capabilities) {
  for (size_t other = 0; other < known_.size(); ++other) {
    if (static_cast<int>(other) == index || known_[other].incarnation != capabilities.incarnation()) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("worker ", capabilities.name(), " is in use as ", fleet_.workers()[other].role, " at ",
                     fleet_.address(static_cast<int>(other)),
                     "; this second address of it stays unused meanwhile (one that does both has role both)"));
  }
  known_[index].incarnation = capabilities.incarnation();
  return absl::OkStatus();
}

void WorkerRegistry::Answered(int index, const v1::Capabilities& capabilities, LogLater& later) {
  pool_.Answered(index, TermsOf(capabilities), clock_.Now());
  if (pool_.Choose(clock_.Now()) != nullptr) return;
  const std::string waits = absl::StrCat("computes in ", capabilities.compute_dtype(),
                                         " and waits until most workers of the list have answered");
  fleet_.SetNotReady(index, WorkerState::kConnecting, waits);
  LogOnce(index, absl::StrCat(Who(index), " ", waits), later);
}

absl::StatusOr<PoolTerms> WorkerRegistry::AwaitChoice() {
  const PoolTerms* pool = pool_.Choose(clock_.Now());
  while (pool == nullptr && !stopping_) {
    clock_.WaitUntil(mu_, pool_changed_, pool_.choice_due());
    pool = pool_.Choose(clock_.Now());
  }
  if (pool == nullptr) return absl::CancelledError("the router stops");
  pool_changed_.NotifyAll();
  return *pool;
}

void WorkerRegistry::Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> orders) {
  const v1::Capabilities& capabilities = worker->capabilities;
  const int index = worker->index;
  LogLater later;
  MutexLock lock(mu_);
  members_[index].live = worker;
  known_[index].drains = members_[index].draining;
  known_[index].last_logged.clear();
  known_[index].warnings.Over();
  sequencer_.Attach(index, capabilities.name(), std::move(orders));
  FormLine(index);  // before anybody can be planned on: each stream has its neighbours ahead of the first Start
  Welcome(index);
  fleet_.SetReady(worker);
  if (members_[index].draining) TakeDraining(index, later);
  later.Info("registry", Who(index), " joined: ", fleet_.workers()[index].role, ", ", capabilities.compute_dtype(),
             ", ", capabilities.device());
  LogBuild(index, later);
}

void WorkerRegistry::Interrupted(int index, const absl::Status& why) {
  sequencer_.Suspend(index);
  LogLater later;
  MutexLock lock(mu_);
  fleet_.SetInterrupted(index, true);
  later.Info("registry", Who(index), ": its control stream broke, and is being resumed: ", why.message());
}

void WorkerRegistry::Resumed(int index) {
  sequencer_.Resume(index);
  LogLater later;
  MutexLock lock(mu_);
  fleet_.SetInterrupted(index, false);
  later.Info("registry", Who(index), ": its control stream was resumed");
}

void WorkerRegistry::Welcome(int index) {
  const WorkerSpec& spec = fleet_.workers()[index];
  const v1::Capabilities& worker = members_[index].capabilities;
  fleet_.ejections().Ready(index, worker.name(), worker.incarnation(), spec.prefills(), spec.decodes());
}

void WorkerRegistry::LogBuild(int index, LogLater& later) {
  const v1::Capabilities& newcomer = members_[index].capabilities;
  for (const auto& [other, member] : members_) {
    if (member.live == nullptr || member.capabilities.build() == newcomer.build()) continue;
    later.Warning("registry", newcomer.name(), " is of build ", newcomer.build(), ", ", member.capabilities.name(),
                  " of ", member.capabilities.build());
    return;
  }
}

void WorkerRegistry::Left(int index, WorkerState state, const absl::Status& why) {
  std::shared_ptr<const LiveWorker> live;
  {
    LogLater later;
    MutexLock lock(mu_);
    if (const auto found = members_.find(index); found != members_.end()) {
      live = found->second.live;
      if (live != nullptr) {
        lost_.push_back(LifeOf(live->capabilities));
        edges_.Forget(lost_.back());
      }
      if (lost_.size() > kLostRemembered) lost_.pop_front();
      members_.erase(found);
    }
    known_[index].incarnation.reset();
    pool_.Gone(index, clock_.Now());
    pool_changed_.NotifyAll();
    // One that drained first has stopped because it was asked to.
    const bool stopped = state == WorkerState::kLost && known_[index].drains;
    if (live != nullptr) *live->let_go = stopped || absl::IsCancelled(why);
    if (stopped) state = WorkerState::kConnecting;
    fleet_.SetNotReady(index, state, std::string(why.message()));
    fleet_.ejections().NotReady(index);
    if (absl::IsCancelled(why)) {
      // The router's own doing.
    } else if (stopped) {
      LogOnce(index, absl::StrCat(Who(index), " has drained and stopped"), later);
    } else if (absl::IsAlreadyExists(why)) {
      LogOnce(index, absl::StrCat(Who(index), ": ", why.message()), later);
    } else if (known_[index].warnings.Due(state, clock_.Now())) {
      later.Warning("registry", Who(index), ": ", why.message());
    }
  }
  if (live == nullptr) return;
  sequencer_.Detach(index, why);
  live->lost->Cancel(
      absl::UnavailableError(absl::StrCat("decode worker ", live->capabilities.name(), " was lost: ", why.message())));
  MutexLock lock(mu_);
  FormLine(std::nullopt);
}

void WorkerRegistry::Loaded(int index, const v1::DecodeLoad& load, absl::Time asked) {
  fleet_.TakeLoad(index, load, asked);
}

uint64_t WorkerRegistry::Lessons() {
  return index_ == nullptr ? 0 : index_->lessons();
}

void WorkerRegistry::Evicted(const LiveWorker& worker, absl::Span<const uint64_t> hashes, uint64_t lessons) {
  if (index_ != nullptr) index_->Evicted(worker, hashes, lessons);
}

void WorkerRegistry::Suspected(int index, bool suspected) {
  LogLater later;
  MutexLock lock(mu_);
  if (suspected) {
    suspected_.insert(index);
    later.Warning("registry", Who(index), " is suspected to hang: it answers, and gets nothing done");
  } else if (suspected_.erase(index) > 0) {
    later.Info("registry", Who(index), " is not suspected any more");
  }
  CountSuspected();
}

void WorkerRegistry::CountSuspected() {
  fleet_.CountSuspected(suspected_);
}

void WorkerRegistry::Report(int index, const v1::ControlReport& report) {
  sequencer_.OnReport(index, report);
  if (!report.has_pong() && !report.has_paths() && !report.has_draining()) return;
  sequencer_.EndOverdue(clock_.Now());
  LogLater later;
  MutexLock lock(mu_);
  if (report.has_paths()) TakePaths(index, report.paths(), later);
  if (report.has_draining()) TakeDraining(index, later);
  TellDrained(index);
  // Pongs come twice a second from each worker: often enough for edges that are to be made anew, and for overdue jobs.
  if (edges_.Renew(clock_.Now())) FormLine(std::nullopt);
  if (edges_.EndDoubts(clock_.Now())) TellPaths();
}

// The report may come before the worker has joined here.
void WorkerRegistry::TakeDraining(int index, LogLater& later) {
  const auto member = members_.find(index);
  if (member == members_.end()) return;
  member->second.draining = known_[index].drains = true;
  if (member->second.live == nullptr) return;
  later.Info("registry", Who(index), " drains: nothing new is planned on it");
  fleet_.ejections().NotReady(index);
  fleet_.SetDraining(index, true, absl::StrCat(known_[index].name, " drains before it stops"));
  *member->second.live->drains = true;
}

void WorkerRegistry::TellDrained(int index) {
  const auto found = members_.find(index);
  if (found == members_.end()) return;
  Member& member = found->second;
  if (!member.draining || member.live == nullptr || member.told_drained || !fleet_.Idle(index)) return;
  member.told_drained = true;
  v1::ControlCommand command;
  command.mutable_drained();
  sequencer_.Send({{index, std::move(command)}});
}

std::string WorkerRegistry::Who(int index) {
  const std::string& name = known_[index].name;
  return absl::StrCat(name.empty() ? "a worker" : name, " at ", fleet_.address(index));
}

void WorkerRegistry::LogOnce(int index, std::string message, LogLater& later) {
  if (known_[index].last_logged == message) return;
  later.Info("registry", message);
  known_[index].last_logged = std::move(message);
}

}  // namespace runahead
