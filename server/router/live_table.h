// The partition table of a running router: follows its file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "scheduler/partition/partition_table.h"
#include "server/base/followed_file.h"
#include "server/router/agreement.h"
#include "server/router/router_metrics.h"

namespace runahead {

inline constexpr absl::Duration kTablePeriod = kFollowPeriod;

class LiveTable {
 public:
  // Without a file: prompts are split evenly.
  LiveTable() = default;

  // Reads `path`, a partition file for `served`; empty: as above. Errors are ParseServedTable's and ReadTextFile's, and
  // begin with the option's name. What is no regular file, as a pipe, is read this once.
  static absl::StatusOr<std::unique_ptr<LiveTable>> Open(const std::string& path, const ModelInfo& served);

  // The table as it is now; it never changes, the next one is another. Any thread.
  std::shared_ptr<const PartitionTable> Get() const RUNAHEAD_EXCLUDES(mu_);

  // Looks at the file if the last look was kTablePeriod ago or longer. Where it says something new, this is from now on
  // the table; or, if it cannot be, the log says why and the old one stays. Either is counted, once a change. One
  // thread; reads the file, so others must not wait for it.
  void Poll(absl::Time now, RouterMetrics& metrics) RUNAHEAD_EXCLUDES(mu_);

  // What is wrong with the table in use for workers that compute in `dtype` ("f32"; empty: not known yet): text for the
  // log where it was measured in another, once for each table and dtype. The thread of Poll.
  std::optional<std::string> DoubtOf(const std::string& dtype);

 private:
  absl::Status Take() RUNAHEAD_EXCLUDES(mu_);  // what the file says

  FollowedFile file_;
  ModelInfo served_;
  std::string dtype_;    // of the table in use
  std::string doubted_;  // the workers' dtype that DoubtOf has spoken of
  mutable Mutex mu_;
  std::shared_ptr<const PartitionTable> table_ RUNAHEAD_GUARDED_BY(mu_) = std::make_shared<const PartitionTable>();
};

}  // namespace runahead
