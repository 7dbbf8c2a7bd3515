#include "server/router/key_ring.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "server/base/api_key.h"
#include "server/base/cluster_key.h"
#include "server/base/config.h"
#include "server/base/logging.h"
#include "server/router/api_keys.h"

namespace runahead {

KeyRing::KeyRing(const std::string& path, KeyMetrics& metrics, Clock& clock)
    : metrics_(metrics), clock_(clock), file_(path, kMaxConfigBytes), keys_(std::make_shared<const Keys>()) {}

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Open(const std::string& path, KeyMetrics& metrics, Clock& clock) {
  std::unique_ptr<KeyRing> ring(new KeyRing(path, metrics, clock));
  const absl::Status taken = ring->Take();
  if (!taken.ok()) return absl::Status(taken.code(), absl::StrCat("api_keys: ", taken.message()));
  LogInfo("keys", "calls need an API key; ", path, " has ", ring->accounts_.size());
  return ring;
}

absl::Status KeyRing::Take() {
  RUNAHEAD_RETURN_IF_ERROR(file_.text().status());
  struct stat file;
  if (stat(file_.path().c_str(), &file) == 0 && S_ISREG(file.st_mode) && (file.st_mode & S_IWOTH) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("everybody on this host may write ", file_.path(), ": chmod o-w it, and look who is in it"));
  }
  RUNAHEAD_ASSIGN_OR_RETURN(const std::vector<ApiKeyEntry> entries, ParseApiKeys(*file_.text(), file_.path()));
  std::map<std::string, std::shared_ptr<KeyAccount>> accounts;
  auto keys = std::make_shared<Keys>();
  for (const ApiKeyEntry& entry : entries) {
    std::shared_ptr<KeyAccount>& account = accounts[entry.name];
    if (const auto before = accounts_.find(entry.name); before != accounts_.end()) account = before->second;
    if (account == nullptr) account = std::make_shared<KeyAccount>(entry.name, entry.limits, metrics_, clock_);
    account->SetLimits(entry.limits);
    keys->push_back({entry.hash, {account, entry.expires}});
    if (!entry.old_hash.empty()) keys->push_back({entry.old_hash, {account, entry.expires}});
  }
  accounts_ = std::move(accounts);
  MutexLock lock(mu_);
  keys_ = std::move(keys);
  return absl::OkStatus();
}

KeyRing::Found KeyRing::Find(absl::string_view key) const {
  std::shared_ptr<const Keys> keys;
  {
    MutexLock lock(mu_);
    keys = keys_;
  }
  const std::string hash = HashOfApiKey(key);
  const Key* same = nullptr;
  for (const Key& candidate : *keys) {  // all of them: where it stands must not show in the time
    if (SameProof(hash, candidate.hash)) same = &candidate;
  }
  return same == nullptr ? Found{nullptr, absl::InfinitePast()} : same->found;
}

void KeyRing::Poll(absl::Time now) {
  const bool changed = file_.Look(now);
  if (!changed && (taken_.ok() || now < next_try_)) return;
  next_try_ = now + kFollowPeriod;
  const absl::Status taken = Take();
  const bool said = !changed && taken == taken_;
  taken_ = taken;
  if (said) return;
  metrics_.CountReload(taken.ok());
  if (taken.ok()) {
    LogInfo("keys", file_.path(), " has changed: its ", accounts_.size(), " API keys count from now on");
  } else {
    LogWarning("keys", taken.message(), "; the API keys from before stay in use");
  }
}

}  // namespace runahead
