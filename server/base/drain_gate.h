// Lets work in until the process drains, and waits for what is inside.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/base/mutex.h"

namespace runahead {

// Thread-safe; must outlive its passes.
class DrainGate {
 public:
  // Held by one piece of work; gives its place back when destroyed. May be moved to another thread.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
    Pass& operator=(Pass&& other) noexcept;
    ~Pass() { Release(); }

   private:
    friend class DrainGate;
    explicit Pass(DrainGate* gate) : gate_(gate) {}
    void Release();

    DrainGate* gate_ = nullptr;
  };

  // UNAVAILABLE once Close() was called: the caller should try elsewhere.
  absl::StatusOr<Pass> Enter() RUNAHEAD_EXCLUDES(mu_);

  void Close() RUNAHEAD_EXCLUDES(mu_);
  bool closed() const RUNAHEAD_EXCLUDES(mu_);
  int inside() const RUNAHEAD_EXCLUDES(mu_);

  // True when nothing is inside any more, false when `timeout` ran out before.
  bool WaitEmpty(absl::Duration timeout) RUNAHEAD_EXCLUDES(mu_);

 private:
  void Leave() RUNAHEAD_EXCLUDES(mu_);

  mutable Mutex mu_;
  CondVar left_;
  bool closed_ RUNAHEAD_GUARDED_BY(mu_) = false;
  int inside_ RUNAHEAD_GUARDED_BY(mu_) = 0;
};

}  // namespace runahead
