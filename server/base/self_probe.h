// A process that asks itself, through the port that it serves, whether it still does.
#pragma once

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"
#include "server/base/clock.h"

namespace runahead {

// What unanswered questions mean. Pure.
class ProbeVerdict {
 public:
  explicit ProbeVerdict(absl::Duration patience) : patience_(patience) {}

  void Answered() { unanswered_ = absl::ZeroDuration(); }
  // The last answer is older by `time`.
  void Unanswered(absl::Duration time, const absl::Status& why);

  // UNAVAILABLE, with the last reason, once nothing was answered for `patience`.
  absl::Status status() const;
  // Nothing was answered for three times as long: it will not be any more.
  bool hopeless() const { return unanswered_ >= 3 * patience_; }

 private:
  const absl::Duration patience_;
  absl::Duration unanswered_;
  absl::Status why_;
};

struct SelfProbeOptions {
  // Asks once, and waits for the answer at most so long. RESOURCE_EXHAUSTED: it could not ask, which says nothing.
  // Called on the probe's thread.
  std::function<absl::Status(absl::Duration timeout)> ask;
  absl::Duration patience;
  // Called once, on the probe's thread, when the verdict is hopeless.
  std::function<void(const absl::Status&)> on_hopeless;
};

// Asks on a thread of its own, several times within its patience. What passes between two questions counts for at most
// twice the time that should: a process that was stopped for a while is judged by what it does afterwards. Thread-safe.
class SelfProbe {
 public:
  // `clock` must outlive this.
  SelfProbe(SelfProbeOptions options, Clock& clock);
  ~SelfProbe() { Stop(); }

  // Waits for a question that is under way. The verdict stays as it is.
  void Stop() RUNAHEAD_EXCLUDES(mu_);

  // As ProbeVerdict's.
  absl::Status status() const RUNAHEAD_EXCLUDES(mu_);

 private:
  void Run() RUNAHEAD_EXCLUDES(mu_);
  // False when it is to end.
  bool Pause() RUNAHEAD_EXCLUDES(mu_);

  const SelfProbeOptions options_;
  const absl::Duration period_;
  Clock& clock_;
  mutable Mutex mu_;
  CondVar changed_;
  ProbeVerdict verdict_ RUNAHEAD_GUARDED_BY(mu_);
  bool ending_ RUNAHEAD_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace runahead
