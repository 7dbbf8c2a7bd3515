// A hand-off sender, and a loader of prefixes, that keeps in mind which decode workers cannot be reached, and tries
// them again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "kernels/base/recent_set.h"
#include "server/base/backoff.h"
#include "worker/handoff/handoff.h"
#include "worker/handoff/prefix_loader.h"

namespace runahead {

// Thread-safe. `sender` connects anew by itself at the next push. Without `prefixes` every Load is UNAVAILABLE.
class DecodePaths final : public HandoffSender, public PrefixLoader {
 public:
  struct State {
    PeerId decode;
    absl::Status status;  // OK: it answers again
  };

  explicit DecodePaths(std::unique_ptr<HandoffSender> sender, std::unique_ptr<PrefixLoader> prefixes = nullptr)
      : prefixes_(std::move(prefixes)), sender_(std::move(sender)) {}
  Event Push(const PeerId& decode, const Slice& slice, ConstBufferRef bytes, const Event& after) override;
  void Cancel(const LeaseId& lease) override { sender_->Cancel(lease); }
  Event Load(const PeerId& decode, const Slice& rows, BufferRef into) override;
  void Drop(const LeaseId& lease) override;

  // What has changed since the last call. A decode worker is told of once a push or a load ended UNAVAILABLE, and
  // again when it answers. Those that do not answer are asked now, if their time has come: 0.1 s after the failure at
  // first, then twice as long each time, 5 s at most.
  std::vector<State> TakeChanges(absl::Time now) RUNAHEAD_EXCLUDES(mu_);
  // That process is gone for good: nothing is said or asked of it any more, whatever ends late.
  void Forget(uint64_t incarnation, uint32_t epoch) RUNAHEAD_EXCLUDES(mu_);

 private:
  static constexpr size_t kGoneRemembered = 256;
  struct Broken {
    PeerId decode;
    absl::Status status;  // OK: it has answered since
    bool told = false;
    bool asked = false;  // and has not answered yet
    Backoff backoff{absl::Milliseconds(100), absl::Seconds(5)};
  };
  void OnEnd(const PeerId& decode, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_);
  // A push or a load over a path that broke has ended.
  static void TakeAnswer(const absl::Status& end, Broken& path);
  void Ask(const PeerId& decode);

  Mutex mu_;
  absl::flat_hash_map<PeerKey, Broken> broken_ RUNAHEAD_GUARDED_BY(mu_);
  RecentSet<PeerKey> gone_ RUNAHEAD_GUARDED_BY(mu_){kGoneRemembered};  // of generation 0
  // These go first: their last events come here.
  const std::unique_ptr<PrefixLoader> prefixes_;  // null: nothing is loaded
  const std::unique_ptr<HandoffSender> sender_;
};

}  // namespace runahead
