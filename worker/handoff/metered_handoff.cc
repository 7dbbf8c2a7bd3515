#include "worker/handoff/metered_handoff.h"

#include <memory>

#include "kernels/base/monotonic.h"

namespace runahead {

Event MeteredHandoff::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  auto ready = std::make_shared<absl::Time>();
  after.OnFire([ready](const absl::Status&) { *ready = MonotonicNow(); });
  const Event acknowledged = sender_.Push(decode, slice, bytes, after);
  const HandoffKind kind = slice.kind == SliceKind::kKv ? HandoffKind::kKv : HandoffKind::kX;
  acknowledged.OnFire([this, ready, kind, size = bytes.size](const absl::Status& status) {
    if (!status.ok()) return;
    metrics_.ObserveHandoff(MonotonicNow() - *ready);
    metrics_.CountHandoffBytes(kind, static_cast<int64_t>(size));
  });
  return acknowledged;
}

}  // namespace runahead
