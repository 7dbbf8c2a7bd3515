#include "server/router/worker_registry.h"

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

WorkerRegistry::WorkerRegistry(Fleet& fleet, Sequencer& sequencer, const ModelInfo& model, Clock& clock)
    : fleet_(fleet), sequencer_(sequencer), model_(model), last_logged_(fleet.workers().size()) {
  const uint64_t incarnation = RandomBits64();
  WorkerLink::Owner& owner = *this;
  for (size_t i = 0; i < fleet.workers().size(); ++i) {
    const int index = static_cast<int>(i);
    links_.push_back(std::make_unique<WorkerLink>(index, fleet.workers()[i], incarnation, owner, clock));
  }
}

WorkerRegistry::~WorkerRegistry() {
  links_.clear();
}

absl::Status WorkerRegistry::Admit(int index, const v1::Capabilities& capabilities) {
  MutexLock lock(mu_);
  const v1::Capabilities* pool = members_.empty() ? nullptr : &members_.begin()->second.capabilities;
  RUNAHEAD_RETURN_IF_ERROR(CheckAgreement(fleet_.workers()[index], capabilities, model_, pool));
  members_[index].capabilities = capabilities;
  return absl::OkStatus();
}

void WorkerRegistry::Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> stream) {
  const v1::Capabilities& capabilities = worker->capabilities;
  const int index = worker->index;
  MutexLock lock(mu_);
  members_[index].live = worker;
  sequencer_.Attach(index, capabilities.name(), std::move(stream));
  FormLine(index);  // before anybody can be planned on: each stream has its neighbours ahead of the first Start
  fleet_.SetReady(std::move(worker));
  LogOnce(index, false,
          absl::StrCat(capabilities.name(), " at ", fleet_.workers()[index].address, " joined: ",
                       fleet_.workers()[index].role, ", ", capabilities.compute_dtype(), ", ", capabilities.device()));
}

void WorkerRegistry::Left(int index, WorkerState state, const absl::Status& why) {
  std::shared_ptr<const LiveWorker> live;
  {
    MutexLock lock(mu_);
    if (const auto found = members_.find(index); found != members_.end()) {
      live = found->second.live;
      if (live != nullptr) lost_.push_back(live->capabilities.incarnation());
      if (lost_.size() > kLostRemembered) lost_.pop_front();
      members_.erase(found);
    }
    fleet_.SetNotReady(index, state, std::string(why.message()));
    if (!absl::IsCancelled(why)) {
      LogOnce(index, true, absl::StrCat("worker at ", fleet_.workers()[index].address, ": ", why.message()));
    }
  }
  if (live == nullptr) return;
  sequencer_.Detach(index, why);
  live->lost->Cancel(
      absl::UnavailableError(absl::StrCat("decode worker ", live->capabilities.name(), " was lost: ", why.message())));
  MutexLock lock(mu_);
  FormLine(std::nullopt);
}

void WorkerRegistry::FormLine(std::optional<int> newcomer) {
  const auto address = [this](size_t position) RUNAHEAD_REQUIRES(mu_) -> const v1::Capabilities* {
    if (position >= fleet_.line().size()) return nullptr;  // also before the head
    const auto found = members_.find(fleet_.line()[position]);
    return found == members_.end() || found->second.live == nullptr ? nullptr : &found->second.capabilities;
  };
  const auto fill = [](const v1::Capabilities& from, v1::PeerAddress& to) {
    to.set_name(from.name());
    to.set_link_address(from.link_address());
    to.set_incarnation(from.incarnation());
  };
  std::vector<std::pair<int, v1::ControlCommand>> commands;
  for (size_t i = 0; i < fleet_.line().size(); ++i) {
    const int index = fleet_.line()[i];
    if (address(i) == nullptr) continue;
    v1::FormLine neighbours;
    if (const v1::Capabilities* peer = address(i - 1)) fill(*peer, *neighbours.mutable_predecessor());
    if (const v1::Capabilities* peer = address(i + 1)) fill(*peer, *neighbours.mutable_successor());
    neighbours.mutable_lost()->Add(lost_.begin(), lost_.end());
    v1::FormLine& told = members_[index].neighbours;
    if (index != newcomer && told.SerializeAsString() == neighbours.SerializeAsString()) continue;
    told = neighbours;
    commands.emplace_back(index, v1::ControlCommand());
    *commands.back().second.mutable_form_line() = std::move(neighbours);
  }
  sequencer_.Send(std::move(commands));
}

// A worker that stays away is tried again and again: say so once.
void WorkerRegistry::LogOnce(int index, bool warn, std::string message) {
  if (last_logged_[index] == message) return;
  if (warn) {
    LogWarning("registry", message);
  } else {
    LogInfo("registry", message);
  }
  last_logged_[index] = std::move(message);
}

}  // namespace runahead
