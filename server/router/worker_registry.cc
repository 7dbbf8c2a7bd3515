#include "server/router/worker_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "server/base/random.h"

namespace runahead {
namespace {

// A worker is told of each loss at once; the list only has to outlast losses that come together.
constexpr size_t kLostRemembered = 64;

}  // namespace

WorkerRegistry::WorkerRegistry(Fleet& fleet, Sequencer& sequencer, const ModelInfo& model, std::string dtype,
                               Clock& clock, const ClusterKey& key)
    : fleet_(fleet),
      sequencer_(sequencer),
      model_(model),
      dtype_(std::move(dtype)),
      incarnation_(RandomBits64()),
      key_(key),
      clock_(clock),
      pool_(fleet.listed()),
      known_(fleet.workers().size()),
      connections_(fleet.workers().size()) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    const std::string address = fleet.address(static_cast<int>(i));
    if (!address.empty()) Connect(static_cast<int>(i), address);
  }
}

void WorkerRegistry::Connect(int index, const std::string& address) {
  WorkerConnection::Owner& owner = *this;
  WorkerSpec spec = fleet_.workers()[index];
  spec.address = address;
  connections_[index] = std::make_unique<WorkerConnection>(index, std::move(spec), incarnation_, owner, clock_, key_);
}

void WorkerRegistry::Occupy(int index, const std::string& address) {
  {
    MutexLock lock(mu_);
    SetAddress(index, address);
  }
  LogInfo("registry", "found ", address, " (", fleet_.workers()[index].role, ")");
  Connect(index, address);
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
  MutexLock lock(mu_);
  const auto member = members_.find(index);
  if (member == members_.end() || member->second.draining) return;
  LogInfo("registry", Who(index), " is named again: it stays");
  Welcome(index);
  fleet_.SetDraining(index, false, "ready");
}

bool WorkerRegistry::Retire(int index) {
  MutexLock lock(mu_);
  const auto member = members_.find(index);
  if (member == members_.end() || member->second.live == nullptr) return true;
  const std::string note = "drains: the name service has its name no more";
  LogOnce(index, absl::StrCat(Who(index), " ", note));
  fleet_.ejections().NotReady(index);
  fleet_.SetDraining(index, true, note);
  return fleet_.Idle(index);
}

void WorkerRegistry::Vacate(int index) {
  connections_[index].reset();  // it tells Left
  MutexLock lock(mu_);
  LogInfo("registry", Who(index), " is gone from the list");
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
}

absl::Status WorkerRegistry::Admit(int index, const v1::Capabilities& capabilities) {
  MutexLock lock(mu_);
  known_[index].name = capabilities.name();
  WorkerSpec spec = fleet_.workers()[index];
  spec.address = fleet_.address(index);
  if (absl::Status refused = CheckAgreement(spec, capabilities, model_, dtype_, nullptr); !refused.ok()) {
    pool_.Refused(index);
    pool_changed_.NotifyAll();
    return refused;
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const PoolTerms pool, AwaitChoice(index, capabilities));
  RUNAHEAD_RETURN_IF_ERROR(CheckAgreement(spec, capabilities, model_, dtype_, &pool));
  members_[index].capabilities = capabilities;
  return absl::OkStatus();
}

absl::StatusOr<PoolTerms> WorkerRegistry::AwaitChoice(int index, const v1::Capabilities& capabilities) {
  pool_.Answered(index, TermsOf(capabilities), clock_.Now());
  const PoolTerms* pool = pool_.Choose(clock_.Now());
  if (pool == nullptr) {
    const std::string waits = absl::StrCat("computes in ", capabilities.compute_dtype(),
                                           " and waits until most workers of the list have answered");
    fleet_.SetNotReady(index, WorkerState::kConnecting, waits);
    LogOnce(index, absl::StrCat(Who(index), " ", waits));
  }
  while (pool == nullptr && !stopping_) {
    clock_.WaitUntil(mu_, pool_changed_, pool_.choice_due());
    pool = pool_.Choose(clock_.Now());
  }
  if (pool == nullptr) return absl::CancelledError("the router stops");
  pool_changed_.NotifyAll();
  return *pool;
}

void WorkerRegistry::Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> stream) {
  const v1::Capabilities& capabilities = worker->capabilities;
  const int index = worker->index;
  MutexLock lock(mu_);
  members_[index].live = worker;
  known_[index].drains = members_[index].draining;
  known_[index].last_logged.clear();
  known_[index].warnings.Over();
  sequencer_.Attach(index, capabilities.name(), std::move(stream));
  FormLine(index);  // before anybody can be planned on: each stream has its neighbours ahead of the first Start
  Welcome(index);
  fleet_.SetReady(worker);
  if (members_[index].draining) TakeDraining(index);
  LogInfo("registry", Who(index), " joined: ", fleet_.workers()[index].role, ", ", capabilities.compute_dtype(), ", ",
          capabilities.device());
  LogBuild(index);
}

