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

// The workers stay as they are for the next router: whose stream ends here is not lost.
WorkerRegistry::~WorkerRegistry() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
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
  if (stopping_) return;
  std::map<int, v1::FormLine> lines;  // what each is to know, by worker index
  for (const auto& [index, member] : members_) {
    if (member.live != nullptr) lines[index].mutable_lost()->Add(lost_.begin(), lost_.end());
  }
  const auto fill = [this](int index, v1::PeerAddress& to) RUNAHEAD_REQUIRES(mu_) {
    const v1::Capabilities& peer = members_.at(index).capabilities;
    to.set_name(peer.name());
    to.set_link_address(peer.link_address());
    to.set_incarnation(peer.incarnation());
    to.set_device_link(peer.device_link());
  };
  for (size_t i = 1; i < fleet_.line().size(); ++i) {
    const int before = fleet_.line()[i - 1], after = fleet_.line()[i];
    if (!lines.contains(before) || !lines.contains(after)) continue;
    fill(before, *lines[after].mutable_predecessor());
    fill(after, *lines[before].mutable_successor());
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
