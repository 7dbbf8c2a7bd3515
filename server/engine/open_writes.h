// The calls of the engine service that are open: found by their names, and ended where their clients take nothing.
#pragma once

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

class EngineCaller;

// A call that writes a stream of answers. Thread-safe.
class OpenWrite {
 public:
  virtual ~OpenWrite() = default;
  // Ends it at once where it has been writing one message for `timeout` at `now`.
  virtual void CutIfStalled(absl::Time now, absl::Duration timeout) = 0;
  // Ends it with `why` where `caller` has its key.
  virtual void Abort(const EngineCaller& caller, const absl::Status& why) = 0;
};

// Thread-safe.
class OpenWrites {
 public:
  // An empty `name` is found by nobody. Several may have one name.
  void Add(const std::string& name, std::shared_ptr<OpenWrite> write) RUNAHEAD_EXCLUDES(mu_);
  void Remove(const std::string& name, const std::shared_ptr<OpenWrite>& write) RUNAHEAD_EXCLUDES(mu_);

  void CutStalled(absl::Time now, absl::Duration timeout) RUNAHEAD_EXCLUDES(mu_);
  void Abort(const std::string& name, const EngineCaller& caller, const absl::Status& why) RUNAHEAD_EXCLUDES(mu_);

 private:
  using Writes = absl::flat_hash_set<std::shared_ptr<OpenWrite>>;
  Mutex mu_;
  absl::flat_hash_map<std::string, Writes> writes_ RUNAHEAD_GUARDED_BY(mu_);  // by name
};

}  // namespace runahead
