// The API keys that a running router takes: follows their file.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"
#include "server/base/followed_file.h"
#include "server/router/key_account.h"
#include "server/router/key_metrics.h"

namespace runahead {

class KeyRing {
 public:
  // Reads `path`. Errors are ReadTextFile's and ParseApiKeys', or PERMISSION_DENIED where everybody on this host may
  // write it, and begin with the option's name. `metrics` and `clock` outlive the ring and all of its accounts.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Open(const std::string& path, KeyMetrics& metrics, Clock& clock);

  // A key that was found.
  struct Found {
    std::shared_ptr<KeyAccount> account;  // null: there is no such key
    absl::Time expires;
  };
  // The one that is `key`. Takes as long whatever that is, and whichever it is. Any thread.
  Found Find(absl::string_view key) const RUNAHEAD_EXCLUDES(mu_);

  // Looks at the file, at most once in kFollowPeriod. Where it says something new, this counts from now on: keys of the
  // same name go on with what they have taken, keys that are not there any more take no new call. Or, where it cannot
  // be, the log says why and all stays as it was; it is tried again in each kFollowPeriod, for who may write the file
  // changes without its text. Either is counted, once for each text and reason. One thread; reads the file.
  void Poll(absl::Time now) RUNAHEAD_EXCLUDES(mu_);

 private:
  struct Key {
    std::string hash;
    Found found;
  };
  using Keys = std::vector<Key>;

  KeyRing(const std::string& path, KeyMetrics& metrics, Clock& clock);
  absl::Status Take() RUNAHEAD_EXCLUDES(mu_);  // what the file says

  KeyMetrics& metrics_;
  Clock& clock_;
  FollowedFile file_;
  absl::Status taken_;  // the last time, and when it is tried again where it failed
  absl::Time next_try_ = absl::InfinitePast();
  std::map<std::string, std::shared_ptr<KeyAccount>> accounts_;  // by name; for the thread of Poll
  mutable Mutex mu_;
  std::shared_ptr<const Keys> keys_ RUNAHEAD_GUARDED_BY(mu_);  // never changes, the next ones are others
};

}  // namespace runahead
