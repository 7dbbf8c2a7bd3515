// What a door says of one answer.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "client/bench/bench_door.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// Thread-safe.
class HeardAnswer final : public AnswerHearer {
 public:
  void OnTokens(int64_t tokens) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(end_.has_value()) << "tokens behind the end";
    arrivals_.push_back(tokens);
    changed_.NotifyAll();
  }
  void OnEnd(const absl::Status& status, const AnswerCounts& counts) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(end_.has_value()) << "a second end: " << status;
    end_ = status;
    counts_ = counts;
    changed_.NotifyAll();
  }

  // Returns when it has ended.
  absl::Status Await() {
    MutexLock lock(mu_);
    ChangeWait wait("the answer ends");
    while (!end_.has_value()) {
      if (!wait.Next(mu_, changed_)) return absl::DeadlineExceededError("the test lost patience");
    }
    return *end_;
  }
  void AwaitArrivals(size_t count) {
    MutexLock lock(mu_);
    ChangeWait wait("tokens come");
    while (arrivals_.size() < count) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  std::vector<int64_t> arrivals() const {
    MutexLock lock(mu_);
    return arrivals_;
  }
  AnswerCounts counts() const {
    MutexLock lock(mu_);
    return counts_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<int64_t> arrivals_ RUNAHEAD_GUARDED_BY(mu_);
  AnswerCounts counts_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead::testing
