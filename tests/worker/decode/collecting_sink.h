// A sink that keeps what a sequence gave, and lets a test wait for it.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/base/mutex.h"
#include "tests/testing/await_change.h"
#include "worker/decode/sequence.h"

namespace runahead::testing {

// Thread-safe.
class CollectingSink final : public DecodeSink {
 public:
  void OnToken(Sampled token) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(end_.has_value());
    tokens_.push_back(std::move(token));
    changed_.NotifyAll();
  }
  void OnMoved(const MoveOutcome& outcome) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(end_.has_value());
    moves_.push_back(outcome);
    changed_.NotifyAll();
  }
  void OnEnd(absl::Status status) override {
    MutexLock lock(mu_);
    EXPECT_FALSE(end_.has_value());
    end_ = std::move(status);
    changed_.NotifyAll();
  }
  absl::Status AwaitEnd() {
    MutexLock lock(mu_);
    ChangeWait wait("the sequence has ended");
    while (!end_.has_value()) {
      if (!wait.Next(mu_, changed_)) return absl::DeadlineExceededError("the sequence has not ended");
    }
    return *end_;
  }
  // What came of the `count`-th move.
  MoveOutcome AwaitMove(size_t count = 1) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat("move ", count, " has an outcome"));
    while (moves_.size() < count) {
      if (!wait.Next(mu_, changed_)) return {absl::DeadlineExceededError("the move has no outcome")};
    }
    return moves_[count - 1];
  }
  size_t moves() {
    MutexLock lock(mu_);
    return moves_.size();
  }
  void AwaitTokens(size_t count) {
    MutexLock lock(mu_);
    ChangeWait wait(absl::StrCat("the sequence has ", count, " tokens, or has ended"));
    while (tokens_.size() < count && !end_.has_value()) {
      if (!wait.Next(mu_, changed_)) return;
    }
  }
  std::vector<int32_t> ids() {
    MutexLock lock(mu_);
    std::vector<int32_t> ids;
    for (const Sampled& token : tokens_) ids.push_back(token.id);
    return ids;
  }
  std::vector<Sampled> tokens() {
    MutexLock lock(mu_);
    return tokens_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<MoveOutcome> moves_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<Sampled> tokens_ RUNAHEAD_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead::testing
