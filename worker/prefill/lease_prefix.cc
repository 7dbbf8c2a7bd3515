#include "worker/prefill/lease_prefix.h"

#include <utility>

namespace runahead {

LeasePrefix::LeasePrefix(PrefixLoader& loader, const PrefillJob& job, RowForm form)
    : loader_(loader), decode_(job.decode), lease_(*job.lease), tokens_(job.bounds.front()), form_(form) {}

Event LeasePrefix::Load(int64_t layer, int64_t first, BufferRef into) {
  {
    MutexLock lock(mu_);  // held while it is asked for, so that nothing is after Drop
    const Slice rows{lease_, static_cast<int32_t>(layer), first, tokens_, SliceKind::kKv, form_};
    if (!dropped_) return loader_.Load(decode_, rows, std::move(into));
  }
  EventSource dropped;
  dropped.Fire(absl::CancelledError("the job was stopped before its prefix was asked for"));
  return dropped.event();
}

void LeasePrefix::Drop() {
  {
    MutexLock lock(mu_);
    dropped_ = true;
  }
  loader_.Drop(lease_);
}

}  // namespace runahead