void WorkerRegistry::Welcome(int index) {
  const WorkerSpec& spec = fleet_.workers()[index];
  const v1::Capabilities& worker = members_[index].capabilities;
  fleet_.ejections().Ready(index, worker.name(), worker.incarnation(), spec.prefills(), spec.decodes());
}

void WorkerRegistry::LogBuild(int index) {
  const v1::Capabilities& newcomer = members_[index].capabilities;
  for (const auto& [other, member] : members_) {
    if (member.live == nullptr || member.capabilities.build() == newcomer.build()) continue;
    LogWarning("registry", newcomer.name(), " is of build ", newcomer.build(), ", ", member.capabilities.name(), " of ",
               member.capabilities.build());
    return;
  }
}

void WorkerRegistry::Left(int index, WorkerState state, const absl::Status& why) {
  std::shared_ptr<const LiveWorker> live;
  {
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
    pool_.Gone(index, clock_.Now());
    pool_changed_.NotifyAll();
    // One that drained first has stopped because it was asked to.
    const bool stopped = state == WorkerState::kLost && known_[index].drains;
    if (stopped) state = WorkerState::kConnecting;
    fleet_.SetNotReady(index, state, std::string(why.message()));
    fleet_.ejections().NotReady(index);
    if (absl::IsCancelled(why)) {
      // The router's own doing.
    } else if (stopped) {
      LogOnce(index, absl::StrCat(Who(index), " has drained and stopped"));
    } else if (known_[index].warnings.Due(state, clock_.Now())) {
      LogWarning("registry", Who(index), ": ", why.message());
    }
  }
  if (live == nullptr) return;
  sequencer_.Detach(index, why);
  live->lost->Cancel(
      absl::UnavailableError(absl::StrCat("decode worker ", live->capabilities.name(), " was lost: ", why.message())));
  MutexLock lock(mu_);
  FormLine(std::nullopt);
}

void WorkerRegistry::Suspected(int index, bool suspected) {
  MutexLock lock(mu_);
  if (suspected) {
    suspected_.insert(index);
    LogWarning("registry", Who(index), " is suspected to hang: it answers, and gets nothing done");
  } else if (suspected_.erase(index) > 0) {
    LogInfo("registry", Who(index), " is not suspected any more");
  }
  CountSuspected();
}

void WorkerRegistry::CountSuspected() {
  fleet_.CountSuspected(suspected_);
}

void WorkerRegistry::FormLine(std::optional<int> newcomer) {
  if (stopping_) return;
  std::map<int, v1::FormLine> lines;  // what each is to know, by worker index
  for (const auto& [index, member] : members_) {
    if (member.live == nullptr) continue;
    lines[index];  // one that has nothing to know is told that
    for (const WorkerLife& life : lost_) {
      v1::WorkerLife& lost = *lines[index].add_lost();
      lost.set_incarnation(life.incarnation);
      lost.set_epoch(life.epoch);
    }
  }
  const auto fill = [this](int index, uint32_t generation, v1::PeerAddress& to) RUNAHEAD_REQUIRES(mu_) {
    const v1::Capabilities& peer = members_.at(index).capabilities;
    to.set_name(peer.name());
    to.set_link_address(peer.link_address());
    to.set_incarnation(peer.incarnation());
    to.set_device_link(peer.device_link());
    to.set_epoch(peer.epoch());
    to.set_generation(generation);
  };
  const std::vector<int> line_of_fleet = fleet_.line();
  for (size_t i = 1; i < line_of_fleet.size(); ++i) {
    const int before = line_of_fleet[i - 1], after = line_of_fleet[i];
    if (!lines.contains(before) || !lines.contains(after)) continue;
    const uint32_t generation =
        edges_.Generation(LifeOf(members_[before].capabilities), LifeOf(members_[after].capabilities));
    fill(before, generation, *lines[after].mutable_predecessor());
    fill(after, generation, *lines[before].mutable_successor());
  }
  std::vector<std::pair<int, v1::ControlCommand>> commands;
  for (auto& [index, line] : lines) {
    v1::FormLine& told = members_[index].told;
    if (index != newcomer && told.SerializeAsString() == line.SerializeAsString()) continue;
    told = line;
    commands.emplace_back(index, v1::ControlCommand());
    *commands.back().second.mutable_form_line() = std::move(line);
  }
  sequencer_.Send(std::move(commands));
  TellPaths();
  CountEdges();
}

