// What a router commanded, as words.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await_change.h"
#include "worker/service/control_service.h"

namespace runahead::testing {

// Thread-safe.
class KeepingHandler : public ControlHandler {
 public:
  void OnFormLine(const v1::FormLine& line) override { Add("line " + line.successor().name()); }
  void OnStart(const v1::StartJob& start) override { Add("start " + std::to_string(start.job())); }
  void OnCancel(uint64_t job) override { Add("cancel " + std::to_string(job)); }
  void OnRelease(const v1::LeaseId& lease) override { Add("release " + std::to_string(lease.number())); }
  void OnMove(const v1::MoveSequence& move) override { Add("move " + std::to_string(move.lease().number())); }
  void OnPing() override {}
  absl::StatusOr<v1::Capabilities> OnRouterGone() override {
    Add("gone");
    MutexLock lock(mu_);
    ChangeWait wait("the test lets the epoch end");
    while (hold_) {
      if (!wait.Next(mu_, changed_)) break;
    }
    capabilities_.set_epoch(capabilities_.epoch() + 1);
    return capabilities_;
  }

  void SetCapabilities(v1::Capabilities capabilities) {
    MutexLock lock(mu_);
    capabilities_ = std::move(capabilities);
  }
  // An epoch's end takes as long as this is true.
  void Hold(bool hold) {
    MutexLock lock(mu_);
    hold_ = hold;
    changed_.NotifyAll();
  }

  std::vector<std::string> Await(size_t count) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat("the router has commanded ", count, " times"));
    while (words_.size() < count) {
      if (!wait.Next(mu_, changed_)) break;
    }
    return words_;
  }

 private:
  void Add(std::string word) {
    MutexLock lock(mu_);
    words_.push_back(std::move(word));
    changed_.NotifyAll();
  }
  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> words_ RUNAHEAD_GUARDED_BY(mu_);
  v1::Capabilities capabilities_ RUNAHEAD_GUARDED_BY(mu_);
  bool hold_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

}  // namespace runahead::testing
