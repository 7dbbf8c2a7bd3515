// What a connection to a worker tells its owner.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "server/router/worker_connection.h"
#include "tests/testing/await_change.h"

namespace runahead::testing {

// Keeps it. Thread-safe. Every Await blocks until what it names has happened; in vain for LongestWait(), the test
// fails.
class KeptNews : public WorkerConnection::Owner {
 public:
  absl::Status Admit(int, const v1::Capabilities&) override {
    MutexLock lock(mu_);
    return admit_;
  }
  void Joined(std::shared_ptr<const LiveWorker> worker, std::shared_ptr<CommandSink> orders) override {
    MutexLock lock(mu_);
    joined_.push_back(worker->capabilities.incarnation());
    live_ = worker;
    orders_ = std::move(orders);
    changed_.NotifyAll();
  }
  void Interrupted(int, const absl::Status&) override {
    MutexLock lock(mu_);
    ++interrupted_;
    changed_.NotifyAll();
  }
  void Resumed(int) override {
    MutexLock lock(mu_);
    ++resumed_;
    changed_.NotifyAll();
  }
  void Report(int, const v1::ControlReport& report) override {
    MutexLock lock(mu_);
    if (report.has_pong()) last_pong_ = report.pong().number();
    if (report.has_done()) done_.push_back(report.done().job());
    changed_.NotifyAll();
  }
  void Loaded(int, const v1::DecodeLoad&, absl::Time) override {}
  uint64_t Lessons() override { return 0; }
  void Evicted(const LiveWorker&, absl::Span<const uint64_t>, uint64_t) override {}
  void Suspected(int, bool) override {}
  void Left(int, WorkerState state, const absl::Status& why) override {
    MutexLock lock(mu_);
    left_.emplace_back(state, why);
    changed_.NotifyAll();
  }

  void Refuse(absl::Status why) {
    MutexLock lock(mu_);
    admit_ = std::move(why);
  }
  uint64_t AwaitJoined(size_t count) {
    MutexLock lock(mu_);
    if (!Await(absl::StrCat(count, " have joined"), [&]() RUNAHEAD_REQUIRES(mu_) { return joined_.size() >= count; }))
      return 0;
    return joined_[count - 1];
  }
  bool AwaitPong(uint64_t number) {
    MutexLock lock(mu_);
    return Await(absl::StrCat("pong ", number, " has come"),
                 [&]() RUNAHEAD_REQUIRES(mu_) { return last_pong_ >= number; });
  }
  bool AwaitInterrupted(size_t count) {
    MutexLock lock(mu_);
    return Await(absl::StrCat(count, " streams were interrupted"),
                 [&]() RUNAHEAD_REQUIRES(mu_) { return interrupted_ >= count; });
  }
  bool AwaitResumed(size_t count) {
    MutexLock lock(mu_);
    return Await(absl::StrCat(count, " streams were resumed"),
                 [&]() RUNAHEAD_REQUIRES(mu_) { return resumed_ >= count; });
  }
  // The jobs whose end was reported, in the order of the reports.
  std::vector<uint64_t> AwaitDone(size_t count) {
    MutexLock lock(mu_);
    Await(absl::StrCat(count, " ends were reported"), [&]() RUNAHEAD_REQUIRES(mu_) { return done_.size() >= count; });
    return done_;
  }
  // The way to the worker that joined last.
  std::shared_ptr<CommandSink> orders() {
    MutexLock lock(mu_);
    return orders_;
  }
  std::shared_ptr<const LiveWorker> live() {
    MutexLock lock(mu_);
    return live_;
  }
  size_t left() {
    MutexLock lock(mu_);
    return left_.size();
  }
  std::pair<WorkerState, absl::Status> AwaitLeft(size_t count) {
    MutexLock lock(mu_);
    if (!Await(absl::StrCat(count, " have left"), [&]() RUNAHEAD_REQUIRES(mu_) { return left_.size() >= count; }))
      return {};
    return left_[count - 1];
  }

 private:
  // False, and a failure of the test, when it waits in vain.
  template <typename Condition>
  bool Await(std::string what, const Condition& condition) RUNAHEAD_REQUIRES(mu_) {
    ChangeWait wait(std::move(what));
    while (!condition()) {
      if (wait.Next(mu_, changed_)) continue;
      ADD_FAILURE() << joined_.size() << " have joined, " << left_.size() << " have left"
                    << (left_.empty() ? "" : ", the last by " + left_.back().second.ToString());
      return false;
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  absl::Status admit_ RUNAHEAD_GUARDED_BY(mu_);
  uint64_t last_pong_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  size_t interrupted_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  size_t resumed_ RUNAHEAD_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> done_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<CommandSink> orders_ RUNAHEAD_GUARDED_BY(mu_);
  std::vector<uint64_t> joined_ RUNAHEAD_GUARDED_BY(mu_);
  std::shared_ptr<const LiveWorker> live_ RUNAHEAD_GUARDED_BY(mu_);  // that joined last
  std::vector<std::pair<WorkerState, absl::Status>> left_ RUNAHEAD_GUARDED_BY(mu_);
};

}  // namespace runahead::testing