void WorkerRegistry::Report(int index, const v1::ControlReport& report) {
  sequencer_.OnReport(index, report);
  if (!report.has_pong() && !report.has_paths() && !report.has_draining()) return;
  sequencer_.EndOverdue(clock_.Now());
  MutexLock lock(mu_);
  if (report.has_paths()) TakePaths(index, report.paths());
  if (report.has_draining()) TakeDraining(index);
  TellDrained(index);
  // Pongs come twice a second from each worker: often enough for edges that are to be made anew, and for overdue jobs.
  if (edges_.Renew(clock_.Now())) FormLine(std::nullopt);
}

// The report may come before the worker has joined here.
void WorkerRegistry::TakeDraining(int index) {
  const auto member = members_.find(index);
  if (member == members_.end()) return;
  member->second.draining = known_[index].drains = true;
  if (member->second.live == nullptr) return;
  LogInfo("registry", Who(index), " drains: nothing new is planned on it");
  fleet_.ejections().NotReady(index);
  fleet_.SetDraining(index, true, absl::StrCat(known_[index].name, " drains before it stops"));
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

void WorkerRegistry::TakePaths(int index, const v1::PathStates& paths) {
  const auto member = members_.find(index);
  if (member == members_.end() || member->second.live == nullptr) return;
  const v1::Capabilities& reporter = member->second.capabilities;
  bool changed = false;
  for (const v1::PathState& state : paths.states()) {
    if (!edges_.Report(LifeOf(reporter), state, clock_.Now())) continue;
    changed = true;
    const WorkerLife peer{state.peer().incarnation(), state.peer().epoch()};
    const auto other = std::find_if(members_.begin(), members_.end(),
                                    [&peer](const auto& m) { return LifeOf(m.second.capabilities) == peer; });
    const std::string name = other == members_.end() ? "a worker that is gone" : other->second.capabilities.name();
    const char* const what = state.generation() > 0 ? "the edge to " : "hand-off to ";
    if (state.condition() == v1::PATH_CONDITION_BROKEN) {
      LogWarning("line", reporter.name(), ": ", what, name, " is broken: ", state.message());
    } else {
      LogInfo("line", reporter.name(), ": ", what, name, " works again");
    }
  }
  if (changed) TellPaths();
  CountEdges();
}

void WorkerRegistry::TellPaths() {
  const auto life_of = [this](int index) RUNAHEAD_REQUIRES(mu_) -> std::optional<WorkerLife> {
    const auto member = members_.find(index);
    if (member == members_.end() || member->second.live == nullptr) return std::nullopt;
    return LifeOf(member->second.capabilities);
  };
  BrokenPaths broken;
  const std::vector<int> line = fleet_.line();
  for (size_t i = 0; i < line.size(); ++i) {
    const std::optional<WorkerLife> life = life_of(line[i]);
    if (!life) continue;
    const std::optional<WorkerLife> next = i + 1 < line.size() ? life_of(line[i + 1]) : std::nullopt;
    if (next && !edges_.Usable(*life, *next)) broken.edges.insert(line[i]);
    for (const auto& [index, member] : members_) {
      if (member.live == nullptr || !fleet_.workers()[index].decodes()) continue;
      if (!edges_.Reaches(*life, LifeOf(member.capabilities))) broken.handoffs.insert({line[i], index});
    }
  }
  fleet_.SetBroken(std::move(broken));
}

void WorkerRegistry::CountEdges() {
  EdgeCounts counts = {};
  const std::vector<int> line = fleet_.line();
  for (size_t i = 1; i < line.size(); ++i) {
    const auto before = members_.find(line[i - 1]), after = members_.find(line[i]);
    if (before == members_.end() || after == members_.end()) continue;
    if (before->second.live == nullptr || after->second.live == nullptr) continue;
    const EdgeState state = edges_.StateOf(LifeOf(before->second.capabilities), LifeOf(after->second.capabilities));
    ++counts[static_cast<size_t>(state)];
  }
  fleet_.CountEdges(counts);
}

std::string WorkerRegistry::Who(int index) {
  const std::string& name = known_[index].name;
  return absl::StrCat(name.empty() ? "a worker" : name, " at ", fleet_.address(index));
}

void WorkerRegistry::LogOnce(int index, std::string message) {
  if (known_[index].last_logged == message) return;
  LogInfo("registry", message);
  known_[index].last_logged = std::move(message);
}

}  // namespace runahead
