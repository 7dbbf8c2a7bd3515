#include "worker/handoff/decode_paths.h"

#include <utility>

#include "kernels/base/monotonic.h"

namespace runahead {

Event DecodePaths::Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) {
  const Event acknowledged = sender_->Push(decode, slice, std::move(bytes), after);
  acknowledged.OnFire([this, decode, after](const absl::Status& status) {
    const std::optional<absl::Status> ready = after.status();
    if (ready && ready->ok()) OnEnd(decode, status);  // else it was never sent
  });
  return acknowledged;
}

Event DecodePaths::Load(const PeerId& decode, const Slice& rows, BufferRef into) {
  if (prefixes_ == nullptr) {
    EventSource none;
    none.Fire(absl::UnavailableError("this worker loads no prefixes"));
    return none.event();
  }
  const Event loaded = prefixes_->Load(decode, rows, std::move(into));
  loaded.OnFire([this, decode](const absl::Status& status) { OnEnd(decode, status); });
  return loaded;
}

void DecodePaths::Drop(const LeaseId& lease) {
  if (prefixes_ != nullptr) prefixes_->Drop(lease);
}

void DecodePaths::OnEnd(const PeerId& decode, const absl::Status& status) {
  MutexLock lock(mu_);
  if (gone_.contains({decode.incarnation, decode.epoch})) return;
  const auto found = broken_.find(decode.key());
  if (found != broken_.end()) return TakeAnswer(status, found->second);
  if (!absl::IsUnavailable(status)) return;
  Broken& path = broken_[decode.key()];
  path.decode = decode;
  path.status = status;
  path.backoff.Failed(MonotonicNow());
}

// A push that was cancelled, or never sent, tells nothing; any other end but UNAVAILABLE is an answer.
void DecodePaths::TakeAnswer(const absl::Status& end, Broken& path) {
  if (absl::IsCancelled(end) || absl::IsResourceExhausted(end)) return;
  if (!absl::IsUnavailable(end)) {
    path.status = absl::OkStatus();
    return;
  }
  path.told = path.told && !path.status.ok();
  path.status = end;
}

// Sends a slice for a lease that does not exist: any answer shows that the decode worker can be reached.
void DecodePaths::Ask(const PeerId& decode) {
  Slice none;
  none.lease.incarnation = decode.incarnation;
  none.lease.epoch = decode.epoch;
  sender_->Push(decode, none, ConstBufferRef(), Event()).OnFire([this, key = decode.key()](const absl::Status& status) {
    MutexLock lock(mu_);
    const auto found = broken_.find(key);
    if (found == broken_.end()) return;
    found->second.asked = false;
    TakeAnswer(status, found->second);
  });
}

std::vector<DecodePaths::State> DecodePaths::TakeChanges(absl::Time now) {
  std::vector<State> changes;
  std::vector<PeerId> ask;
  {
    MutexLock lock(mu_);
    for (auto it = broken_.begin(); it != broken_.end();) {
      const auto current = it++;
      Broken& path = current->second;
      if (path.status.ok()) {
        changes.push_back({path.decode, absl::OkStatus()});
        broken_.erase(current);
        continue;
      }
      if (!std::exchange(path.told, true)) changes.push_back({path.decode, path.status});
      if (path.asked || now < path.backoff.due()) continue;
      path.asked = true;
      path.backoff.Failed(now);
      ask.push_back(path.decode);
    }
  }
  for (const PeerId& decode : ask) Ask(decode);
  return changes;
}

void DecodePaths::Forget(uint64_t incarnation, uint32_t epoch) {
  MutexLock lock(mu_);
  gone_.Add({incarnation, epoch});
  absl::erase_if(broken_,
                 [&](const auto& path) { return path.first.incarnation == incarnation && path.first.epoch == epoch; });
}

}  // namespace runahead
