// What every implementation of Edge must do. A test file instantiates EdgeContract with a maker of its world.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/monotonic.h"
#include "tests/testing/patience.h"
#include "tests/worker/link/host_buffer.h"
#include "worker/link/edge.h"

namespace runahead::testing {

// Three processes that can reach each other.
class EdgeWorld {
 public:
  virtual ~EdgeWorld() = default;
  virtual EdgeFactory& factory(int process) = 0;
  virtual void Kill(int process) = 0;
  virtual size_t live_jobs(int process, int peer) = 0;
};

class EdgeContract : public ::testing::TestWithParam<std::function<std::unique_ptr<EdgeWorld>()>> {
 protected:
  static constexpr size_t kSmall = 100;
  static constexpr size_t kLarge = 300'001;

  void SetUp() override { world_ = GetParam()(); }

  std::shared_ptr<Edge> Open(int process, int peer) {
    auto edge = world_->factory(process).Open(world_->factory(peer).self());
    EXPECT_TRUE(edge.ok()) << edge.status();
    return *edge;
  }
  // Long enough that only a hang runs out of it.
  static absl::Status Await(const Event& event) { return event.Wait(LongestWait()); }
  static absl::StatusCode Code(const Event& event) { return Await(event).code(); }

  // Both sides say that they are done with `job`, which ends every state of it.
  void EndJob(Edge& a, Edge& b, JobId job) {
    const Event done_a = a.Finish(job);
    const Event done_b = b.Finish(job);
    Await(done_a).IgnoreError();
    Await(done_b).IgnoreError();
  }

  std::unique_ptr<EdgeWorld> world_;
};

}  // namespace runahead::testing
