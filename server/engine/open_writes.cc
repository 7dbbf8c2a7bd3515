#include "server/engine/open_writes.h"

#include <utility>
#include <vector>

namespace runahead {

void OpenWrites::Add(const std::string& name, std::shared_ptr<OpenWrite> write) {
  MutexLock lock(mu_);
  writes_[name].insert(std::move(write));
}

void OpenWrites::Remove(const std::string& name, const std::shared_ptr<OpenWrite>& write) {
  MutexLock lock(mu_);
  const auto found = writes_.find(name);
  if (found == writes_.end()) return;
  found->second.erase(write);
  if (found->second.empty()) writes_.erase(found);
}

// What is ended may come back to Remove: not under the lock.
void OpenWrites::CutStalled(absl::Time now, absl::Duration timeout) {
  std::vector<std::shared_ptr<OpenWrite>> all;
  {
    MutexLock lock(mu_);
    for (const auto& [name, writes] : writes_) all.insert(all.end(), writes.begin(), writes.end());
  }
  for (const auto& write : all) write->CutIfStalled(now, timeout);
}

void OpenWrites::Abort(const std::string& name, const EngineCaller& caller, const absl::Status& why) {
  if (name.empty()) return;
  Writes writes;
  {
    MutexLock lock(mu_);
    if (const auto found = writes_.find(name); found != writes_.end()) writes = found->second;
  }
  for (const auto& write : writes) write->Abort(caller, why);
}

}  // namespace runahead
