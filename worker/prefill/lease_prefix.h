// What a job's lease begins with, as its chain's prefix.
#pragma once

#include <cstdint>

#include "kernels/base/mutex.h"
#include "worker/handoff/prefix_loader.h"
#include "worker/prefill/job.h"

namespace runahead {

// Loads from the decode worker of `job`, which has a lease and bounds above 0. Rows are in `form`. `loader` outlives
// it.
class LeasePrefix final : public PrefixSource {
 public:
  LeasePrefix(PrefixLoader& loader, const PrefillJob& job, RowForm form);
  Event Load(int64_t layer, int64_t first, BufferRef into) override RUNAHEAD_EXCLUDES(mu_);
  void Drop() override RUNAHEAD_EXCLUDES(mu_);

 private:
  PrefixLoader& loader_;
  const PeerId decode_;
  const LeaseId lease_;
  const int64_t tokens_;
  const RowForm form_;
  Mutex mu_;
  bool dropped_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead
