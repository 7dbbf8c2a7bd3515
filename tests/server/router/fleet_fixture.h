// A fleet of four listed workers, none of them ready yet.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "server/router/fleet_queue.h"
#include "server/task/run_here.h"
#include "tests/testing/fake_clock.h"

namespace runahead::testing {

class FleetTest : public ::testing::Test {
 protected:
  void Make(int queue_size) {
    queue_.reset();
    fleet_ = std::make_unique<Fleet>(
        std::vector<WorkerSpec>{{"prefill", "b:1"}, {"prefill", "a:1"}, {"decode", "a:2"}, {"both", "b:2"}}, metrics_,
        clock_);
    queue_ = std::make_unique<FleetQueue>(*fleet_, queue_size, metrics_, clock_);
  }
  std::shared_ptr<LiveWorker> Worker(int index, int64_t capacity = 1000) {
    auto worker = std::make_shared<LiveWorker>();
    worker->index = index;
    worker->capabilities.set_max_prefix_tokens(1000);
    worker->capabilities.set_layers(10);
    worker->capabilities.set_kv_capacity_tokens(capacity);
    return worker;
  }
  // For a prompt that is too long to share a place.
  absl::StatusOr<Placement> Acquire(const FleetQueue::Ticket& ticket, absl::Time deadline = absl::InfiniteFuture(),
                                    std::optional<FleetQueue::AfterFull> after_full = std::nullopt) {
    const ChainRequest request{.tokens = 200, .width = 1, .parts = {}};
    return RunHere(queue_->Acquire(ticket, request, PartitionTable(), cancel_, deadline, after_full));
  }

  MetricRegistry registry_{"none"};
  RouterMetrics metrics_{registry_, "tiny"};
  FakeClock clock_;
  CancelToken cancel_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<FleetQueue> queue_;
};

}  // namespace runahead::testing
